"""The sealed blocks: one row each, chained per page.  Columns.

::

    page row        first_block --> block row --next--> block row --next--> 0
                                    kind kv             kind anchor
                                    segment, slot       segment, slot      in dram (segment 0: no)
                                    generation ...      generation ...
                                    cold                cold               in nvme (unit 0: no)

A page holds at most one block of each kind and at most `CHAIN_LIMIT` in all, so walking the
chains of a whole path is a few gathers.  A block that lost its page (removed, or replaced by a
more exact one) while a reader holds a lease is *detached*: page 0, slot kept, until the last
lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstore.server.core.columns import Columns, Table
from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.types import U8, U16, U32, U64
from anchorstore.transport.segment import PLACE, Places

CHAIN_LIMIT = 64
"""Blocks of one page.  Tensor parallelism over 16 ranks in three layouts fits."""


class Blocks(Table):
    """Blocks as rows.  Row 0 is no block: kind 0, lineage 0, next 0.

    Columns: page (row, 0 = detached), next (row), kind (id), place (segment id, slot, generation,
    even, and xxh3, side by side because answers name them together), lineage, leases (count: read
    leases, and copies under way to or from another tier).  35 bytes a block; `cold` (unit in the
    nvme tier) only where there is such a tier: 4 more.
    """

    COLUMNS = (
        ("page", np.uint32, 1),
        ("next", np.uint32, 1),
        ("kind", np.uint16, 1),
        ("place", PLACE, 1),
        ("lineage", np.uint8, 1),
        ("leases", np.uint32, 1),
    )
    page: U32
    next: U32
    kind: U16
    place: Places
    lineage: U8
    leases: U32
    cold: U32

    COLD_COLUMNS: Columns = (("cold", np.uint32, 1),)

    def __init__(self, more: Columns = ()) -> None:
        super().__init__(more)
        self.version = 0  # changes whenever a chain or a place changes
        self.in_dram_alone = 0  # blocks with a place in dram and none in nvme

    @property
    def segment(self) -> U32:
        """Of each row, as a view of `place`; so are the next three.  Index it with rows: take()
        would copy the whole column first."""
        return self.place["segment"]

    @property
    def slot(self) -> U32:
        return self.place["slot"]

    @property
    def generation(self) -> U32:
        return self.place["generation"]

    @property
    def checksum(self) -> U64:
        return self.place["checksum"]

    def find(self, index: PageIndex, pages: U32, kinds: Sequence[int]) -> list[U32]:
        """Per kind, each named once: the block row of each page row [n]; 0 where there is none."""
        found: dict[int, U32] = {}
        complete = 0
        current = index.first_block.take(pages)
        for _ in range(CHAIN_LIMIT + 1):
            kind_here = self.kind.take(current)
            first = int(kind_here[0]) if len(pages) else 0
            if np.count_nonzero(kind_here == first) == len(pages):  # alike on the whole path
                if first in kinds:
                    found[first] = current
                    complete += 1
                if not first or complete == len(kinds):
                    break
            else:
                for kind in kinds:
                    if kind not in found:
                        found[kind] = np.zeros(len(pages), np.uint32)
                    np.copyto(found[kind], current, where=kind_here == kind)
            current = self.next.take(current)
        else:
            raise AssertionError(f"blocks: a chain is longer than {CHAIN_LIMIT}")
        return [found[k] if k in found else np.zeros(len(pages), np.uint32) for k in kinds]

    def chain_lengths(self, index: PageIndex, pages: U32) -> U32:
        """Blocks of each page [n]."""
        lengths = np.zeros(len(pages), np.uint32)
        current = index.first_block.take(pages)
        while current.any():
            lengths += current != 0
            current = self.next.take(current)
        return lengths

    def of_pages(self, index: PageIndex, pages: U32) -> U32:
        """All blocks of these pages, in no particular order."""
        parts, current = [], index.first_block.take(pages)
        current = current[current != 0]
        while len(current):
            parts.append(current)
            current = self.next.take(current)
            current = current[current != 0]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint32)

    def attach(self, index: PageIndex, pages: U32, rows: U32) -> None:
        """Puts each block row [n] in front of the chain of its page row; pages are distinct."""
        self.version += 1
        self.page[rows] = pages
        self.next[rows] = index.first_block.take(pages)
        index.first_block[pages] = rows

    def detach(self, index: PageIndex, row: int) -> None:
        """Takes one block out of its page's chain."""
        self.version += 1
        page, after = int(self.page[row]), self.next[row]
        current = int(index.first_block[page])
        if current == row:
            index.first_block[page] = after
        else:
            while int(self.next[current]) != row:
                current = int(self.next[current])
                assert current, f"blocks: block {row} is not in the chain of page {page}"
            self.next[current] = after
        self.page[row] = 0
        self.next[row] = 0

    def unchain(self, index: PageIndex, pages: U32) -> U32:
        """Empties the chains of these pages; returns the blocks that were in them."""
        self.version += 1
        blocks = self.of_pages(index, pages)
        index.first_block[pages] = 0
        return blocks

    def detach_all(self, index: PageIndex, pages: U32, rows: U32) -> None:
        """Takes these blocks of these pages out of their chains: all at once where a page keeps
        none of its blocks."""
        if not len(rows):
            return
        blocks = self.of_pages(index, pages)
        if len(rows) == len(blocks):
            self.unchain(index, pages)
            return
        going = np.zeros(self.rows.top, np.bool_)
        going[rows] = True
        kept = np.unique(self.page.take(blocks[~going[blocks]]))
        self.unchain(index, pages[~np.isin(pages, kept)])
        for row in rows[np.isin(self.page.take(rows), kept)].tolist():
            self.detach(index, row)

    def live_rows(self) -> U32:
        """Rows of all blocks, detached ones too, ascending."""
        return np.flatnonzero(self.kind[: self.rows.top]).astype(np.uint32)

    def free_rows(self, rows: U32) -> None:
        """Ends these rows; their slots are the caller's business."""
        self.kind[rows] = 0
        self.page[rows] = 0
        self.rows.give(rows)
