"""Goal: pages come out of a paged cache as they went in, whatever the order inside its blocks, and
the pool keeps exactly the last rows of each page.
Method: caches in three layouts behind kernels written here; a pool against plain indexing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from anchorstore.errors import ModelError
from anchorstore.layout import AnchorLayout
from engine_adapter.vllm.paged import PagedKv, learn_order
from engine_adapter.vllm.taps import AnchorPool

BLOCKS, TOKENS, HEADS, DIM, PAGE = 4, 32, 3, 8, 16

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


@pytest.mark.parametrize("kernel", [heads_first, keys_apart, swapped])
def test_pages_written_by_a_kernel_are_read_and_written_back(kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(0)
    caches = [torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIM, dtype=torch.bfloat16) for _ in range(2)]
    order = learn_order(caches[0], lambda *each: kernel(caches[0], *each), TOKENS, HEADS, DIM)
    assert not caches[0].any(), "what was scribbled is wiped"
    paged = PagedKv(caches, order, PAGE)
    wanted = torch.randn(
        (2, 2, 2, PAGE, HEADS, DIM), generator=generator, dtype=torch.float32
    ).bfloat16()
    slots = torch.tensor([2 * PAGE + t for t in range(PAGE)] + [7 * PAGE + t for t in range(PAGE)])
    for layer, cache in enumerate(caches):
        key, value = (wanted[:, layer, part].reshape(-1, HEADS, DIM) for part in (0, 1))
        kernel(cache, key, value, slots)
    page_slots = np.array([2, 7])
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
def test_pool_after_passes_of_any_size_holds_the_last_rows(rows: int) -> None:
    layout = AnchorLayout(groups=2, rows=rows, hidden=5, dtype="float32", page_tokens=8)
    pool = AnchorPool(layout, adds_residual=False)
    pool.allocate(6, torch.device("cpu"), "layer")
    slots = torch.tensor([*range(16, 24), *range(40, 48), 8, 9])  # page slots 2, 5, and part of 1
    stream = torch.arange(len(slots) * 5, dtype=torch.float32).reshape(len(slots), 5)
    for first, stop in ((0, 5), (5, 6), (6, len(slots))):
        for group in range(2):
            pool.keep(group, stream[first:stop] + 1000 * group, slots[first:stop])
    pages = pool.read(np.array([2, 5]))
    for page, start in enumerate((0, 8)):
        kept = stream[start + 8 - rows : start + 8]
        assert torch.equal(pages[page, 0], kept)
        assert torch.equal(pages[page, 1], kept + 1000)


def test_pool_given_padding_keeps_nothing_of_it() -> None:
    layout = AnchorLayout(groups=1, rows=8, hidden=2, dtype="float32", page_tokens=8)
    pool = AnchorPool(layout, adds_residual=False)
    pool.allocate(2, torch.device("cpu"), "layer")
    pool.keep(0, torch.ones(4, 2), torch.tensor([-1, -1, -1, -1]))
    assert not pool.read(np.arange(2)).any()
