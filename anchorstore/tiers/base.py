"""What the shell asks of a tier: memory in segments of equal size, written by the daemon alone.

::

    SlotTier          segments with headers and records, which clients map
      x Tier          dram: the blocks lie beside them, in memory that this process addresses
      x DeviceTier    hbm: the blocks lie on a device; `Moves` carry them there and back

The core decides which slot of which segment holds a block; a tier only keeps the bytes, gives
segments their headers, and names the descriptors that a client may map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anchorstore.transport.segment import Records

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may be called from another thread."""


class FormatAction(Protocol):
    """The core's order to give a segment a new identity and slots of a new size."""

    @property
    def index(self) -> int: ...
    @property
    def segment_id(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def first_generation(self) -> int: ...
    @property
    def fresh_memory(self) -> bool: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """Blocks between host memory and slots of a tier; columns of equal length [n].

    Attributes:
        memories, memory_offsets: u32, u64: the host's end, memory_of(memories[i]) from there on.
        segments, slots, offsets: u32, u32, u64: the tier's end, in segment segments[i].
        block_bytes: u64.
        generations: u32: odd, what a slot shows while it is written; even, what it must show
            when it is read.
        checksums: u64: xxh3 of each block as it was sealed.
        path_hashes, layout_keys, lineages: u64[n, 4], u64, u8: for the record of a written slot.
    """

    memories: npt.NDArray[np.uint32]
    memory_offsets: npt.NDArray[np.uint64]
    segments: npt.NDArray[np.uint32]
    slots: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    block_bytes: npt.NDArray[np.uint64]
    generations: npt.NDArray[np.uint32]
    checksums: npt.NDArray[np.uint64]
    path_hashes: npt.NDArray[np.uint64]
    layout_keys: npt.NDArray[np.uint64]
    lineages: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.slots)


MemoryOf = Callable[[int], npt.NDArray[np.uint8]]
"""Host memory by number [bytes]; must stay where it is until the move has ended."""

Moved = npt.NDArray[np.bool_]
"""Per block [n]: whether it arrived, proven by its checksum."""


class SlotTier(Protocol):
    """Segments of `segment_bytes`, numbered 0 to `segments` - 1."""

    name: str
    segments: int
    segment_bytes: int

    def format(self, action: FormatAction) -> None:
        """Gives one segment a new identity; new memory where the action asks for it."""

    def records(self, index: int) -> Records:
        """The records of a formatted segment's slots, writable [slots] of segment.RECORD."""

    def index_of(self, segment_id: int) -> int:
        """Where the segment with this id lies; LookupError for an id that is not in use."""

    def descriptor(self, index: int) -> int:
        """Memory file of `segment_bytes` that a client maps read-only; stays the tier's."""

    def close(self) -> None:
        """Gives the memory back."""


class Tier(SlotTier, Protocol):
    """A tier whose blocks this process addresses."""

    def memory(self, index: int) -> npt.NDArray[np.uint8]:
        """All bytes of a segment, writable [segment_bytes]."""


class DeviceTier(SlotTier, Protocol):
    """A tier whose blocks lie on a device, which may be lost while everything else goes on."""

    @property
    def is_online(self) -> bool:
        """Whether anything still lies there.  Once False, always False."""

    def write(self, moves: Moves, memory_of: MemoryOf) -> Future[Moved]:
        """Copies blocks to slots and seals them.  Never raises but for a broken invariant."""

    def read(self, moves: Moves, memory_of: MemoryOf) -> Future[Moved]:
        """Copies sealed blocks to host memory.  Never raises but for a broken invariant."""
