"""Kv blocks of the store <-> vLLM's paged cache, whatever order that keeps its elements in.

A block's inner order is the attention backend's own affair (heads before tokens, keys beside
values, tiles for matrix units).  Instead of knowing them all, `learn_order` has the backend's own
kernel write numbers into a block and looks where each of them went::

    kernel writes   key[token][head][dim] = 1, 2, 3 ...     value = ... in base 256, a digit a pass
    order           [token][k, v][head][dim] -> offset in the block
    read, write     one gather or scatter a layer

The kernels write tokens to slots, so a page may lie in one kernel block or span several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from anchorstore.errors import ModelError
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

    def _where(self, page_slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        """Kernel block [pages * page_tokens, 1, 1, 1] and offsets [.., 2, heads, dim] of tokens."""
        slots = torch.from_numpy(token_slots(page_slots, self._page_tokens)).to(self.device)
        blocks = (slots // self._block_tokens).reshape(-1, 1, 1, 1)
        return blocks, self._order[slots % self._block_tokens]

    def read(self, page_slots: Slots) -> torch.Tensor:
        """Blocks [pages, layers, 2, page_tokens, heads, head_dim] of these pages, copied."""
        blocks, offsets = self._where(page_slots)
        shape = (len(page_slots), self._page_tokens, 2, self.heads, self.head_dim)
        layers = [view[blocks, offsets].reshape(shape) for view in self._views]
        return torch.stack(layers, 1).transpose(2, 3)

    def write(self, page_slots: Slots, pages: torch.Tensor) -> None:
        """The inverse of read()."""
        blocks, offsets = self._where(page_slots)
        pages = pages.to(self.device, self.dtype)
        for layer, view in enumerate(self._views):
            view[blocks, offsets] = pages[:, layer].transpose(1, 2).reshape(offsets.shape)
