"""Goal: pages come out of a paged cache as they went in, whatever the order inside its blocks, and
the pool keeps exactly the last rows of each page.
Method: caches in three layouts behind kernels written here; a pool against plain indexing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from anchorstore.errors import ModelError
from anchorstore.layout import AnchorLayout
from engine_adapter.vllm.geometry import token_slots
from engine_adapter.vllm.paged import PagedKv, even_steps, learn_order
from engine_adapter.vllm.taps import FEW_TOKENS, AnchorPool, summands

BLOCKS, TOKENS, HEADS, DIM = 4, 32, 3, 8

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def heads_first(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """[block][head][token][key | value]"""
    for row, slot in enumerate(slots.tolist()):
        cache[slot // TOKENS, :, slot % TOKENS, :DIM] = key[row]
        cache[slot // TOKENS, :, slot % TOKENS, DIM:] = value[row]


def keys_apart(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Of each head all keys, dimension first, then all values."""
    apart = cache.view(BLOCKS, HEADS, 2, TOKENS * DIM)
    for row, slot in enumerate(slots.tolist()):
        keys = apart[slot // TOKENS, :, 0].view(HEADS, DIM, TOKENS)
        keys[:, :, slot % TOKENS] = key[row]
        values = apart[slot // TOKENS, :, 1].view(HEADS, TOKENS, DIM)
        values[:, slot % TOKENS] = value[row]


def swapped(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    heads_first(cache, value, key, slots)


def in_tiles(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """As keys_apart, but two elements of a key beside each other, as matrix units want them."""
    apart = cache.view(BLOCKS, HEADS, 2, TOKENS * DIM)
    for row, slot in enumerate(slots.tolist()):
        keys = apart[slot // TOKENS, :, 0].view(HEADS, DIM // 2, TOKENS, 2)
        keys[:, :, slot % TOKENS] = key[row].view(HEADS, DIM // 2, 2)
        values = apart[slot // TOKENS, :, 1].view(HEADS, TOKENS, DIM)
        values[:, slot % TOKENS] = value[row]


@pytest.mark.parametrize(
    ("kernel", "is_even"),
    [(heads_first, True), (keys_apart, True), (swapped, True), (in_tiles, False)],
)
def test_whole_units_are_moved_where_every_step_is_as_long(kernel: Kernel, is_even: bool) -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.bfloat16)
    order = learn_order(cache, lambda *each: kernel(cache, *each), TOKENS, HEADS, DIM)
    assert all(even_steps(order[:, part]) is not None for part in range(2)) == is_even


@pytest.mark.parametrize("page", [8, 16, 32, 64])
@pytest.mark.parametrize("kernel", [heads_first, keys_apart, swapped, in_tiles])
def test_pages_written_by_a_kernel_are_read_and_written_back(kernel: Kernel, page: int) -> None:
    generator = torch.Generator().manual_seed(0)
    caches = list(torch.zeros(2, BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.bfloat16))
    order = learn_order(caches[0], lambda *each: kernel(caches[0], *each), TOKENS, HEADS, DIM)
    assert not caches[0].any(), "what was scribbled is wiped"
    paged = PagedKv(caches, order, page)
    wanted = torch.randn(
        (2, 2, 2, page, HEADS, DIM), generator=generator, dtype=torch.float32
    ).bfloat16()
    page_slots = np.array([BLOCKS * TOKENS // page - 1, 0])
    slots = torch.from_numpy(token_slots(page_slots, page))
    for layer, cache in enumerate(caches):
        key, value = (wanted[:, layer, part].reshape(-1, HEADS, DIM) for part in (0, 1))
        kernel(cache, key, value, slots)
    assert torch.equal(paged.read(page_slots), wanted)
    before = [cache.clone() for cache in caches]
    for cache in caches:
        cache.zero_()
    paged.write(page_slots, wanted)
    assert all(torch.equal(cache, was) for cache, was in zip(caches, before, strict=True))


def test_cache_that_rounds_its_elements_is_refused() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.bfloat16)

    def rounding(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        heads_first(cache, (key / 4).round(), value, slots)

    with pytest.raises(ModelError, match="as they are"):
        learn_order(cache, rounding, TOKENS, HEADS, DIM)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("shape_may_vary", [True, False])
def test_pool_after_passes_of_any_size_holds_the_last_rows(rows: int, shape_may_vary: bool) -> None:
    layout = AnchorLayout(groups=2, rows=rows, hidden=5, dtype="float32", page_tokens=8)
    pool = AnchorPool(layout, adds_residual=False)
    pool.allocate(6, torch.device("cpu"), "layer")
    slots = torch.tensor([*range(16, 24), *range(40, 48), 8, 9])  # page slots 2, 5, and part of 1
    stream = torch.arange(len(slots) * 5, dtype=torch.float32).reshape(len(slots), 5)
    for first, stop in ((0, 5), (5, 6), (6, len(slots))):
        kept = pool.rows_of(slots[first:stop], shape_may_vary=shape_may_vary)
        for group in range(2):
            pool.keep(group, stream[first:stop] + 1000 * group, kept)
    pages = pool.read(np.array([2, 5]))
    for page, start in enumerate((0, 8)):
        wanted = stream[start + 8 - rows : start + 8]
        assert torch.equal(pages[page, 0], wanted)
        assert torch.equal(pages[page, 1], wanted + 1000)


@pytest.mark.parametrize("shape_may_vary", [True, False])
def test_pool_given_padding_keeps_nothing_of_it(shape_may_vary: bool) -> None:
    layout = AnchorLayout(groups=1, rows=8, hidden=2, dtype="float32", page_tokens=8)
    pool = AnchorPool(layout, adds_residual=False)
    pool.allocate(2, torch.device("cpu"), "layer")
    padding = torch.tensor([-1, -1, -1, -1])
    pool.keep(0, torch.ones(4, 2), pool.rows_of(padding, shape_may_vary=shape_may_vary))
    assert not pool.read(np.arange(2)).any()


@dataclasses.dataclass
class Pass:
    """What of vLLM's forward context the pool looks at."""

    slot_mapping: Any


@pytest.mark.parametrize("adds_residual", [True, False])
def test_pool_sees_each_pass_with_slots_of_its_own(adds_residual: bool) -> None:
    layout = AnchorLayout(groups=2, rows=1, hidden=2, dtype="float32", page_tokens=4)
    pool = AnchorPool(layout, adds_residual)
    pool.observe(0, torch.ones(4, 2), None, Pass({"layer": torch.arange(4)}))  # no memory yet
    pool.allocate(3, torch.device("cpu"), "layer")
    slots = torch.arange(4)
    for page, value in ((0, 1.0), (2, 5.0)):
        context = Pass({"layer": slots + 4 * page})
        for group in range(2):
            hidden = torch.full((4, 2), value + group)
            pool.observe(group, hidden, torch.full((4, 2), 10.0), context)
    pool.observe(0, torch.full((4, 2), 9.0), None, Pass({}))  # a pass without slots: a replay
    extra = 10.0 if adds_residual else 0.0
    found = pool.read(np.arange(3))[:, :, 0, 0].tolist()
    assert found == [[1 + extra, 2 + extra], [0, 0], [5 + extra, 6 + extra]]


@pytest.mark.parametrize(("dtype", "is_exact"), [("float32", True), ("bfloat16", False)])
def test_stream_kept_in_float32_enters_the_norms_as_the_engine_s_own(
    dtype: str, is_exact: bool
) -> None:
    def norm(hidden: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        total = hidden.float() if residual is None else hidden.float() + residual.float()
        return total / total.pow(2).mean(-1, keepdim=True).sqrt()

    layout = AnchorLayout(groups=1, rows=4, hidden=256, dtype=dtype, page_tokens=4)
    pool = AnchorPool(layout, adds_residual=True)
    pool.allocate(1, torch.device("cpu"), "layer")
    dice = torch.Generator().manual_seed(3)
    hidden, residual = (torch.randn(4, 256, generator=dice).bfloat16() for _ in range(2))
    pool.keep(0, hidden, pool.rows_of(torch.arange(4), shape_may_vary=True), residual)
    entering = summands(pool.read(np.array([0]))[0, 0], torch.bfloat16)
    assert entering[0].dtype == torch.bfloat16
    error = (norm(*entering) - norm(hidden, residual)).abs().max().item()
    assert error < 1e-4 if is_exact else error > 1e-3
    carried = entering[0] if entering[1] is None else entering[0] + entering[1]
    assert torch.equal(carried, hidden + residual)  # what flows on past the norm


def test_pool_after_one_long_pass_holds_the_last_rows() -> None:
    layout = AnchorLayout(groups=1, rows=2, hidden=1, dtype="float32", page_tokens=8)
    pool = AnchorPool(layout, adds_residual=False)
    pool.allocate(8, torch.device("cpu"), "layer")
    slots = torch.arange(16, 16 + 3 * FEW_TOKENS)
    stream = slots.to(torch.float32).unsqueeze(1)
    pool.keep(0, stream, pool.rows_of(slots, shape_may_vary=True))
    found = pool.read(np.array([1, 2, 7])).flatten(1).tolist()
    assert found == [[0, 0], [22, 23], [62, 63]]
