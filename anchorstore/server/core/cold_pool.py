"""The pool of the nvme tier: nobody maps it, and blocks name their place by unit.

::

    unit      0          256        512                 256 units a segment: 1 MiB
              | nothing   | segment 1  | segment 2  |
              |           | slot 0 | 1 | slot 0 ... |   no header: a slot says itself what it holds

So a segment keeps its number for good, and its generations rise for good, whatever class it serves.

Each device is a lane of segments, and a class has a segment on every device as long as there are
plenty: what is written together is spread over all of them (stripes.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.pool import Grant, Pool, Segment, Shape, SlotClass
from anchorstore.server.core.store_config import UNIT_BYTES
from anchorstore.server.core.stripes import Stripes
from anchorstore.server.core.types import U32, Bools, NvmeShape


@dataclasses.dataclass(frozen=True, slots=True)
class BareShape:
    """Slots side by side, and nothing else.  All in bytes."""

    segment_bytes: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        return self.segment_bytes // self.slot_bytes

    @property
    def first_slot_offset(self) -> int:
        return 0

    def offset(self, slot: int) -> int:
        """Where slot number `slot` starts."""
        return slot * self.slot_bytes


class ColdPool(Pool):
    """Segments of the nvme tier.  Their ids are their numbers, from 1 on, for good."""

    def __init__(self, shape: NvmeShape) -> None:
        self.stripes = Stripes(shape.devices or (shape.segments,))
        super().__init__(self.stripes.segments, shape.segment_bytes, shape.component_share)
        self._segment_units = shape.segment_units
        self._gone_units: dict[int, Bools] = {}
        self.closed: set[int] = set()  # ids of segments that get no more blocks

    def shape(self, slot_bytes: int) -> Shape:
        """How slots of this size lie in a segment."""
        return BareShape(self.segment_bytes, slot_bytes)

    def _new_segment_id(self, index: int) -> int:
        return index + 1

    def _ask_format(self, segment: Segment, first_generation: int, fresh_memory: bool) -> None:
        """Nothing to write: a slot says itself what it holds."""

    # ---- devices ----

    def lane_of(self, index: int) -> int:
        """The device of a segment, by its index."""
        return self.stripes.device_of(index + 1)

    def take(self, slot_class: SlotClass, count: int) -> list[Grant]:
        """Up to `count` free slots of the class, from all devices as they have room."""
        self._widen(slot_class)
        grants: list[Grant] = []
        while count:
            roomy = [device for device, ids in enumerate(slot_class.roomy) if ids]
            parts = self.stripes.parts(count, roomy)
            if not parts:
                break
            for device, part in parts:
                gained = self._take_from(slot_class, device, part)
                slots = sum(len(grant.slots) for grant in gained)
                self.stripes.take(device, slots)
                grants += gained
                count -= slots
        return grants

    def _widen(self, slot_class: SlotClass) -> None:
        """Gives the class a segment on each device where it has none with a free slot, as long as
        as many are left to every other class."""
        for device, unused in enumerate(self.unused) if len(self.stripes) > 1 else ():
            wanted = unused and not slot_class.roomy[device] and self.stripes.has_room(device)
            if wanted and self._has_plenty(slot_class.component):
                self._begin_segment(slot_class, device)

    def _has_plenty(self, component: Component) -> bool:
        more = self.allowed_segments(component) - self.held_segments(component)
        classes = sum(known.component == component for known in self.classes.values())
        return min(more, self.unused_segments) > classes * len(self.stripes)

    def _lane_for_more(self) -> int | None:
        """The emptiest device that has room."""
        left = {
            device: len(unused) / self.stripes.segments[device]
            for device, unused in enumerate(self.unused)
            if unused and self.stripes.has_room(device)
        }
        return max(left, key=left.__getitem__, default=None)

    def capacity_bytes(self, component: Component) -> int:
        """As long as segments are closed, those that nothing holds count as before: a device that
        takes nothing for a while is no reason to evict from it."""
        if not self.closed:
            return super().capacity_bytes(component)
        more = self.allowed_segments(component) - self.held_segments(component)
        unused = self.unused_segments + len(self.closed - self.by_id.keys())
        return self.held_bytes(component) + max(0, min(more, unused)) * self.segment_bytes

    def open_room(self, room: Sequence[int]) -> list[int]:
        """`room` by device, and none for those all of whose segments are closed: what they have
        room for they cannot place."""
        closed = np.fromiter(self.closed, np.uint32)
        counts = np.bincount(self.stripes.devices_of(closed), minlength=len(self.stripes))
        sizes = self.stripes.segments
        return [own if counts[at] < sizes[at] else 0 for at, own in enumerate(room)]

    def close(self, segment_ids: Iterable[int]) -> None:
        """These segments get no more blocks, until they are opened again."""
        self.closed.update(segment_ids)
        self._drop_from_unused(self.closed)
        for segment_id in self.closed & self.by_id.keys():
            self._empty.discard(segment_id)
            self._not_roomy(self.by_id[segment_id])

    def reopen(self, segment_ids: Iterable[int]) -> None:
        """These segments get blocks again."""
        for segment_id in sorted(self.closed.intersection(segment_ids)):
            self.closed.remove(segment_id)
            segment = self.by_id.get(segment_id)
            if segment is None:
                self.unused[self.lane_of(segment_id - 1)].append(segment_id - 1)
            else:
                self._note_roomy(segment)
                self._note_empty(segment)

    def can_pass(self, segment: Segment, slot_class: SlotClass) -> bool:
        """Whether the segment, once empty, may serve this class."""
        is_open = segment.segment_id not in self.closed
        has_room = self.stripes.has_room(self.lane_of(segment.index))
        return is_open and has_room and super().can_pass(segment, slot_class)

    def _note_roomy(self, segment: Segment) -> None:
        if segment.segment_id not in self.closed:
            super()._note_roomy(segment)

    def _note_empty(self, segment: Segment) -> None:
        if segment.segment_id not in self.closed:
            super()._note_empty(segment)

    def _needs_fresh_memory(self, segment: Segment, slot_class: SlotClass) -> bool:
        """Only where generations must start anew."""
        return segment.slab.is_worn

    def _note_gone(self, segment: Segment, slots: U32) -> None:
        """By unit, because the segment may have other slots before anybody asks."""
        if segment.segment_id not in self._gone_units:
            self._gone_units[segment.segment_id] = np.zeros(self._segment_units, np.bool_)
        self._gone_units[segment.segment_id][slots * _steps(segment)] = True

    def back(self, segment_ids: U32, slots: U32) -> None:
        """Slots [n] of segments [n] are in use again: their going need not be told any more."""
        for segment_id in np.unique(segment_ids).tolist():
            gone = self._gone_units.get(segment_id)
            if gone is not None:
                gone[slots[segment_ids == segment_id] * _steps(self.by_id[segment_id])] = False

    def take_gone_units(self) -> U32:
        """Units whose blocks have gone since the last call, and that nothing else lies at now."""
        gone, self._gone_units = self._gone_units, {}
        parts = [np.zeros(0, np.uint32)]
        for segment_id, units in gone.items():
            first = np.uint32(segment_id * self._segment_units)
            parts.append(first + np.flatnonzero(units).astype(np.uint32))
        return np.concatenate(parts)

    def adopt(self, segment_id: int, slot_class: SlotClass, slots: U32, generations: U32) -> None:
        """Makes a segment as a restart finds it: these distinct slots taken, with the even
        generations that they show; the others go on above them."""
        ceiling = int(generations.max())
        self._format(segment_id - 1, slot_class, ceiling, fresh_memory=False, holders=set())
        segment = self.by_id[segment_id]
        segment.slab.adopt(slots, generations)
        self._count_used(segment, len(slots))

    def drop_adopted_from_unused(self) -> None:
        """After the last `adopt`: segments in use are not unused."""
        self._drop_from_unused(self.by_id.keys())

    def _drop_from_unused(self, segment_ids: Container[int]) -> None:
        self.unused = [
            [index for index in unused if index + 1 not in segment_ids] for unused in self.unused
        ]


def _steps(segment: Segment) -> np.uint32:
    """Units of one slot."""
    return np.uint32(segment.slot_class.slot_bytes // UNIT_BYTES)
