"""The journal of a device: which blocks lie where, so that a start need not read the slots.

::

    loop     note_blocks, note_gone ---> pending
    thread                               pending -> frames -> active region -> fdatasync
                                         region half full: read it, write what lives into the
                                         other region, then the superblock names that one

One thread writes, so nothing here runs on the event loop but appending to a list.  Frames start at
multiples of 4096 bytes: a write never touches what was written before.  Every start of the daemon
and every compaction opens a region under a new random id, so that what an earlier use left behind
in it is never taken for its continuation.

A lost note costs a block at the next start (it is not found, or its footer says that the slot was
used again); it can never cost a wrong byte.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Layout
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
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.notes import NamespaceNote, write_kind, write_namespace
from anchorstore.tiers.nvme.replay import FrameWalk, Recovered, Replay
from anchorstore.tiers.nvme.seam import FileSeam, aligned, read_all, write_all
from anchorstore.units import MIB

READ_BYTES = 8 * MIB
PENDING_ENTRIES_MAX = 262_144  # 24 MiB; beyond it, blocks are not remembered, which is counted

Note = tuple[FrameType, int, bytes]
"""A frame before it has its place: type, count, payload."""


def read_region(file: FileSeam, superblock: Superblock) -> Recovered:
    """What lives, by the active region."""
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
    found.drop("torn_tail", int(walk.is_torn))
    return found


def without_unused(found: Recovered) -> Recovered:
    """The same blocks, with numbers of the namespaces and kinds that they use alone."""
    namespaces, namespace = np.unique(found.entries["namespace"], return_inverse=True)
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
    """A snapshot as frames."""
    for number, note in enumerate(found.namespaces):
        yield FrameType.NAMESPACE, 1, write_namespace(number, note)
    for number, kind in enumerate(found.kinds):
        yield FrameType.KIND, 1, write_kind(number, kind)
    yield from block_notes(found.entries)


def block_notes(entries: Entries) -> Iterator[Note]:
    """Entries as frames."""
    for at in range(0, len(entries), FRAME_ENTRIES_MAX):
        part = entries[at : at + FRAME_ENTRIES_MAX]
        yield FrameType.BLOCKS, len(part), part.tobytes()


def _entries(notes: Iterable[Note]) -> int:
    """Blocks that the frames name."""
    return sum(count for kind, count, _ in notes if kind == FrameType.BLOCKS)


class RegionWriter:
    """Appends frames to one region."""

    def __init__(self, file: FileSeam, offset: int, size: int, journal_id: int) -> None:
        self._file, self._offset, self.size = file, offset, size
        self.journal_id = journal_id
        self.position = 0
        self._sequence = 0
        self._buffer = aligned(MIB)

    def append(self, notes: Iterable[Note]) -> int:
        """Writes frames while they fit; how many were written.  OSError of the file."""
        written, filled = 0, 0
        for kind, count, payload in notes:
            size = nvme_format.frame_bytes_of(len(payload))
            if self.position + filled + size > self.size:
                break
            if filled + size > len(self._buffer):
                filled = self._put(filled)
            if size > len(self._buffer):
                self._buffer = aligned(size)
            frame = nvme_format.frame(kind, self.journal_id, self._sequence, count, payload)
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
    left = _entries(notes[written:])
    file.fdatasync()
    write_superblock(file, fresh)
    return fresh, writer, left


class Journal:
    """Notes what happens on a device.  `note_*` and `flush` from any thread.

    Args:
        found: what the journal held; a region with that alone has been opened.
        flush_seconds: from a note to the device, at most.
    """

    def __init__(
        self,
        file: FileSeam,
        superblock: Superblock,
        writer: RegionWriter,
        found: Recovered,
        health: Health,
        flush_seconds: float,
    ) -> None:
        self._file, self._health = file, health
        self.superblock, self._writer = superblock, writer
        self._flush_seconds = flush_seconds
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._pending: list[tuple[FrameType, npt.NDArray[np.generic] | bytes]] = []
        self._pending_entries = 0
        self._flushes: list[Future[None]] = []
        self._is_closed = False
        self._snapshot_bytes = writer.position
        self._namespaces = {n.namespace.root_digest(): i for i, n in enumerate(found.namespaces)}
        self._notes = list(found.namespaces)
        self._kinds = {kind: number for number, kind in enumerate(found.kinds)}
        self.counters = dict.fromkeys(
            ("journal_frames", "journal_compactions", "journal_entries_dropped"), 0
        )
        self._thread = threading.Thread(target=self._run, name="nvme-journal", daemon=True)
        self._thread.start()

    # -- notes

    def namespace_number(self, note: NamespaceNote) -> int:
        """The number of a namespace; said to the journal where it is new or has changed."""
        root = note.namespace.root_digest()
        with self._lock:
            number = self._namespaces.setdefault(root, len(self._notes))
            if number == len(self._notes):
                self._notes.append(note)
            elif self._notes[number] == note:
                return number
            self._notes[number] = note
            self._append(FrameType.NAMESPACE, write_namespace(number, note))
        return number

    def kind_number(self, layout: Layout) -> int:
        """The number of a layout and shard; said to the journal where it is new."""
        with self._lock:
            number = self._kinds.get(layout)
            if number is None:
                number = self._kinds[layout] = len(self._kinds)
                self._append(FrameType.KIND, write_kind(number, layout))
        return number

    def note_blocks(self, entries: Entries) -> None:
        """Blocks lie in their slots from now on."""
        with self._lock:
            if not len(entries):
                return
            if self._pending_entries + len(entries) > PENDING_ENTRIES_MAX:
                self.counters["journal_entries_dropped"] += len(entries)
                return
            self._pending_entries += len(entries)
            self._append(FrameType.BLOCKS, entries)

    def note_gone(self, units: npt.NDArray[np.uint32]) -> None:
        """The blocks of these units are no more."""
        if len(units):
            with self._lock:
                self._append(FrameType.GONE, units)

    def _append(self, kind: FrameType, what: npt.NDArray[np.generic] | bytes) -> None:
        self._pending.append((kind, what))
        if len(self._pending) == 1:
            self._wake.notify()

    def flush(self) -> Future[None]:
        """Done when everything noted before is on the device, or never will be."""
        future: Future[None] = Future()
        with self._lock:
            self._flushes.append(future)
            self._wake.notify()
        return future

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._pending or self._flushes or self._is_closed):
                    self._wake.wait()
                if not (self._flushes or self._is_closed):
                    self._wake.wait(self._flush_seconds)  # more comes together
                pending, self._pending = self._pending, []
                flushes, self._flushes = self._flushes, []
                self._pending_entries = 0
                is_last = self._is_closed
            try:
                self._write(pending)
            except Exception as error:  # noqa: BLE001 - the device ends, not the thread
                self._health.lost(f"the journal failed: {error!r}")
            for future in flushes:
                future.set_result(None)
            if is_last:
                return

    def _write(self, pending: list[tuple[FrameType, npt.NDArray[np.generic] | bytes]]) -> None:
        notes = list(_merged(pending))
        if self._is_crowded:
            kept = [note for note in notes if note[0] != FrameType.BLOCKS]
            self.counters["journal_entries_dropped"] += _entries(notes) - _entries(kept)
            notes = kept
        if not notes or not self._health.may(is_write=True):
            return
        try:
            if self._file.is_removed():
                self._health.lost("its file was removed: what it holds ends with this daemon")
                return
            self._put(notes)
            self._file.fdatasync()
            if self._is_due():
                self._compact()
        except OSError as error:
            self._health.lost(f"the journal cannot be written: {error.strerror}")

    def _put(self, notes: list[Note]) -> None:
        written = self._writer.append(notes)
        if written < len(notes):
            self._compact()
            written += self._writer.append(notes[written:])
        self.counters["journal_frames"] += written
        left = _entries(notes[written:])
        self.counters["journal_entries_dropped"] += left
        if written < len(notes) and not left:
            self._health.lost("the journal is full of live blocks")

    def _is_due(self) -> bool:
        used = self._writer.position
        return used > self._writer.size // 2 and used > 2 * self._snapshot_bytes

    @property
    def _is_crowded(self) -> bool:
        """Whether live blocks alone nearly fill a region: no further one is remembered, so that
        not every note costs a compaction."""
        limit = self._writer.size * 3 // 4
        return self._snapshot_bytes > limit and self._writer.position > limit * 7 // 6

    def _compact(self) -> None:
        found = read_region(self._file, self.superblock)
        self.superblock, self._writer, left = open_region(self._file, self.superblock, found, 0)
        self._snapshot_bytes = self._writer.position
        self.counters["journal_compactions"] += 1
        self.counters["journal_entries_dropped"] += left

    def close(self, timeout_seconds: float) -> bool:
        """Writes what is pending; False where the device did not take it in time."""
        with self._lock:
            self._is_closed = True
            self._wake.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()


def _merged(
    pending: list[tuple[FrameType, npt.NDArray[np.generic] | bytes]],
) -> Iterator[Note]:
    """Notes as frames, neighbours of one type together."""
    at = 0
    while at < len(pending):
        kind, what = pending[at]
        at += 1
        if isinstance(what, bytes):
            yield kind, 1, what
            continue
        parts = [what]
        while at < len(pending) and pending[at][0] == kind:
            part = pending[at][1]
            assert not isinstance(part, bytes)
            parts.append(part)
            at += 1
        whole = np.concatenate(parts)
        if kind == FrameType.BLOCKS:
            yield from block_notes(whole)
        else:
            for start in range(0, len(whole), FRAME_ENTRIES_MAX):
                part = np.ascontiguousarray(whole[start : start + FRAME_ENTRIES_MAX], "<u4")
                yield kind, len(part), part.tobytes()


assert ENTRY.itemsize * FRAME_ENTRIES_MAX <= nvme_format.FRAME_PAYLOAD_MAX
assert UNIT_BYTES == SUPERBLOCK_BYTES
