"""A segment: the region of a tier's memory that a client maps once, read-only.

::

    0                64            first_slot_offset (multiple of 4096)
    +----------------+-------------+----------+----------+-----+
    | header         | records     | slot 0   | slot 1   | ... |
    | magic, ids     | 64 B a slot |          |          |     |
    +----------------+-------------+----------+----------+-----+

    record   generation u32 | lineage u8 | layout key u64 | checksum u64 | path hash

A slot says itself what lies in it, so whoever knows only where to look can tell whether it is the
block that it wants.  Its generation is odd while it is written and even once sealed; it never
repeats in a segment.  So a reader notes the generation, compares the record, copies, and looks
again: where the segment id and the generation still stand, the bytes are the sealed ones (a
seqlock with one writer; on x86-64, which keeps the order of loads and of stores, no more is
needed.  Elsewhere readers hold a lease, which keeps the slot from reuse, or check the checksum).
Golden bytes: docs/formats.md, section 4.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.errors import BootChanged, InvalidRequest, TornBlock

MAGIC = b"ANCHSEG2"
HEADER = struct.Struct("<8s16sIIQII")  # magic, boot id, segment id, slots, slot bytes, first, zero
RECORDS_OFFSET = 64
RECORD = np.dtype(
    [
        ("generation", "<u4"),
        ("lineage", "u1"),
        ("zero", "u1", 3),
        ("layout_key", "<u8"),
        ("checksum", "<u8"),
        ("path_hash", "<u8", 4),
        ("rest", "<u8"),
    ]
)
RECORD_BYTES = RECORD.itemsize
GENERATION = struct.Struct("<I")  # a record's first field
RECORD_BODY = struct.Struct("<B3xQQ32s")  # what follows: lineage, layout key, checksum, path hash
PLACE = np.dtype([("segment", "<u4"), ("slot", "<u4"), ("generation", "<u4"), ("checksum", "<u8")])
"""Where a sealed block lies, in answers and in the index: 20 bytes, without gaps."""
ALIGN_BYTES = 4096
DEVICE_IDS_FROM = 1 << 31
"""Segments of dram have ids below, those of hbm from here on."""

Places = npt.NDArray[Any]  # of PLACE
Records = npt.NDArray[Any]  # of RECORD

assert HEADER.size <= RECORDS_OFFSET and RECORD_BYTES == 64


def align(size: int) -> int:
    """`size` rounded up to a page of memory."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


def slot_bytes_of(block_bytes: int) -> int:
    """Bytes of the slot that holds a block: multiples of 4 KiB, so that direct I/O can use it."""
    return align(block_bytes)


@functools.lru_cache(maxsize=4096)
def layout_key(root_digest: bytes, layout_digest: bytes, shard: int) -> int:
    """Names a namespace's layout and shard in a record: the first 8 bytes, little-endian, of the
    SHA-256 of the root digest and the layout digest (32 bytes each) and the shard (u32,
    big-endian)."""
    digest = hashlib.sha256(root_digest + layout_digest + shard.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:8], "little")


