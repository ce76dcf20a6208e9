"""The slots of one segment: which are free, and the generation that each shows next.  Pure.

::

    free stack    [ 7 | 3 | 5 | . . . ]   last in, first out: the warmest memory goes first
                            ^ free
    generations   [ 4 | 2 | 6 | 0 | ... ] even: what the slot shows, or will show, once sealed

A taken slot shows generation + 1 (odd) while it is written and generation + 2 once sealed, so it
never repeats in a segment.  A slot that would run out of numbers is retired instead of freed.
8 bytes a slot.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]

GENERATION_LIMIT = 2**32 - 4
"""A slot whose generation reaches this is never handed out again."""


class Slab:
    """Allocator of `slots` equal slots."""

    def __init__(self, slots: int, first_generation: int) -> None:
        assert slots > 0, f"a segment without a slot: {slots}"
        assert first_generation % 2 == 0, f"first generation {first_generation} is odd"
        self.slots = slots
        self.retired = 0
        self._generations = np.full(slots, first_generation, np.uint32)
        self._stack = np.arange(slots, dtype=np.uint32)[::-1].copy()  # slot 0 on top
        self._free = slots

    @property
    def free(self) -> int:
        """Slots that can be taken now."""
        return self._free

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return self.slots - self._free - self.retired

    @property
    def is_worn(self) -> bool:
        """Whether a slot has run out of generations: the same memory can show no higher ones."""
        return self.ceiling() >= GENERATION_LIMIT

    def take(self, count: int) -> tuple[U32, U32]:
        """`count` free slots and the odd generations that they show while written."""
        assert 0 <= count <= self._free, f"{count} slots wanted, {self._free} free"
        left = self._free - count
        slots = self._stack[left : self._free][::-1].copy()
        self._free = left
        writing = self._generations[slots] + np.uint32(1)
        self._generations[slots] += np.uint32(2)
        return slots, writing

    def give(self, slots: U32) -> None:
        """Frees taken slots.  Each must be named once."""
        assert len(slots) <= self.used, f"{len(slots)} slots given back, {self.used} taken"
        worn = self._generations[slots] >= GENERATION_LIMIT
        if worn.any():
            self.retired += int(worn.sum())
            slots = slots[~worn]
        self._stack[self._free : self._free + len(slots)] = slots
        self._free += len(slots)

    def adopt(self, slots: U32, generations: U32) -> None:
        """Marks distinct slots as taken and showing these even generations, as a restart finds
        them; all slots are free now."""
        assert self._free == self.slots, "slots are adopted into an empty segment"
        taken = np.zeros(self.slots, np.bool_)
        taken[slots] = True
        free = np.flatnonzero(~taken).astype(np.uint32)[::-1]
        self._stack[: len(free)] = free
        self._free = len(free)
        self._generations[slots] = generations

    def generations_of(self, slots: U32) -> U32:
        """The even generation that each taken slot [n] shows once it is sealed."""
        return self._generations[slots]

    def ceiling(self) -> int:
        """An even generation that no slot has gone beyond: a new format of the same memory
        starts there."""
        return int(self._generations.max())

    def check(self, taken: U32) -> list[str]:
        """Violations, given the slots that the owner believes are taken."""
        found = []
        free = self._stack[: self._free]
        seen = np.bincount(np.concatenate([free, taken]), minlength=self.slots)
        if len(seen) > self.slots:
            return [f"slab: a slot {len(seen) - 1} of {self.slots}"]
        if (seen > 1).any():
            found.append(f"slab: slots {np.flatnonzero(seen > 1)[:8].tolist()} taken twice or free")
        if int((seen == 0).sum()) != self.retired:
            found.append(f"slab: {int((seen == 0).sum())} slots lost, {self.retired} retired")
        if (self._generations % 2).any():
            found.append("slab: an odd generation at rest")
        return found
