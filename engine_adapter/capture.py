"""Capture: the kept rows of the residual stream, from a real forward pass into anchor blocks.

A tap sits before the first layer of every stored group.  While a recorder is attached, each
forward pass of T tokens hands it [T, hidden] a group; it keeps the last rows of each page::

    forward of T tokens from position p, any T: a whole prompt, a chunk, one decoded token
       group 1 [T, hidden] --+
       group 2 [T, hidden] --+--> rows with position % page >= page - rows
                             v
    pages    [page][stored group][row][hidden]     a page is ready once its last token has passed

Blocks come out as bytes in the layout's order and dtype.  Nothing here knows an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from anchorstore.layout import AnchorLayout
from engine_adapter.packing import kept_positions


class AnchorRecorder:
    """Keeps the anchors of one sequence's pages until somebody takes them.

    `position` is the number of tokens that have passed; it starts on a page boundary.
    """

    def __init__(self, layout: AnchorLayout, position: int = 0) -> None:
        """`position` must be a page multiple: earlier pages are somebody else's."""
        assert position % layout.page_tokens == 0, position
        self.layout = layout
        self.position = position
        self._first_page = position // layout.page_tokens
        self._pages = torch.empty((0, *layout.shape), dtype=getattr(torch, layout.dtype))
        self._observed = 0

    @property
    def first_page(self) -> int:
        """Oldest page still held."""
        return self._first_page

    @property
    def ready_pages(self) -> int:
        """Pages, counted from the start of the sequence, whose last token has passed."""
        return self.position // self.layout.page_tokens

    def begin(self, tokens: int) -> None:
        """A forward pass of `tokens` tokens starts: make room for the pages it touches."""
        assert tokens > 0 and self._observed == 0, (tokens, self._observed)
        last_page = (self.position + tokens - 1) // self.layout.page_tokens
        missing = last_page + 1 - self._first_page - len(self._pages)
        if missing > 0:
            room = self._pages.new_zeros((missing, *self.layout.shape))
            self._pages = torch.cat([self._pages, room]) if len(self._pages) else room

    def observe(self, group: int, hidden: torch.Tensor) -> None:
        """Keep rows of `hidden` [T, hidden], what enters stored group `group` in this pass."""
        page_tokens, rows = self.layout.page_tokens, self.layout.rows
        tokens = hidden.shape[0]
        first = self.position // page_tokens
        last = (self.position + tokens - 1) // page_tokens
        kept = kept_positions(first, last + 1 - first, rows, page_tokens)
        kept = kept[(kept >= self.position) & (kept < self.position + tokens)]
        self._observed += 1
        if len(kept) == 0:
            return
        pages = torch.from_numpy(kept // page_tokens - self._first_page)
        slots = torch.from_numpy(kept % page_tokens - (page_tokens - rows))
        taken = hidden[torch.from_numpy(kept - self.position)]
        self._pages[pages, group, slots] = taken.to(self._pages.dtype)

    def end(self, tokens: int) -> None:
        """The pass of `tokens` tokens is done: every stored group must have been seen once."""
        assert self._observed == self.layout.groups, (self._observed, self.layout.groups)
        self._observed = 0
        self.position += tokens

    def pages(self, first_page: int, stop_page: int) -> torch.Tensor:
        """Anchor blocks [pages, stored group, row, hidden] of ready pages [first, stop)."""
        assert self._first_page <= first_page <= stop_page <= self.ready_pages, (
            self._first_page,
            first_page,
            stop_page,
            self.ready_pages,
        )
        return self._pages[first_page - self._first_page : stop_page - self._first_page]

    def forget(self, stop_page: int) -> None:
        """Drop the pages before `stop_page`: they are stored, or nobody will store them."""
        assert self._first_page <= stop_page <= self.ready_pages, (stop_page, self.ready_pages)
        self._pages = self._pages[stop_page - self._first_page :].clone()
        self._first_page = stop_page


class ResidualTap:
    """Forward pre-hooks on the first layer of each stored group, feeding one recorder at a time."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """`layers`: for each stored group, in order, its first layer."""
        self._recorder: AnchorRecorder | None = None
        self._handles = [
            layer.register_forward_pre_hook(self._hook(group), with_kwargs=True)
            for group, layer in enumerate(layers)
        ]

    def _hook(self, group: int) -> Any:
        def observe(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._recorder is not None:
                hidden = args[0] if args else kwargs["hidden_states"]
                assert hidden.shape[0] == 1, f"one sequence at a time, not {hidden.shape[0]}"
                self._recorder.observe(group, hidden[0].detach())

        return observe

    @contextmanager
    def into(self, recorder: AnchorRecorder, tokens: int) -> Iterator[None]:
        """The forward pass inside carries `tokens` tokens of the recorder's sequence."""
        assert self._recorder is None, "a forward pass is already being recorded"
        recorder.begin(tokens)
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None
        recorder.end(tokens)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
