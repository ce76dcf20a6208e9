"""A journal region: frames read into what lives, and snapshots and notes written as frames.

::

    read_region   superblock -> active region -> FrameWalk, Replay -> Recovered
    open_region   Recovered -> the other region, under a new id -> superblock
    RegionWriter  notes -> frames behind the last one
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator

import numpy as np

from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.format import (
    ENTRY,
    FRAME_ENTRIES_MAX,
    SUPERBLOCK_BYTES,
    SUPERBLOCK_COPIES,
    UNIT_BYTES,
    Entries,
    FrameType,
    Superblock,
)
from anchorstore.tiers.nvme.notes import write_kind, write_namespace
from anchorstore.tiers.nvme.replay import FrameWalk, Recovered, Replay
from anchorstore.tiers.nvme.seam import FileSeam, aligned, read_all, write_all
from anchorstore.units import MIB

READ_BYTES = 8 * MIB

Note = tuple[FrameType, int, bytes]
"""A frame before it has its place: type, count, payload."""

assert ENTRY.itemsize * FRAME_ENTRIES_MAX <= nvme_format.FRAME_PAYLOAD_MAX
assert UNIT_BYTES == SUPERBLOCK_BYTES


def read_region(file: FileSeam, superblock: Superblock, *, is_whole: bool = False) -> Recovered:
    """What lives, by the active region.

    A crash may leave behind a torn end of what had not been on the device yet; frames that had been
    are lost by damage alone, and are counted.  What lies behind the end, and tells, is looked at
    for 8 MiB, or where `is_whole`, up to the region's end.
    """
    if not superblock.journal_id:
        return Recovered()
    memory = aligned(superblock.journal_bytes)  # backed as it is read
    start = superblock.region_offset(superblock.active)
    walk, replay, available = FrameWalk(memory, superblock.journal_id), Replay(), 0
    while wanted := walk.wanted(available):
        if wanted > available:
            stop = min(available + max(READ_BYTES, wanted - available), len(memory))
            available += read_all(file, memory[available:stop], start + available)
            if available < wanted:
                walk.is_torn = True
                break
            continue
        step = walk.step()
        if step is None:
            break
        replay.add(*step)
    found = replay.result(superblock.segment_bytes, superblock.units)
    behind = superblock.journal_bytes - walk.position
    durable = _durable_behind(file, superblock, walk.position, behind if is_whole else READ_BYTES)
    found.lost_frames = max(0, durable - walk.sequence)
    found.drop("torn_tail", int(walk.is_torn and not found.lost_frames))
    return found


def _durable_behind(file: FileSeam, superblock: Superblock, position: int, size: int) -> int:
    """How many frames were on the device once, by the superblock and by what lies in the active
    region within `size` bytes from `position` on."""
    durable, stop = superblock.durable_frames, min(position + size, superblock.journal_bytes)
    start = superblock.region_offset(superblock.active)
    memory = aligned(min(READ_BYTES, stop - position)) if stop > position else memoryview(b"")
    while position < stop:
        part = memory[: stop - position]
        got = read_all(file, part, start + position) // UNIT_BYTES * UNIT_BYTES
        units = np.frombuffer(part[:got], np.uint8).reshape(-1, UNIT_BYTES)
        marks = np.ascontiguousarray(units[:, 8:16]).view("<u8")[:, 0] == superblock.journal_id
        for at in np.flatnonzero(marks).tolist():
            header = nvme_format.frame_header_of(part[at * UNIT_BYTES : (at + 1) * UNIT_BYTES])
            durable = max(durable, header.durable if header else 0)
        if got < len(part):
            break
        position += got
    return durable


def journal_damage(found: Recovered) -> str:
    """What is to be said of frames that were lost."""
    return (
        f"the journal is damaged behind its frame {found.frames}: {found.lost_frames} frames and "
        "more that were on the device are gone, and so are the blocks that only they named"
    )


def without_unused(found: Recovered) -> Recovered:
    """The same blocks, with numbers of the namespaces and kinds that they use alone; and of the
    namespaces whose kill switch is on."""
    off = [number for number, note in enumerate(found.namespaces) if not note.enabled]
    namespaces = np.union1d(found.entries["namespace"], np.array(off, np.uint32))
    namespace = np.searchsorted(namespaces, found.entries["namespace"])
    kinds, kind = np.unique(found.entries["kind"], return_inverse=True)
    entries = found.entries.copy()
    entries["namespace"], entries["kind"] = namespace, kind
    return dataclasses.replace(
        found,
        namespaces=[found.namespaces[number] for number in namespaces.tolist()],
        kinds=[found.kinds[number] for number in kinds.tolist()],
        entries=entries,
    )


def notes_of(found: Recovered) -> Iterator[Note]:
    """A snapshot as frames, what was used last in the end: so the next one knows it too."""
    for number, note in enumerate(found.namespaces):
        yield FrameType.NAMESPACE, 1, write_namespace(number, note)
    for number, kind in enumerate(found.kinds):
        yield FrameType.KIND, 1, write_kind(number, kind)
    yield from block_notes(found.entries[np.argsort(found.recency)])


def block_notes(entries: Entries) -> Iterator[Note]:
    """Entries as frames."""
    for at in range(0, len(entries), FRAME_ENTRIES_MAX):
        part = entries[at : at + FRAME_ENTRIES_MAX]
        yield FrameType.BLOCKS, len(part), part.tobytes()


def blocks_named(notes: Iterable[Note]) -> int:
    """Blocks that the frames name."""
    return sum(count for kind, count, _ in notes if kind == FrameType.BLOCKS)


class RegionWriter:
    """Appends frames to one region."""

    def __init__(self, file: FileSeam, offset: int, size: int, journal_id: int) -> None:
        self._file, self._offset, self.size = file, offset, size
        self.journal_id = journal_id
        self.position = 0
        self._sequence = 0
        self.durable = 0  # frames that are on the device
        self._buffer = aligned(MIB)

    def sync(self) -> None:
        """Waits until what was appended is on the device.  OSError of the file."""
        self._file.fdatasync()
        self.durable = self._sequence

    def append(self, notes: Iterable[Note]) -> int:
        """Writes frames while they fit; how many were written.

        OSError of the file: then the region is as if nothing had been asked.
        """
        before = self.position, self._sequence
        try:
            return self._append(notes)
        except OSError:
            self.position, self._sequence = before
            raise

    def _append(self, notes: Iterable[Note]) -> int:
        written, filled = 0, 0
        for kind, count, payload in notes:
            size = nvme_format.frame_bytes_of(len(payload))
            if self.position + filled + size > self.size:
                break
            if filled + size > len(self._buffer):
                filled = self._put(filled)
            if size > len(self._buffer):
                self._buffer = aligned(size)
            where = (self.journal_id, self._sequence)
            frame = nvme_format.frame(kind, *where, count, payload, self.durable)
            self._buffer[filled : filled + size] = frame
            self._sequence += 1
            filled += size
            written += 1
        self._put(filled)
        return written

    def _put(self, filled: int) -> int:
        if filled:
            write_all(self._file, self._buffer[:filled], self._offset + self.position)
            self.position += filled
        return 0


def write_superblock(file: FileSeam, superblock: Superblock) -> None:
    """Writes the copy whose turn it is; the other one stays as it was.  OSError of the file."""
    page = aligned(SUPERBLOCK_BYTES)
    page[:] = superblock.encoded()
    write_all(file, page, superblock.sequence % SUPERBLOCK_COPIES * SUPERBLOCK_BYTES)
    file.fdatasync()


def open_region(
    file: FileSeam, superblock: Superblock, found: Recovered, starts: int
) -> tuple[Superblock, RegionWriter, int]:
    """Writes a snapshot into the other region and makes it the journal.

    Returns the new superblock, the region's writer and how many entries did not fit.
    """
    active = 1 - superblock.active
    journal_id = int.from_bytes(os.urandom(8), "little") | 1  # never 0, the id of a new device
    fresh = dataclasses.replace(
        superblock,
        sequence=superblock.sequence + 1,
        active=active,
        journal_id=journal_id,
        starts=superblock.starts + starts,
    )
    writer = RegionWriter(file, fresh.region_offset(active), fresh.journal_bytes, journal_id)
    notes = list(notes_of(found))
    written = writer.append(notes)
    left = blocks_named(notes[written:])
    writer.sync()
    fresh = dataclasses.replace(fresh, durable_frames=written)
    write_superblock(file, fresh)
    return fresh, writer, left