@dataclasses.dataclass(frozen=True, slots=True)
class SegmentShape:
    """How many slots of one size a segment holds, and where they start.  All in bytes."""

    segment_bytes: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        room = self.segment_bytes - RECORDS_OFFSET
        slots = max(0, room // (self.slot_bytes + RECORD_BYTES))
        while slots and _records_end(slots) + slots * self.slot_bytes > self.segment_bytes:
            slots -= 1
        return slots

    @property
    def first_slot_offset(self) -> int:
        return _records_end(self.slots)

    def offset(self, slot: int) -> int:
        """Where slot number `slot` starts."""
        return self.first_slot_offset + slot * self.slot_bytes

    def offsets(self, slots: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Where each of these slots [n] starts."""
        sizes = slots.astype(np.uint64) * np.uint64(self.slot_bytes)
        return np.asarray(sizes + np.uint64(self.first_slot_offset))


def record_offset(slot: int) -> int:
    """Where the record of slot number `slot` starts in a segment."""
    return RECORDS_OFFSET + RECORD_BYTES * slot


def _records_end(slots: int) -> int:
    return align(record_offset(slots))


def format_segment(
    memory: memoryview, boot_id: bytes, segment_id: int, slot_bytes: int, first_generation: int
) -> Records:
    """Writes the header of a segment; returns its records as a writable view [slots] of RECORD.

    `first_generation` is even and above every generation that this memory has shown before.
    """
    shape = SegmentShape(len(memory), slot_bytes)
    assert shape.slots > 0, f"no slot of {slot_bytes} bytes fits a segment of {len(memory)}"
    assert first_generation % 2 == 0, first_generation
    memory[: HEADER.size] = bytes(HEADER.size)  # a reader of the old segment sees it end first
    records = np.frombuffer(memory, RECORD, shape.slots, RECORDS_OFFSET)
    records.view(np.uint8)[:] = 0
    records["generation"] = first_generation
    memory[: HEADER.size] = HEADER.pack(
        MAGIC, boot_id, segment_id, shape.slots, slot_bytes, shape.first_slot_offset, 0
    )
    return records


class SegmentView:
    """A reader's view of a mapped segment: slices blocks and says whether they still stand."""

    def __init__(self, memory: memoryview, boot_id: bytes, segment_id: int) -> None:
        self.memory = memory.toreadonly()
        self.segment_id = segment_id
        magic, boot, found, slots, slot_bytes, first, _ = self._header()
        if magic == bytes(len(MAGIC)):
            raise TornBlock(f"segment {segment_id} is being formatted anew")
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
        self._generations = np.frombuffer(self.memory, RECORD, slots, RECORDS_OFFSET)["generation"]

    def _header(self) -> tuple[bytes, bytes, int, int, int, int, int]:
        return HEADER.unpack_from(self.memory)

    def block(self, slot: int, block_bytes: int) -> memoryview:
        """The block in a slot, in place, read-only; InvalidRequest outside the slots."""
        if not 0 <= slot < self.slots or block_bytes > self.slot_bytes:
            raise InvalidRequest(
                f"segment {self.segment_id}: no block of {block_bytes} bytes in slot {slot} of "
                f"{self.slots}"
            )
        offset = self._offset(slot)
        return self.memory[offset : offset + block_bytes]

    def _offset(self, slot: int) -> int:
        return self.first_slot_offset + slot * self.slot_bytes

    def record(self, slot: int) -> tuple[int, int, int, int, bytes] | None:
        """Generation, lineage, layout key, checksum and path hash that a slot shows; None for a
        slot that the segment does not have, or where it is another one by now."""
        if slot >= self.slots or self._header()[2] != self.segment_id:
            return None
        place = record_offset(slot)
        [generation] = GENERATION.unpack_from(self.memory, place)
        lineage, key, checksum, path_hash = RECORD_BODY.unpack_from(
            self.memory, place + GENERATION.size
        )
        return generation, lineage, key, checksum, path_hash

    def run(self, slot: int, count: int, block_bytes: int) -> npt.NDArray[np.uint8]:
        """The blocks in `count` slots side by side, in place, read-only [count, block_bytes]."""
        shape, strides = (count, block_bytes), (self.slot_bytes, 1)
        return np.ndarray(shape, np.uint8, self.memory, self._offset(slot), strides)

    def slot_stands(self, slot: int, generation: int) -> bool:
        """Whether what was read in the slot since it showed `generation` is what it showed."""
        [found] = GENERATION.unpack_from(self.memory, record_offset(slot))
        return bool(found == generation and self._header()[2] == self.segment_id)

    def stands(
        self, slots: npt.NDArray[np.uint32], generations: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.bool_]:
        """Per block [n]: whether the bytes read there are still the sealed ones."""
        if self._header()[2] != self.segment_id:
            return np.zeros(len(slots), np.bool_)
        found: npt.NDArray[np.bool_] = self._generations[slots] == generations
        return found

    def release(self) -> None:
        """Lets go of the mapping so that it can be closed."""
        del self._generations
        self.memory.release()
