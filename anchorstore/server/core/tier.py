"""One tier as the index sees it: who is on it, who may leave it, and its pool.

::

    block row     place (segment, slot)   cold (unit)
                       |                     |
    tier             dram                  nvme           a block is on one, or on both
    page is on it    a block of it is      a block of it is
    page is in it    on it, or children    on it, or children     children: linked pages in the tier
    leaf             on it, no children    on it, no children     -> may be evicted from the tier

What evicting, balancing and the policy do is written once and asks these questions; a page that has
left every tier is forgotten (state.py).
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.admission import Admission, Always
from anchorstore.server.core.blocks import Blocks
from anchorstore.server.core.cold_pool import ColdPool
from anchorstore.server.core.engines import LetGo
from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.leaf_order import Rows
from anchorstore.server.core.page_columns import TierColumns
from anchorstore.server.core.policies import Lru, Pages, Policy
from anchorstore.server.core.policy import LeafQueues
from anchorstore.server.core.pool import Pool, SlotClass
from anchorstore.server.core.sessions import KINDS_MAX, Kind, NamespaceRecord
from anchorstore.server.core.store_config import UNIT_BYTES, NvmeShape, StoreConfig
from anchorstore.server.core.types import U32, U64, Bools, Positions


class Tier(abc.ABC):
    """Questions about one tier.  Arrays of block or page rows are [n].

    Attributes:
        name: "dram" or "nvme".
        pool: its segments.
        queues: its leaves, in the order of eviction.
        has_reserves: whether some namespaces keep a share that others never evict.
        draining: components that are above the high watermark, until they are below the low one.
        class_of_kind, slot_bytes_of_kind: by kind id, 0 where a kind has no place here.
    """

    name: str

    def __init__(
        self, index: PageIndex, blocks: Blocks, pool: Pool, shape: StoreConfig | NvmeShape
    ) -> None:
        self.index, self.blocks, self.pool = index, blocks, pool
        self.high_watermark, self.low_watermark = shape.high_watermark, shape.low_watermark
        self.queues = LeafQueues(shape.policy or Lru())
        self.has_reserves = bool(shape.reserves)
        self.draining: set[Component] = set()
        self.class_of_kind: U32 = np.zeros(KINDS_MAX + 1, np.uint32)
        self.slot_bytes_of_kind: U64 = np.zeros(KINDS_MAX + 1, np.uint64)

    def columns_of(self, what: Policy | Admission) -> Pages:
        """The pages' columns as this policy reads them: the index itself where that will do."""
        if set(what.columns) <= {name for name, _, _ in self.index.columns}:
            return self.index
        return TierColumns(self)

    # ---- kinds ----

    @abc.abstractmethod
    def class_of(self, kind: Kind) -> SlotClass | None:
        """The class of the kind's slots here; None where they would not fit a segment."""

    def know(self, kind: Kind) -> None:
        """Notes a new kind."""
        slot_class = self.class_of(kind)
        if slot_class is not None:
            slot_class.kinds += 1
            self.class_of_kind[kind.kind_id] = slot_class.class_id
            self.slot_bytes_of_kind[kind.kind_id] = slot_class.slot_bytes

    def forget(self, kind: Kind) -> None:
        """Forgets a kind that nothing uses."""
        slot_class = self.class_of(kind)
        if slot_class is not None:
            slot_class.kinds -= 1
            self.class_of_kind[kind.kind_id] = 0
            self.slot_bytes_of_kind[kind.kind_id] = 0
            self.pool.forget_class_if_idle(slot_class)

    # ---- blocks ----

    @abc.abstractmethod
    def holds(self, blocks: U32) -> Bools:
        """Which blocks have a place here; row 0 has none."""

    @abc.abstractmethod
    def holds_one(self, block: int) -> bool:
        """Whether one block has."""

    @abc.abstractmethod
    def busy(self, blocks: U32) -> Bools:
        """Which blocks are being read or copied from their place here."""

    @abc.abstractmethod
    def busy_one(self, block: int) -> bool:
        """Whether one block is."""

    @property
    def has_closed(self) -> bool:
        """Whether some segments get no more blocks, so that nothing is gained by emptying them."""
        return False

    def closed(self, blocks: U32) -> Bools:
        """Which blocks that have a place here lie in such segments."""
        return np.zeros(len(blocks), np.bool_)

    @property
    def is_short(self) -> bool:
        """Whether some segments may get no block at this moment."""
        return False

    def with_room(self, blocks: U32) -> Bools:
        """Which blocks that have a place here lie where another may be written at this moment."""
        return np.ones(len(blocks), np.bool_)

    @abc.abstractmethod
    def segments_of(self, blocks: U32) -> U32:
        """Segment ids of blocks that have a place here."""

    @abc.abstractmethod
    def slots_of(self, blocks: U32) -> U32:
        """Slots of blocks that have a place here."""

    @abc.abstractmethod
    def clear(self, blocks: U32) -> None:
        """Notes that these blocks have no place here any more."""

    @abc.abstractmethod
    def charge(self, record: NamespaceRecord, size: int) -> None:
        """So many more bytes of slots are the namespace's."""

    @abc.abstractmethod
    def spare_bytes(self, record: NamespaceRecord) -> int:
        """How many bytes of the namespace's slots others may evict; below 0 where its share is not
        used up."""

    def bytes_of(self, blocks: U32) -> int:
        """Bytes of the slots of blocks that have a place here."""
        kinds = self.blocks.kind.take(blocks)
        return int(self.slot_bytes_of_kind.take(kinds).sum())

    def withdraw(self, blocks: U32) -> None:
        """These blocks are gone for others, while who holds a lease goes on for a while."""
        if len(blocks):
            self.pool.withdraw(self.segments_of(blocks), self.slots_of(blocks))

    def vacate(self, blocks: U32, record: NamespaceRecord) -> None:
        """Gives up the places of blocks that have one here and are not busy."""
        if len(blocks):
            self.charge(record, -self.bytes_of(blocks))
            self.pool.give(self.segments_of(blocks), self.slots_of(blocks))
            self.clear(blocks)

    # ---- pages ----

    @property
    @abc.abstractmethod
    def children(self) -> U32:
        """Per page row: linked pages that are in the tier."""

    def on(self, pages: U32) -> Bools:
        """Which pages have a block here."""
        found = np.zeros(len(pages), np.bool_)
        current = self.index.first_block.take(pages)
        while current.any():
            found |= self.holds(current)
            current = self.blocks.next.take(current)
        return found

    def is_on(self, page: int) -> bool:
        """Whether one page has."""
        block = self.index.first_block.item(page)
        while block:
            if self.holds_one(block):
                return True
            block = self.blocks.next.item(block)
        return False

    def within(self, pages: U32) -> Bools:
        """Which pages are in the tier: on it, or with children in it."""
        return np.asarray(self.on(pages) | (self.children.take(pages) != 0))

    @abc.abstractmethod
    def every_page_on(self) -> Bools:
        """By page row, up to the last: whether the page has a block here.  False for row 0."""

    def leaves(self) -> Bools:
        """By page row, up to the last: whether the page may be evicted."""
        top = self.index.rows.top
        return np.asarray(self.every_page_on() & (self.children[:top] == 0))

    def inner(self) -> Bools:
        """By page row, up to the last: whether the page is on the tier and others follow it."""
        top = self.index.rows.top
        return np.asarray(self.every_page_on() & (self.children[:top] != 0))

    def _pages_of(self, blocks: U32) -> Bools:
        found = np.zeros(self.index.rows.top, np.bool_)
        found[self.blocks.page.take(blocks)] = True
        found[0] = False
        return found


