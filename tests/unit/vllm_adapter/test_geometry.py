"""Goal: pages, slots and shares of heads are where vLLM's kernels put them.
Method: worked examples; random splits against a list of heads.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import ModelError
from engine_adapter.vllm.geometry import (
    Geometry,
    shard_count,
    share_of_rank,
    token_slots,
)


def test_page_slots_of_pages_across_blocks_follow_the_blocks() -> None:
    geometry = Geometry(page_tokens=64, block_tokens=640)
    assert geometry.pages_per_block == 10
    assert geometry.page_slots([7, 3], 8, 12).tolist() == [78, 79, 30, 31]


def test_token_slots_of_a_page_are_those_of_its_tokens() -> None:
    assert token_slots(np.array([3, 1]), 4).tolist() == [12, 13, 14, 15, 4, 5, 6, 7]


@pytest.mark.parametrize(("tokens", "column"), [(1, 0), (640, 0), (641, 1), (1344, 2)])
def test_column_of_a_state_holds_its_last_token(tokens: int, column: int) -> None:
    assert Geometry(64, 640).column(tokens) == column


def test_pages_that_do_not_divide_a_block_are_refused() -> None:
    with pytest.raises(ModelError, match="64 tokens do not divide its blocks of 528"):
        Geometry(page_tokens=64, block_tokens=528)


@pytest.mark.parametrize(
    ("heads", "wanted", "count"), [(2, 0, 2), (8, 0, 8), (12, 0, 6), (16, 0, 8), (8, 2, 2)]
)
def test_shards_of_heads_are_as_many_as_wanted_or_fit(heads: int, wanted: int, count: int) -> None:
    assert shard_count(heads, wanted) == count


def test_shards_that_cut_a_head_are_refused() -> None:
    with pytest.raises(ModelError, match="kv_shards is 3, must divide 8"):
        shard_count(8, 3)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))
def test_shares_of_all_ranks_cover_every_head_once(heads: int, shards: int, ranks: int) -> None:
    if heads % shards or (ranks <= heads and shards % ranks) or (ranks > heads != shards):
        return
    shares = [share_of_rank(heads, shards, rank, ranks) for rank in range(ranks)]
    written = [share for share in shares if share.is_writer]
    per_shard = heads // shards
    held = [head for share in written for head in range(share.head_start, share.head_stop)]
    assert held == list(range(heads))
    assert [shard for share in written for shard in share.shards] == list(range(shards))
    for share in shares:
        assert share.shards.start * per_shard == share.head_start
        assert share.shards.stop * per_shard == share.head_stop


@pytest.mark.parametrize(("heads", "shards", "ranks"), [(2, 1, 2), (6, 6, 4), (2, 1, 4)])
def test_ranks_that_would_cut_a_shard_are_refused(heads: int, shards: int, ranks: int) -> None:
    with pytest.raises(ModelError, match="kv_shards"):
        share_of_rank(heads, shards, 0, ranks)
