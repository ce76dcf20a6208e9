"""Pages of tokens in blocks of tokens, heads in shards of heads.  Pure arithmetic.

::

    vLLM's block        [ page ][ page ] ... [ page ]      block_tokens, of a full-attention layer
    page slot           block * pages_per_block + page in block
    slot (of a token)   page slot * page_tokens + token in page

    key-value heads     0 1 2 3 4 5 6 7
    shards              [ 0 ][ 1 ][ 2 ][ 3 ]                the unit of storage
    a worker of four          [ 1 ]                         reads and writes its own
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anchorstore.errors import ModelError
from anchorstore.layout import AnchorLayout, KvLayout

SHARDS_MAX = 8

Slots = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """Tokens in a page and in a block of vLLM's full-attention cache."""

    page_tokens: int
    block_tokens: int

    def __post_init__(self) -> None:
        if self.block_tokens % self.page_tokens:
            raise ModelError(
                f"vllm: pages of {self.page_tokens} tokens do not divide its blocks of "
                f"{self.block_tokens}; set page_tokens, or --block-size, to one that does"
            )

    @property
    def pages_per_block(self) -> int:
        """Pages in a block."""
        return self.block_tokens // self.page_tokens

    def page_slots(self, block_ids: Sequence[int], first_page: int, stop_page: int) -> Slots:
        """Page slots [stop - first] of pages [first, stop) of a request with these blocks."""
        pages = np.arange(first_page, stop_page, dtype=np.int64)
        blocks = np.asarray(block_ids, np.int64)[pages // self.pages_per_block]
        return blocks * self.pages_per_block + pages % self.pages_per_block

    def whole_blocks(self, tokens: int) -> int:
        """The most tokens up to `tokens` that fill blocks."""
        return tokens // self.block_tokens * self.block_tokens

    def column(self, tokens: int) -> int:
        """Block column that holds the linear state after `tokens` tokens."""
        assert tokens > 0, tokens
        return (tokens - 1) // self.block_tokens


def token_slots(page_slots: Slots, page_tokens: int) -> Slots:
    """Slots [pages * page_tokens] of the tokens of these pages."""
    return (page_slots[:, None] * page_tokens + np.arange(page_tokens)[None, :]).reshape(-1)


def shard_count(heads: int, wanted: int) -> int:
    """Shards that `heads` are stored in: `wanted`, or by default the most up to SHARDS_MAX."""
    if wanted:
        if heads % wanted:
            raise ModelError(f"vllm: kv_shards is {wanted}, must divide {heads} key-value heads")
        return wanted
    return max(count for count in range(1, min(heads, SHARDS_MAX) + 1) if heads % count == 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one worker of a tensor-parallel group holds of the key-value heads.

    Attributes:
        head_start, head_stop: the heads in its cache.
        shards: numbers of the shards among them, in order.
        is_writer: False where a lower rank holds copies of the same heads.
    """

    head_start: int
    head_stop: int
    shards: range
    is_writer: bool


def share_of_rank(heads: int, shards: int, rank: int, ranks: int) -> Share:
    """What `rank` of `ranks` holds; ModelError where a shard would be cut."""
    if ranks <= heads:
        if heads % ranks or shards % ranks:
            raise ModelError(
                f"vllm: {heads} key-value heads in {shards} shards cannot be split over "
                f"{ranks} tensor-parallel workers; set kv_shards to a multiple of {ranks}"
            )
        held, copies = heads // ranks, 1
    else:
        if ranks % heads or shards != heads:
            raise ModelError(
                f"vllm: {ranks} tensor-parallel workers share {heads} key-value heads: "
                f"kv_shards must be {heads}, it is {shards}"
            )
        held, copies = 1, ranks // heads
    start = rank // copies * held
    per_shard = heads // shards
    first = start // per_shard
    return Share(start, start + held, range(first, first + held // per_shard), rank % copies == 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What one worker's share of a page looks like in the store.

    Attributes:
        share: which heads, in which shards, its cache holds.
        kv_layout: of the whole model, all heads.
        shards: pieces that the heads are stored in.
        anchor_layout: of the model's anchors.
    """

    share: Share
    kv_layout: KvLayout
    shards: int
    anchor_layout: AnchorLayout

    def shard_layout(self, shard: int) -> KvLayout:
        """Layout of one shard of the key-value heads."""
        heads = self.kv_layout.heads // self.shards
        return self.kv_layout.with_heads(shard * heads, (shard + 1) * heads)
