"""A segment: the region of a tier's memory that a client maps once, read-only.

::

    0                64            first_slot_offset (multiple of 4096)
    +----------------+-------------+----------+----------+-----+
    | header         | generations | slot 0   | slot 1   | ... |
    | magic, ids     | u32 a slot  |          |          |     |
    +----------------+-------------+----------+----------+-----+

A slot's generation is odd while it is written and even once sealed; it never repeats in a
segment.  So a reader that holds (segment id, slot, generation) copies first and then looks: where
the segment id and the generation still stand, the bytes are the sealed ones (a seqlock with one
writer; x86-64 and aarch64 readers pair it with the lease, which keeps the slot from reuse).
Golden bytes: docs/formats.md, section 4.
"""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import numpy.typing as npt

from anchorstore.errors import BootChanged, InvalidRequest, TornBlock

MAGIC = b"ANCHSEG1"
HEADER = struct.Struct("<8s16sIIQII")  # magic, boot id, segment id, slots, slot bytes, first, zero
GENERATIONS_OFFSET = 64
ALIGN_BYTES = 4096

assert HEADER.size <= GENERATIONS_OFFSET


def align(size: int) -> int:
    """`size` rounded up to a page of memory."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


def slot_bytes_of(block_bytes: int) -> int:
    """Bytes of the slot that holds a block: multiples of 4 KiB, so that direct I/O can use it."""
    return align(block_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentShape:
    """How many slots of one size a segment holds, and where they start.  All in bytes."""

    segment_bytes: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        room = self.segment_bytes - GENERATIONS_OFFSET
        slots = max(0, room // (self.slot_bytes + 4))
        while slots and align(GENERATIONS_OFFSET + 4 * slots) + slots * self.slot_bytes > (
            self.segment_bytes
        ):
            slots -= 1
        return slots

    @property
    def first_slot_offset(self) -> int:
        return align(GENERATIONS_OFFSET + 4 * self.slots)

    def offset(self, slot: int) -> int:
        """Where slot number `slot` starts."""
        return self.first_slot_offset + slot * self.slot_bytes


def format_segment(
    memory: memoryview, boot_id: bytes, segment_id: int, slot_bytes: int, first_generation: int
) -> npt.NDArray[np.uint32]:
    """Writes the header of a segment; returns its generations as a writable view [slots].

    `first_generation` is even and above every generation that this memory has shown before.
    """
    shape = SegmentShape(len(memory), slot_bytes)
    assert shape.slots > 0, f"no slot of {slot_bytes} bytes fits a segment of {len(memory)}"
    assert first_generation % 2 == 0, first_generation
    memory[: HEADER.size] = bytes(HEADER.size)  # a reader of the old segment sees it end first
    generations = np.frombuffer(memory, np.uint32, shape.slots, GENERATIONS_OFFSET)
    generations[:] = first_generation
    memory[: HEADER.size] = HEADER.pack(
        MAGIC, boot_id, segment_id, shape.slots, slot_bytes, shape.first_slot_offset, 0
    )
    return generations


class SegmentView:
    """A reader's view of a mapped segment: slices blocks and says whether they still stand."""

    def __init__(self, memory: memoryview, boot_id: bytes, segment_id: int) -> None:
        self.memory = memory.toreadonly()
        self.segment_id = segment_id
        magic, boot, found, slots, slot_bytes, first, _ = self._header()
        if magic != MAGIC:
            raise InvalidRequest(f"segment {segment_id}: header starts with {magic!r}")
        if boot != boot_id:
            raise BootChanged(f"segment {segment_id} belongs to boot {boot.hex()}")
        if found != segment_id:
            raise TornBlock(f"segment {segment_id} was reformatted as {found}")
        if first + slots * slot_bytes > len(memory):
            raise InvalidRequest(
                f"segment {segment_id}: {slots} slots of {slot_bytes} bytes exceed "
                f"its {len(memory)} bytes"
            )
        self.slots, self.slot_bytes, self.first_slot_offset = slots, slot_bytes, first
        self._generations = np.frombuffer(memory, np.uint32, slots, GENERATIONS_OFFSET)

    def _header(self) -> tuple[bytes, bytes, int, int, int, int, int]:
        return HEADER.unpack_from(self.memory)

    def block(self, offset: int, block_bytes: int) -> memoryview:
        """The block at `offset`, in place, read-only; InvalidRequest outside the slots."""
        if not self.first_slot_offset <= offset <= len(self.memory) - block_bytes:
            raise InvalidRequest(f"segment {self.segment_id}: no block at offset {offset}")
        return self.memory[offset : offset + block_bytes]

    def stands(
        self, offsets: npt.NDArray[np.uint64], generations: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.bool_]:
        """Per block [n]: whether the bytes read there are still the sealed ones."""
        if self._header()[2] != self.segment_id:
            return np.zeros(len(offsets), np.bool_)
        slots = (offsets - np.uint64(self.first_slot_offset)) // np.uint64(self.slot_bytes)
        found: npt.NDArray[np.bool_] = self._generations[slots.astype(np.intp)] == generations
        return found

    def release(self) -> None:
        """Lets go of the mapping so that it can be closed."""
        del self._generations
        self.memory.release()
