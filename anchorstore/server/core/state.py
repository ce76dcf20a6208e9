"""The state of the store, and how blocks and pages leave it.

::

    Registry (sessions, namespaces, kinds)      Leases      Deadlines of reservations
          |                                        |
    PageIndex --first_block--> Blocks --segment, slot--> Pool --> Slab
          ^                                        |
          +------------- LeafQueues (policy) ------+

A block is in exactly one of these conditions::

    writing     a ticket holds its slot; no row, nobody can see it         -> sealed | gone
    sealed      in its page's chain                                        -> detached | gone
    detached    out of the chain (removed, replaced), kept by leases       -> gone
    gone        slot free

Everything that happens is noted in a ring of 256 events; a broken invariant stops the daemon with
that history, because a cache may always forget but must never lie.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorstore.server.core.blocks import Blocks
from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.leases import Deadlines, Leases
from anchorstore.server.core.policy import LeafQueues
from anchorstore.server.core.pool import Pool
from anchorstore.server.core.sessions import Kind, NamespaceRecord, Registry, Reservation, Session
from anchorstore.server.core.types import U8, U32, Positions, StoreConfig

EVENTS_KEPT = 256
PAGES_EXPECTED_MAX = 2**20
BLOCKS_EXPECTED_MAX = 2**21


@dataclasses.dataclass(eq=False)
class Ticket:
    """Blocks between begin_seal and finish_seal.  Arrays [n], one element a copy.

    `pages` are page positions in the reservation, `layouts` positions among its kinds,
    `generations` odd.  A cancelled ticket's slots rest until finish_seal, since the mover may
    still write to them.
    """

    ticket_id: int
    session: Session
    reservation: Reservation
    results: bytearray
    request_index: U32
    pages: U32
    layouts: U8
    segment_ids: U32
    slots: U32
    generations: U32
    cancelled: bool = False


class State:
    """Everything that the core knows.  Only the core's own functions change it."""

    def __init__(self, config: StoreConfig, secret: bytes) -> None:
        self.config = config
        self.index = PageIndex(secret)
        self.blocks = Blocks()
        self.pool = Pool(config)
        self.registry = Registry(config, self.pool)
        self.leases = Leases(config.read_ttl_seconds)
        self.reservations: Deadlines[int] = Deadlines(config.write_ttl_seconds)
        self.reservation_by_id: dict[int, Reservation] = {}
        self.reserved_pages = 0  # of all of them
        self.tickets: dict[int, Ticket] = {}
        self.detached: dict[int, NamespaceRecord] = {}  # block row -> who pays for it
        self.queues = LeafQueues()
        self.counters: collections.Counter[str] = collections.Counter()
        self.tick = 1
        self.next_id = 1  # reservations and tickets
        self._events: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=EVENTS_KEPT)

    def expect(self, kinds: Sequence[Kind]) -> int:
        """Makes the tables, while they are nearly empty, as long as the pool can fill them with
        these kinds: growing later would hold up every request for up to half a second.  Memory
        that no row has touched costs nothing.  Returns how many blocks those are."""
        slots = [
            self.pool.allowed_segments(kind.component) * self.pool.shape(kind.slot_bytes).slots
            for kind in kinds
        ]
        pages = min(max(slots), PAGES_EXPECTED_MAX)
        if pages > 8 * len(self.index):
            self.index.expect(pages)
            self.blocks.expect(min(sum(slots), BLOCKS_EXPECTED_MAX))
        return sum(slots)

    # ---- history ----

    def note(self, *event: Any) -> None:
        """Keeps an event for the story of a broken invariant."""
        self._events.append(event)

    def story(self) -> str:
        """The last events, oldest first."""
        return "\n".join(" ".join(map(str, event)) for event in self._events)

    def ensure(self, holds: bool, what: str) -> None:
        """Stops with the history where an invariant does not hold."""
        if not holds:
            raise AssertionError(f"{what}\nlast events:\n{self.story()}")

    def new_id(self) -> int:
        """An id for a reservation or ticket; never reused in a boot."""
        self.next_id += 1
        return self.next_id - 1

    # ---- blocks leave ----

    def slot_bytes_of(self, blocks: U32) -> int:
        """Bytes of the slots of these blocks."""
        kinds = self.blocks.kind.take(blocks)
        return int(self.registry.slot_bytes_of_kind.take(kinds).sum())

    def unlease(self, blocks: Positions) -> None:
        """Ends one lease on each block [n], distinct; detached ones without another lease go."""
        table = self.blocks
        counts = table.leases.take(blocks)
        self.ensure(np.count_nonzero(counts) == len(counts), "a lease ends on a block without one")
        table.leases[blocks] = counts - np.uint32(1)
        if self.detached:
            last = blocks[(counts == 1) & (table.page.take(blocks) == 0)]
            for row in last.tolist():
                self._free(np.array([row], np.uint32), self.detached.pop(row))

    def _free(self, blocks: U32, record: NamespaceRecord) -> None:
        """Gives the slots back; the blocks are out of their chains and belong to `record`."""
        table = self.blocks
        self.ensure(not table.leases.take(blocks).any(), "a leased block is freed")
        record.used_bytes -= self.slot_bytes_of(blocks)
        self.ensure(record.used_bytes >= 0, f"{record.namespace.model}: used bytes below 0")
        self.pool.give(table.segment.take(blocks), table.slot.take(blocks))
        kinds, counts = np.unique(table.kind.take(blocks), return_counts=True)
        table.free_rows(blocks)
        for kind_id, count in zip(kinds.tolist(), counts.tolist(), strict=True):
            self.lower_kind(self.registry.by_kind_id[kind_id], count)
        self.registry.forget_namespace_if_idle(record)

    def lower_kind(self, kind: Kind, count: int) -> None:
        """`count` blocks of the kind are gone."""
        kind.blocks -= count
        self.ensure(kind.blocks >= 0, f"kind {kind.kind_id}: fewer than 0 blocks")
        self.registry.forget_kind_if_idle(kind)

    def _drop(self, blocks: U32, record: NamespaceRecord) -> int:
        """Unchained blocks go; leased ones are kept detached.  Returns how many those are."""
        leased = self.blocks.leases.take(blocks) != 0
        kept = blocks[leased]
        self.blocks.page[kept] = 0
        self.blocks.next[kept] = 0
        for row in kept.tolist():
            self.detached[row] = record
        if len(kept):
            self.pool.withdraw(self.blocks.segment.take(kept), self.blocks.slot.take(kept))
        if len(kept) < len(blocks):
            self._free(blocks[~leased], record)
        return len(kept)

    def forget_block(self, row: int) -> None:
        """Takes one block out of its page, and the page with it if nothing is left there."""
        page = int(self.blocks.page[row])
        record = self.registry.by_namespace_id[int(self.index.namespace[page])]
        self.blocks.detach(self.index, row)
        self._drop(np.array([row], np.uint32), record)
        if not self.index.first_block[page] and not self.index.children[page]:
            chosen: list[int] = []
            self.unlink_leaf(page, chosen)
            self.forget_unlinked(chosen)

    # ---- pages leave ----

    def unlink_leaf(self, page: int, chosen: list[int]) -> None:
        """Unlinks a leaf from its parent and adds it to `chosen`; entries above it that have
        neither blocks nor children now go the same way."""
        index = self.index
        while True:
            chosen.append(page)
            parent = int(index.parent[page])
            if not parent:
                return
            index.parent[page] = 0
            index.children[parent] -= np.uint32(1)
            if index.children[parent]:
                return
            if index.first_block[parent]:
                self.queues.announce(self, parent)
                return
            page = parent

    def forget_unlinked(self, pages: list[int]) -> tuple[int, int]:
        """Ends pages that `unlink_leaf` chose.  Returns blocks gone and, of those, kept by
        leases."""
        rows = np.array(pages, np.uint32)
        gone = kept = 0
        owners = self.index.namespace.take(rows)
        for namespace_id in np.unique(owners).tolist():
            record = self.registry.by_namespace_id[namespace_id]
            mine = rows[owners == namespace_id]
            blocks = self.blocks.unchain(self.index, mine)
            self.index.remove(mine)
            record.pages -= len(mine)
            gone += len(blocks)
            kept += self._drop(blocks, record)
            self.registry.forget_namespace_if_idle(record)
        return gone, kept

    def forget_pages(self, pages: U32) -> tuple[int, int]:
        """Takes every block of these pages; entries that others continue stay, as holes.  Returns
        blocks gone and, of those, kept by leases."""
        index = self.index
        gone = kept = 0
        owners = index.namespace.take(pages)
        for namespace_id in np.unique(owners).tolist():
            record = self.registry.by_namespace_id[namespace_id]
            mine = pages[owners == namespace_id]
            blocks = self.blocks.unchain(index, mine)
            gone += len(blocks)
            kept += self._drop(blocks, record)
        chosen: list[int] = []
        unlinked: set[int] = set()
        for page in pages[np.argsort(index.page.take(pages))[::-1]].tolist():
            if page not in unlinked and not index.children[page]:
                before = len(chosen)
                self.unlink_leaf(page, chosen)
                unlinked.update(chosen[before:])
        self.forget_unlinked(chosen)
        return gone, kept

    def touch(self, pages: U32) -> int:
        """One use of a path: its pages [n] get new stamps, rising along the path, so that no two
        pages ever share one.  Returns the first: whatever is older was not part of this use."""
        first = self.tick + 1
        self.tick += len(pages)
        self.index.stamp[pages.astype(np.intp)] = np.arange(first, self.tick + 1, dtype=np.uint64)
        return first
