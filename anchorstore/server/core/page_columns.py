"""Columns of pages that only some policies read, and those that are worked out when asked for.

::

    stored    uses, created, priority, sealed_second        in the index, only where a policy or an
                                                            admission reads them; onward, where
                                                            runs are known (runs.py); holders,
                                                            let_go, where engines are mirrored
    derived   bytes (of a page's slots in the tier), segment_pages

A page is *born* when its row is made; a use counts when a lookup hits it or a writer offers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.columns import Columns
from anchorstore.server.core.engines import LetGo
from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.policies import Moment, PrivatePages
from anchorstore.server.core.runs import Runs
from anchorstore.server.core.types import U16, U32, U64

if TYPE_CHECKING:
    from anchorstore.server.core.tier import Tier

STORED: dict[str, npt.DTypeLike] = {
    "uses": np.uint16,
    "created": np.uint64,
    "priority": np.int16,
    "sealed_second": np.uint32,
    "onward": np.uint32,
    "holders": np.uint64,
    "let_go": np.uint8,
}
NOTHING: U32 = np.zeros(0, np.uint32)
USES_MAX = np.uint16(2**16 - 1)


def columns_for(names: Iterable[str]) -> Columns:
    """The stored ones among these."""
    return tuple((name, STORED[name], 1) for name in sorted(set(names) & set(STORED)))


class PageHistory:
    """Keeps the stored columns of an index up to date, as far as it has them."""

    def __init__(self, index: PageIndex) -> None:
        self._index = index
        self._has = {name for name, _, _ in index.columns} & set(STORED)
        self._runs = Runs(index) if "onward" in self._has else None

    @property
    def counts_uses(self) -> bool:
        """Whether anybody reads how often a page was used."""
        return "uses" in self._has

    def born(self, pages: U32, now: Moment, priority: int) -> None:
        """New page rows."""
        values = {
            "uses": 1,
            "created": now.tick,
            "priority": priority,
            "sealed_second": int(max(0.0, now.seconds)),
            "onward": 0,
            "holders": 0,
            "let_go": LetGo.NOT,
        }
        for name in self._has:
            getattr(self._index, name)[pages] = values[name]

    def used(self, pages: U32) -> None:
        """One use each, of distinct pages; 0 for none."""
        if self.counts_uses:
            uses: U16 = self._index.uses  # type: ignore[attr-defined]
            uses[pages] = np.minimum(uses.take(pages), USES_MAX - 1) + np.uint16(1)

    @property
    def follows_engines(self) -> bool:
        """Whether it is known which engines hold a page."""
        return "holders" in self._has

    def warmed(self, pages: U32) -> None:
        """These pages [n] are used, by whomever: 0 for none."""
        if self.follows_engines:
            self._index.let_go[pages] = LetGo.NOT

    def raised(self, pages: U32, priority: int) -> None:
        """A writer with this priority has offered these pages."""
        if "priority" in self._has:
            column: npt.NDArray[np.int16] = self._index.priority  # type: ignore[attr-defined]
            column[pages] = np.maximum(column.take(pages), np.int16(priority))

    def stored_together(self, pages: U32) -> None:
        """Pages that one seal has just made, each behind the one before it, but for gaps."""
        if self._runs is not None:
            gaps = np.flatnonzero(np.diff(self._index.page.take(pages)) != 1) + 1
            for run in np.split(pages, gaps):
                self._runs.grow(run)

    def cut(self, path: U32) -> U32:
        """A path [n], 0 for holes, is used: what is left of the run in which it ends counts as
        used just before; in order."""
        if self._runs is None or not path.any():
            return NOTHING
        return self._runs.cut(int(path[np.flatnonzero(path)[-1]]))

    def gone(self, pages: U32) -> None:
        """These pages are about to leave the index."""
        if self._runs is not None:
            deepest_first = pages[np.argsort(self._index.page.take(pages))[::-1]]
            for page in deepest_first.tolist():
                self._runs.forget(page, int(self._index.parent[page]))


class TierColumns:
    """The page table as a policy sees it in one tier: the index's columns, and the derived ones."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.bytes = PageBytes(tier)
        self.segment_pages = PrivatePages(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier.index, name)

    @property
    def children(self) -> U32:
        """Per page row: linked pages that are in the tier."""
        return self._tier.children


class PageBytes:
    """Per page row: bytes of its slots in the tier."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def __getitem__(self, rows: U32) -> U64:
        tier = self._tier
        found = np.zeros(len(rows), np.uint64)
        current = tier.index.first_block.take(rows)
        while current.any():
            sizes = tier.slot_bytes_of_kind.take(tier.blocks.kind.take(current))
            found += np.where(tier.holds(current), sizes, np.uint64(0))
            current = tier.blocks.next.take(current)
        return found

    def item(self, row: int) -> int:
        """Of one page."""
        tier, table, size = self._tier, self._tier.blocks, 0
        block = tier.index.first_block.item(row)
        while block:
            if tier.holds_one(block):
                size += tier.slot_bytes_of_kind.item(table.kind.item(block))
            block = table.next.item(block)
        return size
