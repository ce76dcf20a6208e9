"""Hints: a table in shared memory that says where a block lies, perhaps.

::

    0        64
    +--------+------------------------+------------------------+-----+
    | header | bucket 0: 16 x u64     | bucket 1               | ... |    one table a domain
    +--------+------------------------+------------------------+-----+

    home   = mix(first word of the path hash, layout key): each half scaled to the number of
             buckets names one of two, and the entry lies in either
    entry  = tag (16 bits) | segment id (24) | slot (24)                  0: empty

The daemon writes it, clients of its domain map it read-only and find blocks without a call.  A
hint may be stale, and a block may have none (its bucket was full): what a hint points at is
believed only where the slot's own record says so (segment.py), and who finds nothing asks the
daemon.  So writing needs no lock, and a torn read costs a call.

The header's epoch moves when an operator turns a namespace off or on; it ends (0) when the table
has been replaced by a larger one.  Golden bytes: docs/formats.md, section 4.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from anchorstore.errors import BootChanged, InvalidRequest

MAGIC = b"ANCHHNT1"
HEADER = struct.Struct("<8s16sQQ")  # magic, boot id, epoch, buckets
EPOCH = struct.Struct("<Q")
EPOCH_OFFSET = 24
BUCKETS_OFFSET = 64
WAYS = 16
ENTRY_BYTES = 8
BUCKET_BYTES = WAYS * ENTRY_BYTES
SLOT_BITS = 24
SEGMENT_ID_LIMIT = SLOT_LIMIT = 2**SLOT_BITS
_BUCKET = struct.Struct(f"<{WAYS}Q")
_FIRST_WORD = struct.Struct("<Q")
_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio (Knuth's multiplicative hashing)
_MASK_64 = 2**64 - 1
_SLOT_MASK = SLOT_LIMIT - 1
_POSITION_MASK = 2**48 - 1

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


def table_bytes(buckets: int) -> int:
    """Size of a table."""
    return BUCKETS_OFFSET + BUCKET_BYTES * buckets


def format_table(memory: memoryview, boot_id: bytes, buckets: int) -> U64:
    """Writes the header of an empty table; returns its entries, writable [buckets, WAYS]."""
    assert 0 < buckets < 2**32 and len(memory) >= table_bytes(buckets), (buckets, len(memory))
    memory[: HEADER.size] = HEADER.pack(MAGIC, boot_id, 1, buckets)
    entries = np.frombuffer(memory, np.uint64, buckets * WAYS, BUCKETS_OFFSET)
    return entries.reshape(buckets, WAYS)


def places(first_words: U64, layout_keys: U64, buckets: int) -> tuple[npt.NDArray[np.intp], U64]:
    """Both home buckets [n, 2] and the tag, in the entry's place, of each key [n]."""
    mixed = (first_words ^ layout_keys) * np.uint64(_MIX)
    halves = np.stack([mixed >> np.uint64(32), mixed & np.uint64(0xFFFFFFFF)], axis=1)
    homes = halves * np.uint64(buckets) >> np.uint64(32)
    return homes.astype(np.intp), mixed << np.uint64(48)


def positions(segment_ids: U32, slots: U32) -> U64:
    """Segment id and slot as they stand in an entry [n]."""
    return segment_ids.astype(np.uint64) << np.uint64(SLOT_BITS) | slots


def segments_and_slots(entries: U64) -> tuple[U32, U32]:
    """Segment ids and slots that entries [n] name."""
    mask = np.uint64(_SLOT_MASK)
    segment_ids = entries >> np.uint64(SLOT_BITS) & mask
    return segment_ids.astype(np.uint32), (entries & mask).astype(np.uint32)


class HintView:
    """A reader's view of a mapped table."""

    def __init__(self, memory: memoryview, boot_id: bytes) -> None:
        self._memory = memory.toreadonly()
        magic, boot, _, buckets = HEADER.unpack_from(self._memory)
        if magic != MAGIC:
            raise InvalidRequest(f"hints: header starts with {magic!r}")
        if boot != boot_id:
            raise BootChanged(f"hints belong to boot {boot.hex()}")
        if not buckets or table_bytes(buckets) > len(memory):
            raise InvalidRequest(f"hints: {buckets} buckets exceed {len(memory)} bytes")
        self._buckets = buckets

    @property
    def epoch(self) -> int:
        """What moves with a namespace's kill switch; 0 where the table has been replaced."""
        found: int = EPOCH.unpack_from(self._memory, EPOCH_OFFSET)[0]
        return found

    def find(self, path_hash: bytes, layout_key: int) -> list[tuple[int, int]]:
        """(segment id, slot) where the block may lie, none of them for sure."""
        mixed = (_FIRST_WORD.unpack_from(path_hash)[0] ^ layout_key) * _MIX & _MASK_64
        tag = mixed & 0xFFFF
        found = []
        for half in (mixed >> 32, mixed & 0xFFFFFFFF):
            place = BUCKETS_OFFSET + (half * self._buckets >> 32) * BUCKET_BYTES
            found += [
                (entry >> SLOT_BITS & _SLOT_MASK, entry & _SLOT_MASK)
                for entry in _BUCKET.unpack_from(self._memory, place)
                if entry >> 48 == tag and entry & _POSITION_MASK
            ]
        return found
