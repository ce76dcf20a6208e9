"""Capture: kept rows of the residual stream, into a pool that lies beside the paged cache.

A tap sits before the first layer of every stored group and calls one custom operator, which
torch.compile and CUDA graphs carry through as they find it::

    layer(hidden, residual) -- tap --> anchorstore::capture(hidden, residual, group, owner)
                                           |  slots of the full-attention layers' cache
    pool  [page slot][group][row][hidden]  <-  rows whose token is among the last of its page

A page's anchors so live and die with the page's slots: no second allocator.  The operator says
that it changes `hidden`, which flows on; without that a compiler would drop it as useless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from anchorstore.layout import AnchorLayout
from engine_adapter.vllm.elements import elements
from engine_adapter.vllm.geometry import Slots

OWNER = "anchorstore.anchors"
"""Key of the pool in vLLM's table of things that a forward pass may look up."""

_LIBRARY = torch.library.Library("anchorstore", "FRAGMENT")


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a pass that are kept: of which tokens, and where; arrays in host memory.

    Where no shape may depend on data, of all tokens (None), and the places are tensors.
    """

    tokens: npt.NDArray[np.int64] | None
    pages: Any
    at: Any

    def of(self, stream: torch.Tensor) -> torch.Tensor:
        """Those rows of `stream` [tokens, hidden]."""
        if self.tokens is None:
            return stream[: len(self.pages)]
        return torch.from_numpy(elements(stream)[self.tokens]).view(stream.dtype)


FEW_TOKENS = 16
"""Up to here a plain loop is the fastest way to see that nothing is kept: most decode steps."""

NO_ROWS = Rows(*(np.empty(0, np.int64) for _ in range(3)))


def summands(stream: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`stream` [tokens, hidden] as layers take it: itself, or two of `dtype` that add up to it.

    vLLM's norms work on that sum before it is rounded (0.32, ir/ops/layernorm.py); a stream that is
    kept in more bits than the model's is that sum.
    """
    if stream.dtype == dtype:
        return stream, None
    rounded = stream.to(dtype)
    return (stream - rounded).to(dtype), rounded


class AnchorPool:
    """Anchors of every page slot of one worker; without memory until `allocate`."""

    def __init__(self, layout: AnchorLayout, adds_residual: bool) -> None:
        """`adds_residual`: whether the stream is the sum of a layer's two arguments."""
        self.layout, self.adds_residual = layout, adds_residual
        self._pool: torch.Tensor | None = None
        self._on_host: Any = None  # the same, where it lies there
        self._slots_of = ""
        self._context: Any = None
        self._rows: Rows | None = None

    def allocate(self, page_slots: int, device: torch.device, attention_layer: str) -> None:
        """Memory for so many pages, and one more that takes the rows that are not kept."""
        shape = (page_slots + 1, *self.layout.shape)
        self._pool = torch.zeros(shape, dtype=getattr(torch, self.layout.dtype), device=device)
        self._on_host = elements(self._pool)
        self._slots_of = attention_layer

    def read(self, page_slots: Slots) -> torch.Tensor:
        """Anchor blocks [pages, groups, rows, hidden], copied."""
        assert self._pool is not None, "read before it was allocated"
        return self._pool[torch.from_numpy(page_slots).to(self._pool.device)]

    def rows_of(self, slots: torch.Tensor, *, shape_may_vary: bool) -> Rows:
        """Which of the tokens at `slots` are kept, and where.

        Where no shape may depend on data (a graph records what follows) all of them go somewhere,
        those that are not kept to the page that nobody reads.
        """
        assert self._pool is not None
        page_tokens = self.layout.page_tokens
        first = page_tokens - self.layout.rows  # token of a page whose row is the first kept one
        if shape_may_vary:  # in host memory, where less than torch will do
            if len(slots) <= FEW_TOKENS and not any(
                slot >= 0 and slot % page_tokens >= first for slot in slots.tolist()
            ):
                return NO_ROWS
            at = slots.numpy()
            kept = np.flatnonzero((at >= 0) & (at % page_tokens >= first))
            pages, token = np.divmod(at[kept], page_tokens)
            return Rows(kept, pages, token - first)
        place = slots % page_tokens - first
        is_kept = (slots >= 0) & (place >= 0)
        nobody = self._pool.shape[0] - 1
        return Rows(None, torch.where(is_kept, slots // page_tokens, nobody), place.clamp(min=0))

    def keep(
        self, group: int, stream: torch.Tensor, rows: Rows, addend: torch.Tensor | None = None
    ) -> None:
        """Keep `rows` of `stream` [tokens, hidden] (and `addend`, the sum of both), what enters
        stored group `group`."""
        assert self._pool is not None
        taken = rows.of(stream).to(self._pool.dtype)
        if addend is not None:
            taken = (taken + rows.of(addend)).to(self._pool.dtype)
        if rows.tokens is None:
            self._pool[rows.pages, group, rows.at] = taken
        else:
            self._on_host[rows.pages, group, rows.at] = elements(taken)

    def observe(
        self, group: int, hidden: torch.Tensor, residual: torch.Tensor | None, context: Any
    ) -> None:
        """What the operator does: nothing before there is memory, or outside a real pass."""
        if self._pool is None:
            return
        if context is not self._context:  # once a pass; its slots are the same for every group
            slots = context.slot_mapping
            is_real = isinstance(slots, dict) and self._slots_of in slots
            self._rows = None
            if is_real:
                own = slots[self._slots_of]
                self._rows = self.rows_of(own, shape_may_vary=not hidden.is_cuda)
            self._context = context
        rows = self._rows
        if rows is not None and len(rows.pages):
            self.keep(group, hidden, rows, residual if self.adds_residual else None)


def _capture(hidden: torch.Tensor, residual: torch.Tensor | None, group: int, owner: str) -> None:
    from vllm.forward_context import get_forward_context

    context = get_forward_context()
    pool = context.no_compile_layers.get(owner)
    if pool is not None:
        pool.observe(group, hidden, residual, context)


def _capture_nothing(
    hidden: torch.Tensor, residual: torch.Tensor | None, group: int, owner: str
) -> None:
    """What a compiler sees: no result, no shape."""


_LIBRARY.define("capture(Tensor(a!) hidden, Tensor? residual, int group, str owner) -> ()")
_LIBRARY.impl("capture", _capture, "CPU")
_LIBRARY.impl("capture", _capture, "CUDA")
torch.library.register_fake("anchorstore::capture", _capture_nothing)


def tap(layers: Sequence[nn.Module]) -> None:
    """Puts a tap before each of `layers`, the first of every stored group in order."""
    for group, layer in enumerate(layers):
        layer.register_forward_pre_hook(_hook(group), with_kwargs=True)


def _hook(group: int) -> Any:
    def observe(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        residual = kwargs.get("residual")
        if torch.compiler.is_compiling():
            torch.ops.anchorstore.capture(hidden, residual, group, OWNER)
        else:  # nobody who would drop it: no need to go through torch's dispatcher
            _capture(hidden, residual, group, OWNER)

    return observe
