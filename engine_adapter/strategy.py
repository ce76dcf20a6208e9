"""Reuse methods behind one small interface.

A strategy answers three questions about a prefix; the engine does the rest::

    needs        what must be in the store           SuffixReplay  kv of all pages + a window
    margin       how far below the boundary to       KvOnly        kv of all pages
                 resume                              NoReuse       nothing: ordinary prefill
    replay_rows  how many kept rows start the
                 linear states (0: from zero)

SuffixReplay is the product.  `dense_tail` is the same over pages that keep every row.  KvOnly is
the control that shows what anchors buy, `zero_state` (KvOnly without a margin) the one that shows
what a state is worth.  A method that brings its own state (checkpoints) would answer `needs` with
the state component and hand its bytes over where replay_rows says 0.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from anchorstore.client import NeedAll, NeedWindow
from engine_adapter.budget import Budget

KV, ANCHOR = 0, 1
"""Index of each component's layout in a session, in the order in which engines attach them."""

Need = NeedAll | NeedWindow


def anchor_window(layout: int, budget: Budget) -> NeedWindow:
    """The trailing pages of anchors that a replay within `budget` reads."""
    return NeedWindow(
        layout,
        ratio=budget.ratio,
        max_rows=budget.max_rows,
        rows_per_page=budget.rows_per_page,
    )


class Strategy(Protocol):
    """How a prefix is reused."""

    @property
    def name(self) -> str:
        """Short name, for metrics and tables."""

    @property
    def budget(self) -> Budget:
        """Margin and page arithmetic."""

    def needs(self) -> list[Need]:
        """What a boundary must have; empty where nothing is to be reused."""

    def replay_rows(self, resume_tokens: int, window_pages: int) -> int:
        """Kept rows to replay for a prefix of `resume_tokens`; 0 starts from a zero state."""


@dataclasses.dataclass(frozen=True, slots=True)
class SuffixReplay:
    """Exact kv; linear states replayed from the budget's last kept rows."""

    budget: Budget = Budget()
    name: str = "suffix_replay"

    def needs(self) -> list[Need]:
        return [NeedAll(KV, first_page=0), anchor_window(ANCHOR, self.budget)]

    def replay_rows(self, resume_tokens: int, window_pages: int) -> int:
        return self.budget.rows(resume_tokens, window_pages)


@dataclasses.dataclass(frozen=True, slots=True)
class KvOnly:
    """Exact kv; linear states from zero, so that only the margin's tokens fill them."""

    budget: Budget = Budget()
    name: str = "kv_only"

    def needs(self) -> list[Need]:
        return [NeedAll(KV, first_page=0)]

    def replay_rows(self, resume_tokens: int, window_pages: int) -> int:
        return 0


@dataclasses.dataclass(frozen=True, slots=True)
class NoReuse:
    """Ordinary prefill: the exact control."""

    budget: Budget = Budget()
    name: str = "exact"

    def needs(self) -> list[Need]:
        return []

    def replay_rows(self, resume_tokens: int, window_pages: int) -> int:
        return 0


def zero_state(budget: Budget) -> KvOnly:
    """KvOnly without a margin: what is lost when the state is."""
    return KvOnly(dataclasses.replace(budget, margin_tokens=0), "zero_state")


def dense_tail(max_rows: int, margin_tokens: int, page_tokens: int) -> SuffixReplay:
    """The last `max_rows` tokens of a prefix whose pages keep every row."""
    budget = Budget(page_tokens, 1.0, max_rows, margin_tokens, page_tokens)
    return SuffixReplay(budget, "dense_tail")
