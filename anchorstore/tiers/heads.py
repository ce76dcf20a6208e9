"""Headers and records of a tier's segments, in memory that only the daemon writes.

::

    tier              Heads                                      a client
    format ---------> header | records, identity by index <----- maps it read-only, by descriptor
    records, index_of -^                                         (sealed: it cannot write, nor cut)

One memory file a segment.  Where the slots lie is the tier's affair: dram has them in the same
file, hbm on a device, and then nothing but header and records of the file is ever touched.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from anchorstore.tiers.base import FormatAction
from anchorstore.transport import segment as segments_format

F_ADD_SEALS = 1033
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


def memory_file(name: str, size: int, flags: int = 0) -> tuple[int, mmap.mmap]:
    """A new memory file of `size` bytes and its writable mapping; OSError without the memory."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(descriptor, size)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


class SealedMemory:
    """A memory file that only the daemon can write.  Mappings end with the last view of them."""

    def __init__(self, name: str, size: int, flags: int = 0) -> None:
        self.descriptor, mapping = memory_file(name, size, flags)
        seals = SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE | SEAL_SEAL
        fcntl.fcntl(self.descriptor, F_ADD_SEALS, seals)
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)

    def strike(self) -> None:
        """Tells whoever maps it that the segment is over."""
        self.memory[: segments_format.HEADER.size] = 0

    def close(self) -> None:
        """Lets go of the descriptor."""
        os.close(self.descriptor)


class Heads:
    """The memory files of a tier's segments, and which segment each of them is now.

    Args:
        count: segments, numbered from 0.
        boot_id: 16 bytes, written into each segment's header.
        new_memory: makes the memory of a segment; OSError where there is none to be had.
    """

    def __init__(self, count: int, boot_id: bytes, new_memory: Callable[[], SealedMemory]) -> None:
        self._boot_id, self._new_memory = boot_id, new_memory
        self._files: list[SealedMemory] = []
        self._records: list[segments_format.Records | None] = [None] * count
        self._ids: list[int | None] = [None] * count
        self._index: dict[int, int] = {}
        try:
            self._files.extend(new_memory() for _ in range(count))
        except OSError:
            self.close()
            raise

    def format(self, action: FormatAction) -> None:
        """Gives a segment a new identity, and new memory where the action asks for it: whoever
        maps the old one is told that it is over."""
        old, file = self._ids[action.index], self._files[action.index]
        if old is not None:
            del self._index[old]
        if action.fresh_memory:
            file.strike()
            file.close()
            file = self._files[action.index] = self._new_memory()
        shape = segments_format.SegmentShape(len(file.memory), action.slot_bytes)
        assert shape.slots == action.slots, (shape, action)
        assert action.segment_id not in self._index, action
        self._records[action.index] = segments_format.format_segment(
            memoryview(file.memory),
            self._boot_id,
            action.segment_id,
            action.slot_bytes,
            action.first_generation,
        )
        self._ids[action.index] = action.segment_id
        self._index[action.segment_id] = action.index

    def records(self, index: int) -> segments_format.Records:
        """See SlotTier."""
        found = self._records[index]
        assert found is not None, f"segment at {index} was never formatted"
        return found

    def index_of(self, segment_id: int) -> int:
        """See SlotTier."""
        return self._index[segment_id]

    def memory(self, index: int) -> npt.NDArray[np.uint8]:
        """All bytes of a segment's file, writable."""
        return self._files[index].memory

    def descriptor(self, index: int) -> int:
        """Of a segment's file; stays the tier's."""
        return self._files[index].descriptor

    def strike_all(self) -> None:
        """Tells whoever maps any of them that the segments are over."""
        for file in self._files:
            file.strike()

    def close(self) -> None:
        """Lets go of every descriptor."""
        for file in self._files:
            file.close()
        self._files.clear()