class DramTier(Tier):
    """Memory that clients map.  `alone` where no other tier is configured: then every block is
    here, and nothing need be asked."""

    name = "dram"

    def __init__(self, index: PageIndex, blocks: Blocks, config: StoreConfig) -> None:
        pool = Pool([config.segments], config.segment_bytes, config.component_share)
        super().__init__(index, blocks, pool, config)
        self.alone = config.nvme is None
        if "let_go" in config.page_columns():
            self.queues = LeafQueues(config.policy or Lru(), self._goes_early)

    def _goes_early(self, pages: Rows) -> Any:
        return self.index.let_go[pages] == LetGo.SAFE

    def class_of(self, kind: Kind) -> SlotClass:
        return kind.slot_class

    def holds(self, blocks: U32) -> Bools:
        return np.asarray((blocks if self.alone else self.blocks.segment[blocks]) != 0)

    def holds_one(self, block: int) -> bool:
        return self.alone or self.blocks.segment.item(block) != 0

    def busy(self, blocks: U32) -> Bools:
        """A lease protects a place in dram; without such a place, the one in nvme."""
        return np.asarray((self.blocks.leases.take(blocks) != 0) & self.holds(blocks))

    def busy_one(self, block: int) -> bool:
        return self.blocks.leases.item(block) != 0 and self.holds_one(block)

    def segments_of(self, blocks: U32) -> U32:
        return self.blocks.segment[blocks]

    def slots_of(self, blocks: U32) -> U32:
        return self.blocks.slot[blocks]

    def clear(self, blocks: U32) -> None:
        single = blocks if self.alone else blocks[self.blocks.cold.take(blocks) == 0]
        self.blocks.in_dram_alone -= len(single)
        self.blocks.segment[blocks] = 0
        self.blocks.version += 1

    def charge(self, record: NamespaceRecord, size: int) -> None:
        record.used_bytes += size

    def spare_bytes(self, record: NamespaceRecord) -> int:
        return record.used_bytes - record.kept_bytes

    @property
    def children(self) -> U32:
        return self.index.children

    def on(self, pages: U32) -> Bools:
        if self.alone:
            return np.asarray(self.index.first_block.take(pages) != 0)
        return super().on(pages)

    def every_page_on(self) -> Bools:
        if self.alone:
            held = np.asarray(self.index.first_block[: self.index.rows.top] != 0)
            held[0] = False
            return held
        here = np.flatnonzero(self.blocks.segment[: self.blocks.rows.top])
        return self._pages_of(here.astype(np.uint32))


