"""Kv blocks of the store <-> vLLM's paged cache, whatever order that keeps its elements in.

A block's inner order is the attention backend's own affair (heads before tokens, keys beside
values, tiles for matrix units).  Instead of knowing them all, `learn_order` has the backend's own
kernel write numbers into a block and looks where each of them went::

    kernel writes   key[token][head][dim] = 1, 2, 3 ...     value = ... in base 256, a digit a pass
    order           [token][k, v][head][dim] -> offset in the block
    read, write     where each step of token, head and dim is as long everywhere, whole pages of
                    keys and of values by those strides; else element by element

The kernels write tokens to slots, so a page may lie in one kernel block or span several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from anchorstore.errors import ModelError
from engine_adapter.vllm.elements import elements, index_for
from engine_adapter.vllm.geometry import Slots, token_slots

Writer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""(key, value [tokens, heads, dim], slots [tokens]): the backend's own kernel for one layer."""

DIGIT = 256  # whole numbers up to here are exact in bfloat16


def block_view(cache: torch.Tensor) -> torch.Tensor:
    """A layer's cache as [kernel blocks, elements of one], sharing memory."""
    inner = cache[0].numel()
    last = sum(
        (size - 1) * stride for size, stride in zip(cache.shape, cache.stride(), strict=True)
    )
    last -= (cache.shape[0] - 1) * cache.stride(0)
    if last != inner - 1:
        raise ModelError(f"vllm: a cache of strides {cache.stride()} has gaps inside its blocks")
    return cache.as_strided((cache.shape[0], inner), (cache.stride(0), 1))


def learn_order(
    cache: torch.Tensor, write: Writer, block_tokens: int, heads: int, head_dim: int
) -> torch.Tensor:
    """Offsets [block_tokens, 2, heads, head_dim] inside a kernel block; block 0 is scribbled on.

    ModelError where the kernel does not keep every element as it is (a quantised cache).
    """
    shape = (block_tokens, 2, heads, head_dim)
    count = block_tokens * 2 * heads * head_dim
    numbers = torch.arange(1, count + 1).reshape(shape)
    slots = torch.arange(block_tokens, device=cache.device)
    view = block_view(cache)
    found = torch.zeros(view.shape[1], dtype=torch.int64)
    scale = 1
    while scale <= count:
        digits = (numbers // scale % DIGIT).to(cache.device, cache.dtype)
        view[0].zero_()
        write(digits[:, 0].contiguous(), digits[:, 1].contiguous(), slots)
        found += view[0].cpu().to(torch.int64) * scale
        scale *= DIGIT
    view[0].zero_()
    order = torch.full((count + 1,), -1, dtype=torch.int64)
    order[found.clamp(0, count)] = torch.arange(len(found))
    if int(order[1:].min()) < 0:
        raise ModelError("vllm: the attention backend does not store keys and values as they are")
    return order[1:].reshape(shape).to(cache.device)


def even_steps(order: torch.Tensor) -> tuple[int, int, int, int] | None:
    """Of `order` [tokens, heads, dim] the first offset and what a step of a token, a head, an
    element adds to it; None where that differs from place to place (tiles)."""
    first = int(order[0, 0, 0])
    steps, expected = [], torch.tensor(first)
    for axis, size in enumerate(order.shape):
        step = int(order.select(axis, min(1, size - 1))[0, 0]) - first
        along = [size if each == axis else 1 for each in range(3)]
        expected = expected + step * torch.arange(size).reshape(along)
        steps.append(step)
    is_even = min(steps) >= 0 and torch.equal(order.cpu(), expected)
    return (first, steps[0], steps[1], steps[2]) if is_even else None


class PagedKv:
    """The key-value cache of all full-attention layers of one worker."""

    def __init__(
        self,
        caches: Sequence[torch.Tensor],
        order: torch.Tensor,
        page_tokens: int,
    ) -> None:
        """`caches`: a layer's cache each, in the model's order, all of one shape."""
        self._views = [block_view(cache) for cache in caches]
        self._order = order
        self._block_tokens = order.shape[0]
        self._page_tokens = page_tokens
        self.heads, self.head_dim = order.shape[2], order.shape[3]
        self.dtype, self.device = caches[0].dtype, caches[0].device
        self._unit = math.gcd(self._block_tokens, page_tokens)  # tokens, of one block and one page
        self._units = self._cut()

    # ---- where steps are even: whole units at once ----

    def _cut(self) -> list[list[torch.Tensor]] | None:
        """Of each layer its keys and its values [kernel blocks, units, unit, heads, head_dim],
        sharing the cache's memory; None where their steps are not even."""
        both = [even_steps(self._order[:, part]) for part in range(2)]
        units, cut = self._block_tokens // self._unit, []
        for view in self._views:
            parts = []
            for steps in both:
                if steps is None:
                    return None
                first, token, head, element = steps
                shape = (len(view), units, self._unit, self.heads, self.head_dim)
                strides = (view.stride(0), self._unit * token, token, head, element)
                parts.append(view.as_strided(shape, strides, view.storage_offset() + first))
            cut.append(parts)
        return cut

    def _places(self, page_slots: Slots) -> tuple[Any, Any]:
        """Kernel blocks and units in them [pages, units of a page], to index what was cut."""
        count = self._page_tokens // self._unit
        units = page_slots[:, None] * count + np.arange(count)
        places = np.divmod(units, self._block_tokens // self._unit)
        blocks, within = (index_for(self._views[0], each) for each in places)
        return blocks, within

    # ---- where they are not: element by element ----

    def _where(self, page_slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        """Kernel block [pages * page_tokens, 1, 1, 1] and offsets [.., 2, heads, dim] of tokens."""
        slots = torch.from_numpy(token_slots(page_slots, self._page_tokens)).to(self.device)
        blocks = (slots // self._block_tokens).reshape(-1, 1, 1, 1)
        return blocks, self._order[slots % self._block_tokens]

    # ---- both ----

    def read(self, page_slots: Slots) -> torch.Tensor:
        """Blocks [pages, layers, 2, page_tokens, heads, head_dim] of these pages, copied."""
        pages = self._room(len(page_slots))
        if self._units is not None:
            places, target = self._places(page_slots), elements(self._in_units(pages))
            for layer, parts in enumerate(self._units):
                for part, view in enumerate(parts):
                    target[:, layer, part] = elements(view)[places]
            return pages
        blocks, offsets = self._where(page_slots)
        shape = (len(page_slots), self._page_tokens, 2, self.heads, self.head_dim)
        for layer, view in enumerate(self._views):
            pages[:, layer] = view[blocks, offsets].reshape(shape).transpose(1, 2)
        return pages

    def write(self, page_slots: Slots, pages: torch.Tensor) -> None:
        """The inverse of read()."""
        pages = pages.to(self.device, self.dtype)
        if self._units is not None:
            places, source = self._places(page_slots), elements(self._in_units(pages))
            for layer, parts in enumerate(self._units):
                for part, view in enumerate(parts):
                    elements(view)[places] = source[:, layer, part]
            return
        blocks, offsets = self._where(page_slots)
        for layer, view in enumerate(self._views):
            view[blocks, offsets] = pages[:, layer].transpose(1, 2).reshape(offsets.shape)

    def _room(self, pages: int) -> torch.Tensor:
        shape = (pages, len(self._views), 2, self._page_tokens, self.heads, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _in_units(self, pages: torch.Tensor) -> torch.Tensor:
        """[pages, layers, 2, units, unit, heads, head_dim], sharing memory."""
        units = (self._page_tokens // self._unit, self._unit)
        return pages.view(*pages.shape[:3], *units, *pages.shape[4:])
