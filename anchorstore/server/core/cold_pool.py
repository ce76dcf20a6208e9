"""The pool of the nvme tier: nobody maps it, and blocks name their place by unit.

::

    unit      0          256        512                 256 units a segment: 1 MiB
              | nothing   | segment 1  | segment 2  |
              |           | slot 0 | 1 | slot 0 ... |   no header: a slot says itself what it holds

So a segment keeps its number for good, and its generations rise for good, whatever class it serves.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

import numpy as np

from anchorstore.server.core.pool import Pool, Segment, Shape, SlotClass
from anchorstore.server.core.store_config import UNIT_BYTES
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
        super().__init__(shape.segments, shape.segment_bytes, shape.component_share)
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

    def close(self, segment_ids: Iterable[int]) -> None:
        """These segments get no more blocks, until they are opened again."""
        self.closed.update(segment_ids)
        self.unused = [index for index in self.unused if index + 1 not in self.closed]
        for segment_id in self.closed & self.by_id.keys():
            segment = self.by_id[segment_id]
            self._empty.discard(segment_id)
            if segment.is_roomy:
                segment.slot_class.roomy.remove(segment_id)
                heapq.heapify(segment.slot_class.roomy)
                segment.is_roomy = False

    def reopen(self, segment_ids: Iterable[int]) -> None:
        """These segments get blocks again."""
        for segment_id in sorted(self.closed.intersection(segment_ids)):
            self.closed.remove(segment_id)
            segment = self.by_id.get(segment_id)
            if segment is None:
                self.unused.append(segment_id - 1)
            else:
                self._note_roomy(segment)
                self._note_empty(segment)

    def can_pass(self, segment: Segment, slot_class: SlotClass) -> bool:
        """Whether the segment, once empty, may serve this class."""
        return segment.segment_id not in self.closed and super().can_pass(segment, slot_class)

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
        self.unused = [index for index in self.unused if index + 1 not in self.by_id]


def _steps(segment: Segment) -> np.uint32:
    """Units of one slot."""
    return np.uint32(segment.slot_class.slot_bytes // UNIT_BYTES)
