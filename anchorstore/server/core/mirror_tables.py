"""What the mirror knows of dram's slots, and what lies in hbm's.  Columns, one row a slot.  Pure.

::

    KnownSlots, of a dram segment           CopySegment, of hbm
    generation | home | at | seen           source (a place in dram) | state | stamp
                   |     +----- slot ------->        |
                   +----------- segment              +--> back
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, Bools
from anchorstore.tiers.slab import Slab
from anchorstore.transport.segment import PLACE, SegmentShape

FREE, DOOMED, WRITING, SEALED = range(4)
"""States of a slot of hbm; doomed: written for a block that is gone."""


def groups(column: U32) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """(value, positions of its elements), for each value of a column."""
    for value in np.unique(column).tolist():
        yield value, np.flatnonzero(column == value)


class KnownSlots:
    """What is known of one dram segment's slots; arrays [slots], grown as slots are seen.

    `home` is the position of the copy's segment plus 1, 0 where there is none; `at` its slot.
    """

    def __init__(self) -> None:
        self.generation = self.home = self.at = np.zeros(0, np.uint32)
        self.seen = np.zeros(0, np.uint8)

    def grow(self, slots: int) -> None:
        """Room for slots below `slots`."""
        if slots > len(self.seen):
            more = max(slots, 2 * len(self.seen)) - len(self.seen)
            for name in ("generation", "home", "at", "seen"):
                setattr(self, name, np.pad(getattr(self, name), (0, more)))

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known that is worth keeping."""
        return not (self.home.any() or self.seen.any())


class CopySegment:
    """One segment of hbm with slots of one size; arrays [slots]."""

    def __init__(self, index: int, segment_id: int, shape: SegmentShape, generation: int) -> None:
        self.index, self.segment_id, self.shape = index, segment_id, shape
        self.slab = Slab(shape.slots, generation)
        self.source = np.zeros(shape.slots, PLACE)
        self.state = np.zeros(shape.slots, np.uint8)
        self.stamp = np.zeros(shape.slots, np.uint64)

    @property
    def is_still(self) -> bool:
        """Whether no slot is being written."""
        return not self.written.any()

    @property
    def linked(self) -> Bools:
        """Slots whose block knows of them."""
        return np.asarray(self.state >= WRITING)

    @property
    def written(self) -> Bools:
        """Slots that an open ticket writes."""
        return np.asarray((self.state == WRITING) | (self.state == DOOMED))

    def give(self, slots: U32) -> None:
        """These hold nothing any more."""
        self.state[slots] = FREE
        self.slab.give(slots)
