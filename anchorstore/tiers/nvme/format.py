"""The bytes of an nvme device: superblock, journal frames, entries, footers.  Pure.

::

    0       4096    8192          (1 MiB steps)                data_offset
    +-------+-------+-----------+-----------+------------------+-----------+-----+
    | super | super | journal 0 | journal 1 | segment 0        | segment 1 | ... |
    | copy 0| copy 1|           |           | slot | slot | .. |           |     |
    +-------+-------+-----------+-----------+------------------+-----------+-----+

    frame   header 64 B | payload | zeros up to a multiple of 4096
    slot    block | zeros | footer 128 B          a multiple of 4096

A *unit* is a step of 4096 bytes from data_offset.  Every reader here takes bytes that anybody may
have written: it answers None, or a verdict, and never reads beyond what it was given.
Golden bytes: docs/formats.md, section 7.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.errors import ConfigError
from anchorstore.units import GIB, MIB, format_bytes

UNIT_BYTES = 4096
MAGIC = b"ANCHNVM1"
VERSION = 1
SUPERBLOCK_BYTES = UNIT_BYTES
SUPERBLOCK_COPIES = 2
REGIONS_OFFSET = MIB
JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX = MIB, 4 * GIB
JOURNAL_SHARE = 32  # of the capacity: room for an entry a slot even where slots are 4 KiB

_SUPERBLOCK = struct.Struct("<8sIIQ16sQQIIQQQQQQ")
_CHECKSUM = struct.Struct("<Q")

FRAME_MAGIC = b"ANJF"
FRAME_HEADER = struct.Struct("<4sHHQQIIQQQ")  # then the xxh3 of these 56 bytes
FRAME_HEADER_BYTES = 64
FRAME_ENTRIES_MAX = 65_536
FRAME_PAYLOAD_MAX = 8 * MIB

FOOTER_MAGIC = b"ANCHFTR1"
FOOTER = np.dtype(
    [
        ("magic", "S8"),
        ("generation", "<u4"),
        ("page", "<u4"),
        ("block_bytes", "<u4"),
        ("lineage", "u1"),
        ("zero", "u1", 3),
        ("checksum", "<u8"),
        ("layout_key", "<u8"),
        ("path_hash", "<u8", 4),
        ("parent_hash", "<u8", 4),
        ("device_key", "<u8"),
        ("namespace", "<u4"),
        ("kind", "<u2"),
        ("zero_too", "<u2"),
        ("footer_checksum", "<u8"),
    ]
)
"""What proves a slot without the journal."""
FOOTER_BYTES = 128
FOOTER_GENERATION, FOOTER_BLOCK = slice(8, 12), slice(16, 72)
"""What a reader compares: the generation; size, lineage, checksum, layout key and path hash."""
FOOTER_DEVICE = slice(104, 112)
_FOOTER_BODY_BYTES = 120

ENTRY = np.dtype(
    [
        ("path_hash", "<u8", 4),
        ("parent_hash", "<u8", 4),
        ("checksum", "<u8"),
        ("unit", "<u4"),
        ("generation", "<u4"),
        ("page", "<u4"),
        ("namespace", "<u4"),
        ("kind", "<u2"),
        ("lineage", "u1"),
        ("zero", "u1", 5),
    ]
)
"""A block of the journal: where it lies and what proves it.  Namespace and kind are numbers that
this journal gave them."""

Entries = npt.NDArray[Any]  # of ENTRY
Buffer = bytes | bytearray | memoryview

assert _SUPERBLOCK.size < SUPERBLOCK_BYTES and ENTRY.itemsize == 96
assert FRAME_HEADER.size + 8 == FRAME_HEADER_BYTES and FOOTER.itemsize == FOOTER_BYTES


def align(size: int) -> int:
    """`size` rounded up to whole units, in bytes."""
    return -(-size // UNIT_BYTES) * UNIT_BYTES


def align_many(sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`align`, element by element."""
    unit = np.uint64(UNIT_BYTES)
    return (sizes + unit - np.uint64(1)) // unit * unit