class NvmeTier(Tier):
    """Devices that only the daemon reads and writes.  A place is a unit: segment and slot follow
    from it."""

    name = "nvme"

    def __init__(self, index: PageIndex, blocks: Blocks, shape: NvmeShape) -> None:
        self.shape = shape
        self.admission = shape.admission or Always()
        self.cold_pool = ColdPool(shape)
        super().__init__(index, blocks, self.cold_pool, shape)
        self._follows_engines = hasattr(index, "let_go")
        self.hides_room = False  # behind leaves that make none, perhaps (uncovering.py)
        self.hidden_until = 0.0  # no look for it before then
        self.pages_uncovered = 0

    def class_of(self, kind: Kind) -> SlotClass | None:
        return kind.cold_class

    def holds(self, blocks: U32) -> Bools:
        return np.asarray(self.blocks.cold.take(blocks) != 0)

    def holds_one(self, block: int) -> bool:
        return self.blocks.cold.item(block) != 0

    def busy(self, blocks: U32) -> Bools:
        """What has a place in dram is read there, never here."""
        idle = (self.blocks.leases.take(blocks) == 0) | (self.blocks.segment[blocks] != 0)
        return np.asarray(~idle & self.holds(blocks))

    def busy_one(self, block: int) -> bool:
        table = self.blocks
        is_leased = table.leases.item(block) != 0 and table.segment.item(block) == 0
        return is_leased and self.holds_one(block)

    @property
    def has_closed(self) -> bool:
        return bool(self.cold_pool.closed)

    def closed(self, blocks: U32) -> Bools:
        ids = np.array(sorted(self.cold_pool.closed), np.uint32)
        return np.isin(self.segments_of(blocks), ids)

    @property
    def is_short(self) -> bool:
        return self.cold_pool.stripes.is_short

    def with_room(self, blocks: U32) -> Bools:
        stripes = self.cold_pool.stripes
        having = np.array([stripes.has_room(device) for device in range(len(stripes))], np.bool_)
        return having[stripes.devices_of(self.segments_of(blocks))]

    def segments_of(self, blocks: U32) -> U32:
        return self.blocks.cold.take(blocks) // np.uint32(self.shape.segment_units)

    def slots_of(self, blocks: U32) -> U32:
        inside = self.blocks.cold.take(blocks) % np.uint32(self.shape.segment_units)
        sizes = self.slot_bytes_of_kind.take(self.blocks.kind.take(blocks))
        return inside // (sizes // np.uint64(UNIT_BYTES)).astype(np.uint32)

    def units_of(self, blocks: Positions, segment_ids: U32, slots: U32) -> U32:
        """Units of slots [n] that blocks [n] of the class are to get."""
        sizes = self.slot_bytes_of_kind.take(self.blocks.kind.take(blocks))
        steps = (sizes // np.uint64(UNIT_BYTES)).astype(np.uint32)
        return segment_ids * np.uint32(self.shape.segment_units) + slots * steps

    def generations_of(self, blocks: U32) -> U32:
        """What the slots of blocks that have a place here show."""
        segment_ids, slots = self.segments_of(blocks), self.slots_of(blocks)
        found = np.zeros(len(blocks), np.uint32)
        for segment_id in np.unique(segment_ids).tolist():
            mine = segment_ids == segment_id
            found[mine] = self.pool.by_id[segment_id].slab.generations_of(slots[mine])
        return found

    def clear(self, blocks: U32) -> None:
        self.blocks.in_dram_alone += int(np.count_nonzero(self.blocks.segment[blocks]))
        self.blocks.cold[blocks] = 0
        self.blocks.version += 1
        if self._follows_engines:
            pages, let_go = self.blocks.page.take(blocks), self.index.let_go
            let_go[pages] = np.minimum(let_go.take(pages), LetGo.YES)

    def charge(self, record: NamespaceRecord, size: int) -> None:
        record.cold_bytes += size

    def spare_bytes(self, record: NamespaceRecord) -> int:
        return record.cold_bytes - record.cold_kept_bytes

    @property
    def children(self) -> U32:
        return self.index.cold_children

    def every_page_on(self) -> Bools:
        here = np.flatnonzero(self.blocks.cold[: self.blocks.rows.top])
        return self._pages_of(here.astype(np.uint32))
