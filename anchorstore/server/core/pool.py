"""The pool: equal segments, who holds which, and how one changes hands.

::

    segment  0          1          2          3          4
           +----------+----------+----------+----------+----------+
           | acme     | acme     | acme     | globex   |          |
           | kv       | kv       | anchor   | kv       | unused   |
           | 2 MiB    | 2 MiB    | 80 KiB   | 2 MiB    |          |
           +----------+----------+----------+----------+----------+
             class 1               class 2    class 3

A segment belongs to one *slot class*: (domain, component, slot bytes).  A free slot serves only
its own class.  How a class that has none gets one (the first rule that applies):

    1  an unused segment           while the component holds fewer than its share
    2  an empty segment            of the same component, of any class
    3  the coldest segment         of the component's other classes, emptied: where all of it was
                                   used before the class's own next victim.  After a look in
                                   vain, not for a segment's worth of slots (balancing.py)
    4  an evicted block            of the class itself (policy.py)
    5  the oldest segment, emptied of the same component, if the class holds none (balancing.py)
    6  declined

A segment keeps its memory within a domain: new id, generations above all it has shown.  For
another domain it must have no holders (sessions that mapped it) and asks for fresh memory, so no
old mapping ever shows another tenant's bytes.  Fresh memory also comes where a slot has run out of
generations: they start anew.

The nvme tier has a pool of its own kind, with a *lane* of segments a device (cold_pool.py).
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.types import U32, Bools, FormatSegment, Gone
from anchorstore.tiers.slab import Slab
from anchorstore.transport.segment import SegmentShape


@dataclasses.dataclass(eq=False)
class SlotClass:
    """Segments that can serve one another's blocks.

    `kinds` counts the kinds that use it, `patience_slots` the slots that it evicts for itself
    before it looks for a colder segment again.  `roomy` is, for each lane of the pool, a heap of
    the segment ids that may have a free slot, each once.
    """

    class_id: int
    domain: str
    component: Component
    slot_bytes: int
    segments: list[Segment] = dataclasses.field(default_factory=list)
    kinds: int = 0
    patience_slots: int = 0
    roomy: list[list[int]] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> tuple[str, Component, int]:
        """What names the class."""
        return (self.domain, self.component, self.slot_bytes)

    @property
    def retired_slots(self) -> int:
        """Slots of its segments that are worn out."""
        return sum(segment.slab.retired for segment in self.segments)


@dataclasses.dataclass(eq=False)
class Segment:
    """One formatted region.  `writing` counts slots that are taken and not yet written,
    `is_roomy` says whether its class's heap names it."""

    index: int
    segment_id: int
    slot_class: SlotClass
    slab: Slab
    writing: int = 0
    holders: set[bytes] = dataclasses.field(default_factory=set)
    is_roomy: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all its slots."""
        return self.slab.slots * self.slot_class.slot_bytes


@dataclasses.dataclass(frozen=True)
class Grant:
    """Slots of one segment, taken for writing.  `generations` are odd."""

    segment: Segment
    slots: U32
    generations: U32


class Shape(Protocol):
    """How slots of one size lie in a segment."""

    @property
    def slots(self) -> int: ...

    @property
    def first_slot_offset(self) -> int: ...

    def offset(self, slot: int) -> int: ...


class Pool:
    """All segments of a tier; this one is dram's: one lane of them."""

    def __init__(
        self, lanes: Sequence[int], segment_bytes: int, component_share: Mapping[Component, float]
    ) -> None:
        self.segments = sum(lanes)
        self.segment_bytes = segment_bytes
        self.component_share = component_share
        self.classes: dict[tuple[str, Component, int], SlotClass] = {}
        self.by_id: dict[int, Segment] = {}
        stops = list(itertools.accumulate(lanes))
        self.unused = [
            list(range(stop - size, stop))[::-1] for size, stop in zip(lanes, stops, strict=True)
        ]
        self.formats: list[FormatSegment] = []  # work for the shell, handed out by begin_seal
        self._gone: dict[tuple[str, int], Bools] = {}  # slots by segment; handed out by take_gone
        self._held = dict.fromkeys(Component, 0)  # segments
        self._held_bytes = dict.fromkeys(Component, 0)  # of their slots
        self._used_bytes = dict.fromkeys(Component, 0)
        self._empty: set[int] = set()  # ids of segments without a taken slot
        self._next_segment_id = 1
        self._next_class_id = 1

    # ---- sizes ----

    def shape(self, slot_bytes: int) -> Shape:
        """How slots of this size lie in a segment."""
        return SegmentShape(self.segment_bytes, slot_bytes)

    def allowed_segments(self, component: Component) -> int:
        """Segments that the component may hold."""
        share = self.component_share.get(component, 0.0)
        return max(1, int(share * self.segments)) if share else 0

    def segments_of(self, component: Component) -> Iterator[Segment]:
        """Segments that the component holds."""
        return (s for s in self.by_id.values() if s.slot_class.component == component)

    def held_segments(self, component: Component) -> int:
        """Number of segments that the component holds."""
        return self._held[component]

    def capacity_bytes(self, component: Component) -> int:
        """Slots that the component holds, and the segments that it may still take."""
        more = self.allowed_segments(component) - self._held[component]
        more = max(0, min(more, self.unused_segments))
        return self.held_bytes(component) + more * self.segment_bytes

    def held_bytes(self, component: Component) -> int:
        """Slots of the segments that the component holds."""
        return self._held_bytes[component]

    @property
    def unused_segments(self) -> int:
        """Segments that no class holds."""
        return sum(map(len, self.unused))

    def used_bytes(self, component: Component) -> int:
        """Slots that are taken: sealed, being written, or kept by a lease."""
        return self._used_bytes[component]

    # ---- classes ----

    def class_of(self, domain: str, component: Component, slot_bytes: int) -> SlotClass:
        """The slot class, made where it is new."""
        key = (domain, component, slot_bytes)
        if key not in self.classes:
            self.classes[key] = SlotClass(
                self._next_class_id, *key, roomy=[[] for _ in self.unused]
            )
            self._next_class_id += 1
        return self.classes[key]

    def forget_class_if_idle(self, slot_class: SlotClass) -> None:
        """Drops a class that neither kinds nor segments refer to."""
        if not slot_class.kinds and not slot_class.segments:
            del self.classes[slot_class.key]

    # ---- slots ----

    def take(self, slot_class: SlotClass, count: int) -> list[Grant]:
        """Up to `count` free slots of the class, for writing."""
        return self._take_from(slot_class, 0, count)

    def _take_from(self, slot_class: SlotClass, lane: int, count: int) -> list[Grant]:
        """The same from one lane: the lowest segment's first."""
        grants, roomy = [], slot_class.roomy[lane]
        while count and roomy:
            segment = self.by_id[roomy[0]]
            here = min(count, segment.slab.free)
            if here == segment.slab.free:
                heapq.heappop(roomy)
                segment.is_roomy = False
            if here:
                slots, generations = segment.slab.take(here)
                segment.writing += here
                self._count_used(segment, here)
                grants.append(Grant(segment, slots, generations))
                count -= here
        return grants

    def give(self, segment_ids: U32, slots: U32) -> None:
        """Frees slots [n] of segments [n]."""
        for segment_id in np.unique(segment_ids).tolist():
            segment, mine = self.by_id[segment_id], slots[segment_ids == segment_id]
            segment.slab.give(mine)
            self._count_used(segment, -len(mine))
            self._note_roomy(segment)
            self._note_gone(segment, mine)

    def _note_roomy(self, segment: Segment) -> None:
        if segment.slab.free and not segment.is_roomy:
            heapq.heappush(self._roomy(segment), segment.segment_id)
            segment.is_roomy = True

    def _not_roomy(self, segment: Segment) -> None:
        if segment.is_roomy:
            roomy = self._roomy(segment)
            roomy.remove(segment.segment_id)
            heapq.heapify(roomy)
            segment.is_roomy = False

    def _roomy(self, segment: Segment) -> list[int]:
        """The heap that a segment belongs in."""
        return segment.slot_class.roomy[self.lane_of(segment.index)]

    def lane_of(self, index: int) -> int:
        """The lane of a segment, by its index."""
        return 0

    def _count_used(self, segment: Segment, slots: int) -> None:
        """So many more slots of the segment are taken."""
        slot_class = segment.slot_class
        self._used_bytes[slot_class.component] += slots * slot_class.slot_bytes
        self._note_empty(segment)

    def _note_empty(self, segment: Segment) -> None:
        if segment.slab.used:
            self._empty.discard(segment.segment_id)
        else:
            self._empty.add(segment.segment_id)

    def withdraw(self, segment_ids: U32, slots: U32) -> None:
        """Blocks in slots [n] of segments [n] are out of the index, but kept by leases."""
        for segment_id in np.unique(segment_ids).tolist():
            self._note_gone(self.by_id[segment_id], slots[segment_ids == segment_id])

    def _note_gone(self, segment: Segment, slots: U32) -> None:
        key = (segment.slot_class.domain, segment.segment_id)
        if key not in self._gone:
            self._gone[key] = np.zeros(segment.slab.slots, np.bool_)
        self._gone[key][slots] = True

    def written(self, segment_ids: U32) -> None:
        """Ends the writing of one slot a segment id [n]."""
        for segment_id, count in collections.Counter(segment_ids.tolist()).items():
            segment = self.by_id[segment_id]
            segment.writing -= count
            assert segment.writing >= 0, f"segment {segment_id}: more slots written than taken"

    # ---- segments ----

    def extend(self, slot_class: SlotClass) -> bool:
        """Rules 1 and 2: gives the class a segment that nobody misses; False where none is."""
        component = slot_class.component
        if self.held_segments(component) < self.allowed_segments(component):
            lane = self._lane_for_more()
            if lane is not None:
                self._begin_segment(slot_class, lane)
                return True
        for segment_id in sorted(self._empty):
            segment = self.by_id[segment_id]
            other = segment.slot_class is not slot_class or not segment.slab.free  # all worn out
            mine = segment.slot_class.component == component
            if mine and other and self.can_pass(segment, slot_class):
                self.pass_on(segment, slot_class)
                return True
        return False

    def _lane_for_more(self) -> int | None:
        """The lane that the next unused segment comes from; None where there is none."""
        return 0 if self.unused[0] else None

    def _begin_segment(self, slot_class: SlotClass, lane: int) -> None:
        """Gives the class an unused segment of the lane."""
        self._format(self.unused[lane].pop(), slot_class, 0, fresh_memory=False, holders=set())

    def can_pass(self, segment: Segment, slot_class: SlotClass) -> bool:
        """Whether the segment, once empty, may serve this class."""
        same_domain = segment.slot_class.domain == slot_class.domain
        return segment.writing == 0 and (same_domain or not segment.holders)

    def pass_on(self, segment: Segment, slot_class: SlotClass) -> None:
        """Re-formats an empty segment for another class."""
        assert segment.slab.used == 0 and self.can_pass(segment, slot_class), segment.segment_id
        old = segment.slot_class
        fresh = self._needs_fresh_memory(segment, slot_class)
        ceiling = 0 if fresh else segment.slab.ceiling()
        holders = set() if fresh else segment.holders  # nobody has mapped fresh memory yet
        self._withdraw_segment(segment)
        if not old.segments:
            old.patience_slots = 0
        self._format(segment.index, slot_class, ceiling, fresh, holders)
        self.forget_class_if_idle(old)

    def _needs_fresh_memory(self, segment: Segment, slot_class: SlotClass) -> bool:
        return segment.slot_class.domain != slot_class.domain or segment.slab.is_worn

    def _withdraw_segment(self, segment: Segment) -> None:
        """Takes an empty segment out of its class."""
        old = segment.slot_class
        old.segments.remove(segment)
        self._not_roomy(segment)
        self._held[old.component] -= 1
        self._held_bytes[old.component] -= segment.bytes
        self._empty.discard(segment.segment_id)
        del self.by_id[segment.segment_id]

    def _format(
        self,
        index: int,
        slot_class: SlotClass,
        first_generation: int,
        fresh_memory: bool,
        holders: set[bytes],
    ) -> None:
        slots = self.shape(slot_class.slot_bytes).slots
        segment_id = self._new_segment_id(index)
        segment = Segment(index, segment_id, slot_class, Slab(slots, first_generation), 0, holders)
        slot_class.segments.append(segment)
        self.by_id[segment_id] = segment
        self._held[slot_class.component] += 1
        self._held_bytes[slot_class.component] += segment.bytes
        self._empty.add(segment_id)
        self._note_roomy(segment)
        self._ask_format(segment, first_generation, fresh_memory)

    def _new_segment_id(self, index: int) -> int:
        """Never used before in this boot."""
        self._next_segment_id += 1
        return self._next_segment_id - 1

    def _ask_format(self, segment: Segment, first_generation: int, fresh_memory: bool) -> None:
        slot_class = segment.slot_class
        self.formats.append(
            FormatSegment(
                index=segment.index,
                segment_id=segment.segment_id,
                slot_bytes=slot_class.slot_bytes,
                slots=segment.slab.slots,
                first_generation=first_generation,
                fresh_memory=fresh_memory,
            )
        )

    def take_gone(self) -> list[Gone]:
        """What has gone since the last call."""
        gone, self._gone = self._gone, {}
        return [
            Gone(domain, segment_id, np.flatnonzero(slots).astype(np.uint32))
            for (domain, segment_id), slots in gone.items()
        ]

    def take_formats(self) -> list[FormatSegment]:
        """The work that has gathered since the last call, in order."""
        formats, self.formats = self.formats, []
        return formats