def slot_bytes_of(block_bytes: int) -> int:
    """Bytes of the slot that holds a block and its footer."""
    return align(block_bytes + FOOTER_BYTES)


def xxh3(data: Buffer | npt.NDArray[np.uint8]) -> int:
    """The checksum that every part of the format uses."""
    return xxhash.xxh3_64_intdigest(data)


class FrameType(enum.IntEnum):
    """What a frame's payload holds."""

    BLOCKS = 1  # ENTRY[count]: blocks that lie in their slots
    GONE = 2  # u32[count]: units whose blocks are no more
    NAMESPACE = 3  # one namespace and its number
    KIND = 4  # one layout and its number
    USED = 5  # u32[count]: units whose blocks were used since, in the order of use


@dataclasses.dataclass(frozen=True, slots=True)
class Superblock:
    """What a device says about itself.

    Attributes:
        sequence: grows at every write; copy `sequence` % 2 holds it.
        device_id: 16 random bytes, made with the file.
        capacity_bytes: of the file.
        segment_bytes, segments: the data area's.
        active: which journal region holds the journal.
        journal_offset, journal_bytes: of region 0, and of each.
        data_offset: where segment 0 starts.
        journal_id: random; only frames that show it belong to the journal.
        starts: how often the device was opened for writing.
        durable_frames: of the active region, that were on the device when this was written: as it
            became the journal, and at a clean end; 0 where that is not known.
    """

    sequence: int
    device_id: bytes
    capacity_bytes: int
    segment_bytes: int
    segments: int
    active: int
    journal_offset: int
    journal_bytes: int
    data_offset: int
    journal_id: int
    starts: int
    durable_frames: int

    @property
    def units(self) -> int:
        """Units of the data area."""
        return self.segments * (self.segment_bytes // UNIT_BYTES)

    def region_offset(self, region: int) -> int:
        """Where a journal region starts."""
        return self.journal_offset + region * self.journal_bytes

    @property
    def is_sound(self) -> bool:
        """Whether the parts lie within the file and apart from each other."""
        parts = (self.segment_bytes, self.journal_offset, self.journal_bytes, self.data_offset)
        end = self.data_offset + self.segments * self.segment_bytes
        return (
            all(part % UNIT_BYTES == 0 for part in parts)
            and self.active in (0, 1)
            and self.segments > 0
            and self.segment_bytes >= UNIT_BYTES
            and self.journal_bytes >= UNIT_BYTES
            and self.journal_offset >= SUPERBLOCK_COPIES * SUPERBLOCK_BYTES
            and self.data_offset >= self.region_offset(2)
            and end <= self.capacity_bytes
            and self.units < 2**32
        )

    def encoded(self) -> bytes:
        """4096 bytes."""
        body = _SUPERBLOCK.pack(
            MAGIC,
            VERSION,
            0,
            self.sequence,
            self.device_id,
            self.capacity_bytes,
            self.segment_bytes,
            self.segments,
            self.active,
            self.journal_offset,
            self.journal_bytes,
            self.data_offset,
            self.journal_id,
            self.starts,
            self.durable_frames,
        ).ljust(SUPERBLOCK_BYTES - _CHECKSUM.size, b"\0")
        return body + _CHECKSUM.pack(xxh3(body))


def superblock_of(page: Buffer) -> Superblock | None:
    """The superblock in 4096 bytes; None where there is no sound one.

    ConfigError for one that a newer version has written: it is not ours to overwrite.
    """
    if len(page) != SUPERBLOCK_BYTES or bytes(page[: len(MAGIC)]) != MAGIC:
        return None
    body = bytes(page[: -_CHECKSUM.size])
    if _CHECKSUM.unpack(page[-_CHECKSUM.size :])[0] != xxh3(body):
        return None
    _, version, _, *fields = _SUPERBLOCK.unpack_from(body)
    if version != VERSION:
        raise ConfigError(f"nvme: the device has format version {version}, this is {VERSION}")
    found = Superblock(*fields)
    return found if found.is_sound else None


def geometry(
    capacity_bytes: int, segment_bytes: int, journal_bytes: int, device_id: bytes
) -> Superblock:
    """A new device's superblock; ConfigError where no segment fits."""
    if not journal_bytes:
        journal_bytes = min(
            max(capacity_bytes // JOURNAL_SHARE, JOURNAL_BYTES_MIN), JOURNAL_BYTES_MAX
        )
    journal_bytes = align(journal_bytes)
    capacity_bytes -= capacity_bytes % UNIT_BYTES
    data_offset = -(-(REGIONS_OFFSET + 2 * journal_bytes) // MIB) * MIB
    segments = (capacity_bytes - data_offset) // segment_bytes
    found = Superblock(
        sequence=0,
        device_id=device_id,
        capacity_bytes=capacity_bytes,
        segment_bytes=segment_bytes,
        segments=max(0, segments),
        active=0,
        journal_offset=REGIONS_OFFSET,
        journal_bytes=journal_bytes,
        data_offset=data_offset,
        journal_id=0,
        starts=0,
        durable_frames=0,
    )
    if not found.is_sound:
        raise ConfigError(
            f"nvme: {format_bytes(capacity_bytes)} hold no segment of "
            f"{format_bytes(segment_bytes)} beside {format_bytes(data_offset)} of journal, or more "
            "than 16TiB of them"
        )
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class FrameHeader:
    """The first 64 bytes of a frame.

    Attributes:
        durable: how many frames of the region were on the device before this one was written.
    """

    type: int
    journal_id: int
    sequence: int
    count: int
    payload_bytes: int
    payload_xxh3: int
    durable: int

    @property
    def frame_bytes(self) -> int:
        """The whole frame, padding included."""
        return align(FRAME_HEADER_BYTES + self.payload_bytes)


def frame_bytes_of(payload_bytes: int) -> int:
    """What a payload takes in the journal."""
    return align(FRAME_HEADER_BYTES + payload_bytes)


def frame(
    kind: FrameType,
    journal_id: int,
    sequence: int,
    count: int,
    payload: Buffer,
    durable: int = 0,
) -> bytes:
    """A whole frame, padded."""
    assert len(payload) <= FRAME_PAYLOAD_MAX, len(payload)
    size = len(payload)
    body = FRAME_HEADER.pack(
        FRAME_MAGIC, kind, 0, journal_id, sequence, count, 0, size, xxh3(payload), durable
    )
    whole = b"".join((body, _CHECKSUM.pack(xxh3(body)), payload))
    return whole.ljust(frame_bytes_of(size), b"\0")


def frame_header_of(head: Buffer) -> FrameHeader | None:
    """The header in at least 64 bytes; None where there is none, or a damaged one."""
    if len(head) < FRAME_HEADER_BYTES or bytes(head[:4]) != FRAME_MAGIC:
        return None
    body = bytes(head[: FRAME_HEADER.size])
    if _CHECKSUM.unpack_from(head, FRAME_HEADER.size)[0] != xxh3(body):
        return None
    _, kind, _, journal_id, sequence, count, _, size, payload_xxh3, durable = FRAME_HEADER.unpack(
        body
    )
    if size > FRAME_PAYLOAD_MAX:
        return None
    return FrameHeader(kind, journal_id, sequence, count, size, payload_xxh3, durable)


def device_key_of(device_id: bytes) -> int:
    """What the footers of a device show of its id."""
    return int.from_bytes(device_id[:8], "little")


def seal_footers(footers: npt.NDArray[Any]) -> None:
    """Gives each of an array [n] of FOOTER its magic and its own checksum."""
    footers["magic"] = FOOTER_MAGIC
    data = footers.tobytes()
    starts = range(0, len(data), FOOTER_BYTES)
    footers["footer_checksum"] = [xxh3(data[at : at + _FOOTER_BODY_BYTES]) for at in starts]


def is_footer(data: bytes, device_key: int) -> bool:
    """Whether 128 bytes are a sound footer that this device has written."""
    return (
        data.startswith(FOOTER_MAGIC)
        and data[FOOTER_DEVICE] == device_key.to_bytes(8, "little")
        and _CHECKSUM.unpack_from(data, _FOOTER_BODY_BYTES)[0] == xxh3(data[:_FOOTER_BODY_BYTES])
    )
