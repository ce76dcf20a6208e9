"""The engine's side of the store: find a prefix and copy it in, hand new pages over.

::

    lookup --> window --> copy kv and anchors --> verify --> only then is any byte used
    pages that filled --> put, in batches of bounded size

Whatever goes wrong is a miss with a reason, counted; nothing here stops a request.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from anchorstore.client import Client
from anchorstore.errors import AnchorStoreError, UsageError, code_of
from anchorstore.keys import DIGEST_BYTES
from anchorstore.layout import AnchorLayout, KvLatentLayout, KvLayout
from engine_adapter.packing import Positions, kept_positions
from engine_adapter.strategy import ANCHOR, KV, Strategy

LINEAGE_MAX = 255
"""As a limit of a lookup: any lineage."""

PAGES_PER_PUT = 64

BlocksOf = Callable[[int, int], torch.Tensor]
"""(first page, stop page) -> blocks [pages, *layout shape] of a component."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix copied out of the store.

    Attributes:
        boundary_tokens: how far the store could resume, without the margin.
        resume_tokens: where this prefix ends.
        lineage: replays behind its bytes.
        kv: blocks [pages, *kv layout shape] of all its pages.
        positions: token positions [k] of the rows to replay.
        anchors: those rows, [stored groups, k, hidden].
    """

    boundary_tokens: int
    resume_tokens: int
    lineage: int
    kv: torch.Tensor
    positions: Positions
    anchors: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """No prefix, and why."""

    reason: str


class PageStore:
    """One engine's connection to the store, with the two layouts that it attached."""

    def __init__(
        self,
        client: Client,
        kv_layout: KvLayout | KvLatentLayout,
        anchor_layout: AnchorLayout,
        max_lineage: int | None,
    ) -> None:
        """`max_lineage`: the deepest lineage that a lookup accepts; None for any."""
        self.client = client
        self.counters: collections.Counter[str] = collections.Counter()
        self._kv_layout = kv_layout
        self._anchor_layout = anchor_layout
        self._max_lineage = LINEAGE_MAX if max_lineage is None else max_lineage

    def close(self) -> None:
        """Detach from the daemon."""
        self.client.close()

    # ---- find ----

    def find(self, tokens: Sequence[int], strategy: Strategy) -> Prefix | Miss:
        """The longest prefix of `tokens` that the store can resume, copied and verified."""
        found: Prefix | Miss
        try:
            found = self._find(tokens, strategy)
        except UsageError:
            raise
        except AnchorStoreError as error:
            found = Miss(code_of(error))
        self.counters["hit" if isinstance(found, Prefix) else f"miss_{found.reason}"] += 1
        return found

    def _find(self, tokens: Sequence[int], strategy: Strategy) -> Prefix | Miss:
        budget, needs = strategy.budget, strategy.needs()
        if not needs:
            return Miss("not_asked")
        pages = budget.askable_pages(len(tokens))
        if pages <= budget.margin_pages:
            return Miss("short_prompt")
        reason, hashes = self._hashes(tokens[: pages * budget.page_tokens], strategy)
        if reason:
            return Miss(reason)
        with self.client.lookup(
            hashes, needs, max_lineage=self._max_lineage, margin_pages=budget.margin_pages
        ) as window:
            if not window.hit:
                return Miss(window.miss)
            boundary = window.boundary_pages * budget.page_tokens
            resume = window.resume_pages * budget.page_tokens
            assert resume == budget.resume_tokens(boundary, len(tokens)), (boundary, resume)
            kv = _room(window.resume_pages, self._kv_layout)
            if len(needs) == 1:
                window.copy_into([kv])
                window.verify()
                positions, anchors = _nothing(self._anchor_layout)
            else:
                blocks = window.blocks(ANCHOR)
                copied = _room(len(blocks), self._anchor_layout)
                window.copy_into([kv, copied])
                window.verify()
                rows = strategy.replay_rows(resume, len(blocks))
                positions, anchors = _last_rows(
                    copied, blocks.first_page, rows, self._anchor_layout
                )
            return Prefix(boundary, resume, window.lineage, kv, positions, anchors)

    def _hashes(self, tokens: Sequence[int], strategy: Strategy) -> tuple[str, bytes]:
        """("", path hashes) of as many pages as one lookup takes, or (miss reason, b"")."""
        if self.client.root_digest is None:  # never attached: any call tries again
            with self.client.lookup(b"", strategy.needs()) as window:
                if self.client.root_digest is None:
                    return window.miss, b""
        limit = self.client.max_pages
        hashes = self.client.path_hashes(tokens)
        return "", hashes if limit is None else hashes[: limit * DIGEST_BYTES]

    # ---- save ----

    def save(
        self,
        tokens: Sequence[int],
        first_page: int,
        stop_page: int,
        kv_of: BlocksOf,
        anchors_of: BlocksOf,
        lineage: int,
    ) -> None:
        """Put pages [first, stop) of the sequence `tokens`."""
        hashes = self.client.path_hashes(tokens[: stop_page * self._kv_layout.page_tokens])
        if not hashes:
            self.counters["put_reason_unreachable"] += 1
            return
        batch = min(PAGES_PER_PUT, self.client.max_pages or PAGES_PER_PUT)
        for first in range(first_page, stop_page, batch):
            stop = min(first + batch, stop_page)
            outcome = self.client.put(
                hashes[(first - 1) * DIGEST_BYTES : first * DIGEST_BYTES] if first else None,
                first,
                hashes[first * DIGEST_BYTES : stop * DIGEST_BYTES],
                {
                    KV: list(kv_of(first, stop).contiguous()),
                    ANCHOR: list(anchors_of(first, stop).contiguous()),
                },
                lineage=lineage,
            )
            for kind in ("sealed", "known", "declined", "mismatched"):
                self.counters[f"put_{kind}"] += getattr(outcome, kind)
            if outcome.reason:
                self.counters[f"put_reason_{outcome.reason}"] += 1


def _room(pages: int, layout: AnchorLayout | KvLayout | KvLatentLayout) -> torch.Tensor:
    """Memory for the blocks of `pages` pages, [pages, *layout.shape]."""
    return torch.empty((pages, *layout.shape), dtype=getattr(torch, layout.dtype))


def _nothing(layout: AnchorLayout) -> tuple[Positions, torch.Tensor]:
    return np.empty(0, np.int64), _room(0, layout).reshape(layout.groups, 0, layout.hidden)


def _last_rows(
    blocks: torch.Tensor, first_page: int, rows: int, layout: AnchorLayout
) -> tuple[Positions, torch.Tensor]:
    """Positions [rows] and anchors [groups, rows, hidden] of the last `rows` kept rows."""
    pages = blocks.shape[0]
    start = pages * layout.rows - rows
    positions = kept_positions(first_page, pages, layout.rows, layout.page_tokens)[start:]
    flat = blocks.transpose(0, 1).reshape(layout.groups, pages * layout.rows, layout.hidden)
    return positions, flat[:, start:]
