"""The state of the store, and how blocks and pages leave it.

::

    Registry (sessions, namespaces, kinds)      Leases      Deadlines of reservations
          |                                        |
    PageIndex --first_block--> Blocks --segment, slot--> dram: Pool --> Slab
          ^                       +----------unit------> nvme: Pool --> Slab
          |                                        |
          +------------- LeafQueues (policy) ------+       tier.py

A block is in exactly one of these conditions::

    writing     a ticket holds its slot; no row, nobody can see it         -> sealed | gone
    sealed      in its page's chain, with a place in a tier or in both     -> detached | gone
    detached    out of the chain (removed, replaced), kept by leases       -> gone
    gone        slots free

A broken invariant stops the daemon with what happened before (story.py).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from anchorstore.server.core.admission import Always
from anchorstore.server.core.blocks import Blocks
from anchorstore.server.core.engines import Engines
from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.leases import Deadlines, Leases
from anchorstore.server.core.moving import Left, Movement
from anchorstore.server.core.page_columns import PageHistory, columns_for
from anchorstore.server.core.policies import FlopAware, Moment
from anchorstore.server.core.pool import Pool
from anchorstore.server.core.sessions import Kind, NamespaceRecord, Registry, Reservation, Session
from anchorstore.server.core.story import Story
from anchorstore.server.core.tier import DramTier, NvmeTier, Tier
from anchorstore.server.core.tuning import Bootstrap
from anchorstore.server.core.types import U8, U32, Bools, Positions, StoreConfig
from anchorstore.server.core.use_times import UseTimes

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


class State(Story):
    """Everything that the core knows.  Only the core's own functions change it.

    `tiers` are dram and, where it is configured, nvme.
    """

    def __init__(self, config: StoreConfig, secret: bytes) -> None:
        super().__init__()
        self.config = config
        shape = config.nvme
        more = columns_for(config.page_columns())
        self.index = PageIndex(secret, more + (PageIndex.COLD_COLUMNS if shape else ()))
        self.history = PageHistory(self.index)
        self.blocks = Blocks(Blocks.COLD_COLUMNS if shape else ())
        self.dram = DramTier(self.index, self.blocks, config)
        self.nvme = NvmeTier(self.index, self.blocks, shape) if shape else None
        self.tiers: tuple[Tier, ...] = (self.dram, self.nvme) if self.nvme else (self.dram,)
        self.last = self.tiers[-1]  # what leaves it is to be computed again
        self.bootstrap = Bootstrap() if isinstance(self.last.queues.policy, FlopAware) else None
        self.registry = Registry(config, self.tiers)
        self.leases = Leases(config.read_ttl_seconds)
        self.engines = Engines(config.engine_ttl_seconds)
        self.reservations: Deadlines[int] = Deadlines(config.write_ttl_seconds)
        self.reservation_by_id: dict[int, Reservation] = {}
        self.reserved_pages = 0  # of all of them
        self.tickets: dict[int, Ticket] = {}
        self.movement = Movement(shape.queue_blocks if shape else 1)
        self.detached: dict[int, NamespaceRecord] = {}  # block row -> who pays for it
        self.counters: collections.Counter[str] = collections.Counter()
        self.tick = 1
        self.seconds = 0.0
        self.use_times = UseTimes()
        self.next_id = 1  # reservations and tickets

    @property
    def moment(self) -> Moment:
        """Now, as policies measure it."""
        return Moment(self.tick, self.seconds)

    @property
    def pool(self) -> Pool:
        """The pool of dram."""
        return self.dram.pool

    def waits_for_nvme(self, tier: Tier) -> bool:
        """Whether what leaves the tier in the background should be in nvme first."""
        moving = self.movement
        return bool(self.nvme) and tier is self.dram and not (moving.is_paused or moving.is_refused)

    def admitted(self, blocks: U32) -> Bools:
        """Which attached blocks are worth a place in nvme, and would fit there."""
        assert self.nvme is not None
        fits = self.nvme.class_of_kind.take(self.blocks.kind.take(blocks)) != 0
        rule = self.nvme.admission
        if not isinstance(rule, Always):
            fits &= rule.admits(self.dram.columns_of(rule), self.blocks.page.take(blocks))
        return np.asarray(fits)

    def expect(self, kinds: Sequence[Kind]) -> int:
        """Makes the tables, while they are nearly empty, as long as the pool can fill them with
        these kinds: growing later would hold up every request for up to half a second.  Memory
        that no row has touched costs nothing.  Returns how many blocks those are."""
        slots = np.array([self._slots(tier, kinds) for tier in self.tiers])
        pages = min(int(slots.max(axis=1).sum()), PAGES_EXPECTED_MAX)
        if pages > 8 * len(self.index):
            self.index.expect(pages)
            self.blocks.expect(min(int(slots.sum()), BLOCKS_EXPECTED_MAX))
        return int(slots[0].sum())

    @staticmethod
    def _slots(tier: Tier, kinds: Sequence[Kind]) -> list[int]:
        """How many blocks of each kind the tier can hold."""
        found = []
        for kind in kinds:
            slot_class, pool = tier.class_of(kind), tier.pool
            slots = pool.shape(slot_class.slot_bytes).slots if slot_class is not None else 0
            found.append(pool.allowed_segments(kind.component) * slots)
        return found

    def new_id(self) -> int:
        """An id for a reservation or ticket; never reused in a boot."""
        self.next_id += 1
        return self.next_id - 1

    # ---- blocks leave ----

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
        """Gives all places up; the blocks are out of their chains and belong to `record`."""
        table = self.blocks
        self.ensure(not table.leases.take(blocks).any(), "a leased block is freed")
        for tier in self.tiers:
            tier.vacate(blocks[tier.holds(blocks)], record)
        self.ensure(record.used_bytes >= 0, f"{record.namespace.model}: used bytes below 0")
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
        """Unchained blocks go; leased ones are kept detached, where they are being read or copied
        from.  Returns how many those are."""
        table = self.blocks
        leased = table.leases.take(blocks) != 0
        kept = blocks[leased]
        table.page[kept] = 0
        table.next[kept] = 0
        for row in kept.tolist():
            self.detached[row] = record
        for tier in self.tiers if len(kept) else ():
            held = tier.holds(kept)
            busy = tier.busy(kept)
            tier.withdraw(kept[held & busy])
            tier.vacate(kept[held & ~busy], record)
        if len(kept) < len(blocks):
            self._free(blocks[~leased], record)
        return len(kept)

    def forget_block(self, row: int) -> None:
        """Takes one block out of every tier and of its page, and the page with it if nothing is
        left there."""
        page = int(self.blocks.page[row])
        record = self.registry.by_namespace_id[int(self.index.namespace[page])]
        lost = [tier for tier in self.tiers if tier.holds_one(row)]
        self.blocks.detach(self.index, row)
        self._drop(np.array([row], np.uint32), record)
        gone = [page]
        for tier in lost:
            if not tier.is_on(page) and not tier.children[page]:
                self._withdraw(tier, page, gone)
        self._forget_bare(np.array(gone, np.uint32))

    def leave_block(self, tier: Tier, row: int) -> None:
        """Takes one idle block of an inner page out of the tier; it goes if that was its only
        one."""
        if not any(other.holds_one(row) for other in self.tiers if other is not tier):
            self.forget_block(row)
            return
        owner = int(self.index.namespace[self.blocks.page[row]])
        tier.vacate(np.array([row], np.uint32), self.registry.by_namespace_id[owner])

    # ---- pages come and go ----

    def settle(self, path: U32) -> int:
        """Makes a path [n] that a reader named consistent: rows at another place than their own
        become 0 (a prefix that names a page twice, or out of order, matches it once, where it
        belongs), then links heal.  Returns the place behind the last page that is there."""
        known = int(np.count_nonzero(path))
        if not known or self.index.is_chain(path, known):
            return known
        path[self.index.misplaced(path)] = 0
        self.heal(path)
        places = np.flatnonzero(path)
        return int(places[-1]) + 1 if len(places) else 0

    def heal(self, path: U32) -> None:
        """Links the pages of a path seen in order, and counts the children."""
        child, parent = self.index.link(path)
        if len(child):
            for tier in self.tiers:
                within = tier.within(child)
                self._count_children(tier, parent[within])

    def enter(self, tier: Tier, pages: U32) -> None:
        """These pages [n], distinct, are in the tier from now on: their parents have one more."""
        self._count_children(tier, self.index.parent.take(pages))

    def place(self, tier: Tier, blocks: U32, set_places: Callable[[], None]) -> None:
        """Blocks that their pages have already, distinct, get a place in the tier, which
        `set_places` writes down."""
        if not len(blocks):
            return
        pages = np.unique(self.blocks.page.take(blocks))
        new = ~tier.within(pages)
        set_places()
        self.blocks.version += 1
        for owner, mine in self.by_owner(blocks):
            tier.charge(owner, tier.bytes_of(mine))
        self.enter(tier, pages[new])
        self.announce_leaves(tier, pages)

    def announce_leaves(self, tier: Tier, pages: U32) -> None:
        """Pages that have got a block in the tier: where they are leaves, the orders look at
        them."""
        tier.queues.announce_all(pages[tier.children.take(pages) == 0])

    def by_owner(self, blocks: U32) -> Iterator[tuple[NamespaceRecord, U32]]:
        """Attached blocks, namespace by namespace."""
        owners = self.index.namespace.take(self.blocks.page.take(blocks))
        for namespace_id in np.unique(owners).tolist():
            yield self.registry.by_namespace_id[namespace_id], blocks[owners == namespace_id]

    def _count_children(self, tier: Tier, parents: U32) -> None:
        """One more child in the tier for each page named (0 for none); pages that are in it only
        now are children themselves."""
        parents = parents[parents != 0]
        while len(parents):
            first = np.unique(parents[tier.children.take(parents) == 0])
            np.add.at(tier.children, parents, 1)
            holes = first[~tier.on(first)]
            parents = self.index.parent.take(holes)
            parents = parents[parents != 0]

    def retreat(self, tier: Tier, page: int, gone: list[int]) -> int:
        """A page without children in the tier is out of it from now on: so is a hole above it that
        has no others.  Adds those holes to `gone`.  Returns the page above that is a leaf now, for
        the caller to announce; 0 for none."""
        index, children = self.index, tier.children
        while parent := index.parent.item(page):
            left = children.item(parent) - 1
            children[parent] = left
            if left:
                return 0
            if tier.is_on(parent):
                return parent
            gone.append(parent)
            page = parent
        return 0

    def _withdraw(self, tier: Tier, page: int, gone: list[int]) -> None:
        """`retreat`, and whoever orders leaves is told."""
        if leaf := self.retreat(tier, page, gone):
            tier.queues.announce(leaf)

    def leave(self, tier: Tier, pages: U32, holes: list[int] | None = None) -> Left:
        """Takes every block of these pages [n] out of the tier; entries that others continue stay,
        as holes.  `holes` are those that `take_leaves` found, None where it was not asked."""
        left = Left()
        owners = self.index.namespace.take(pages)
        on = tier.on(pages)
        for namespace_id in np.unique(owners).tolist():
            record = self.registry.by_namespace_id[namespace_id]
            self._leave(tier, pages[owners == namespace_id], record, left)
        if holes is None:
            holes = self._retreat_all(tier, pages[on])
        self._forget_bare(np.concatenate([pages, np.array(holes, np.uint32)]))
        return left

    def _leave(self, tier: Tier, pages: U32, record: NamespaceRecord, left: Left) -> None:
        """The blocks' part of `leave`, for pages of one namespace."""
        table = self.blocks
        blocks = table.of_pages(self.index, pages)
        here = blocks[tier.holds(blocks)]
        stay = np.zeros(len(here), np.bool_)
        for other in self.tiers:
            if other is not tier:
                stay |= other.holds(here)
        going, moving = here[~stay], here[stay]
        left.pages_moved += len(pages) - len(np.unique(table.page.take(going)))
        table.detach_all(self.index, pages, going)
        self.ensure(not tier.busy(moving).any(), "a busy block leaves its tier")
        tier.vacate(moving, record)
        left.gone += len(going)
        left.moved += len(moving)
        left.kept += self._drop(going, record) if len(going) else 0

    def _retreat_all(self, tier: Tier, pages: U32) -> list[int]:
        """Pages that have just lost their blocks in the tier leave it, the deepest first.  Returns
        what is out of it now beside them."""
        gone: list[int] = []
        out: set[int] = set()
        for page in pages[np.argsort(self.index.page.take(pages))[::-1]].tolist():
            if page not in out and not tier.children[page]:
                before = len(gone)
                self._withdraw(tier, page, gone)
                out.update(gone[before:])
        return gone

    def _forget_bare(self, pages: U32) -> None:
        """Ends entries among these pages that have no block, and no children in any tier."""
        index = self.index
        pages = np.unique(pages)
        bare = (index.first_block.take(pages) == 0) & (index.namespace.take(pages) != 0)
        for tier in self.tiers:
            bare &= tier.children.take(pages) == 0
        pages = pages[bare]
        if not len(pages):
            return
        owners = index.namespace.take(pages)
        self.history.gone(pages)
        index.remove(pages)
        for namespace_id, count in zip(*np.unique(owners, return_counts=True), strict=True):
            record = self.registry.by_namespace_id[int(namespace_id)]
            record.pages -= int(count)
            self.registry.forget_namespace_if_idle(record)

    def forget_pages(self, pages: U32) -> tuple[int, int]:
        """Takes every block of these pages out of every tier; entries that others continue stay,
        as holes.  Returns blocks gone and, of those, kept by leases."""
        gone = kept = 0
        for tier in reversed(self.tiers):
            left = self.leave(tier, pages)
            gone, kept = gone + left.gone, kept + left.kept
            pages = pages[self.index.namespace.take(pages) != 0]
        return gone, kept

    def touch(self, pages: U32) -> int:
        """One use of a path: its pages [n] get new stamps, rising along the path, so that no two
        pages ever share one.  Returns the first: whatever is older was not part of this use."""
        self.use_times.note(self.tick + 1, self.seconds)
        self.history.warmed(pages)
        rest = self.history.cut(pages)
        for rows in (rest, pages) if len(rest) else (pages,):
            first, self.tick = self.tick + 1, self.tick + len(rows)
            ticks = np.arange(first, self.tick + 1, dtype=np.uint64)
            self.index.stamp[rows.astype(np.intp)] = ticks
        return first
