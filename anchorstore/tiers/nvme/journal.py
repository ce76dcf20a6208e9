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
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Layout
from anchorstore.tiers.nvme.format import FRAME_ENTRIES_MAX, Entries, FrameType, Superblock
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.notes import NamespaceNote, write_kind, write_namespace
from anchorstore.tiers.nvme.plans import promise
from anchorstore.tiers.nvme.region import (
    Note,
    RegionWriter,
    block_notes,
    blocks_named,
    open_region,
    read_region,
    write_superblock,
)
from anchorstore.tiers.nvme.replay import Recovered
from anchorstore.tiers.nvme.seam import FileSeam

RETRY_SECONDS_MAX = 5.0
PENDING_ENTRIES_MAX = 262_144  # 24 MiB; beyond it, blocks are not remembered, which is counted


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
        self._unwritten: list[Note] = []  # what an error kept from the device: tried again
        self._must_compact = False
        self._snapshot_bytes = writer.position
        self._namespaces = {n.namespace.root_digest(): i for i, n in enumerate(found.namespaces)}
        self._notes = list(found.namespaces)
        self._kinds = {kind: number for number, kind in enumerate(found.kinds)}
        self.counters = dict.fromkeys(
            (
                *("journal_frames", "journal_compactions"),
                *("journal_entries_dropped", "journal_damages"),
            ),
            0,
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

    def note_used(self, units: npt.NDArray[np.uint32]) -> None:
        """The blocks of these units were used, in this order."""
        if len(units):
            with self._lock:
                self._append(FrameType.USED, units)

    def _append(self, kind: FrameType, what: npt.NDArray[np.generic] | bytes) -> None:
        self._pending.append((kind, what))
        if len(self._pending) == 1:
            self._wake.notify()

    def flush(self) -> Future[None]:
        """Done when everything noted before is on the device, or never will be."""
        future: Future[None] = promise()
        with self._lock:
            self._flushes.append(future)
            self._wake.notify()
        return future

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._pending or self._flushes or self._is_closed):
                    if not self._wake.wait(self._retry_seconds if self._unwritten else None):
                        break
                if self._pending and not (self._flushes or self._is_closed):
                    self._wake.wait(self._flush_seconds)  # more comes together
                pending, self._pending = self._pending, []
                flushes, self._flushes = self._flushes, []
                self._pending_entries = 0
                is_last = self._is_closed
            try:
                self._write(self._unwritten + list(_merged(pending)))
            except Exception as error:  # noqa: BLE001 - the device ends, not the thread
                self._health.begin("file", f"the journal failed: {error!r}")
            if is_last:
                self._end()
            for future in flushes:
                future.set_result(None)
            if is_last:
                return

    def _end(self) -> None:
        """Says in the superblock how far the journal reaches: what is missing later was there."""
        if self._must_compact or self.superblock.durable_frames == self._writer.durable:
            return
        self.superblock = dataclasses.replace(
            self.superblock,
            sequence=self.superblock.sequence + 1,
            durable_frames=self._writer.durable,
        )
        try:
            write_superblock(self._file, self.superblock)
        except OSError as error:
            self._health.begin("journal", f"the journal cannot be ended: {error.strerror}")

    @property
    def _retry_seconds(self) -> float:
        return min(RETRY_SECONDS_MAX, self._health.retry_seconds)

    def _write(self, notes: list[Note]) -> None:
        if not notes:
            return
        if self._is_crowded:
            notes = self._without_blocks(notes)
        try:
            if self._file.is_removed():
                reason = "its file was removed or moved: what it holds ends with this daemon"
                self._health.begin("file", reason)
            self._put(notes)
            self._writer.sync()
            if self._must_compact or self._is_due():
                self._compact()
        except OSError as error:
            self._health.begin("journal", f"the journal cannot be written: {error.strerror}")
            notes = _without_uses(notes)
            if blocks_named(notes) > PENDING_ENTRIES_MAX:
                notes = self._without_blocks(notes)
            self._unwritten = notes
            return
        self._unwritten = []
        self._health.end("journal")

    def _without_blocks(self, notes: list[Note]) -> list[Note]:
        kept = [note for note in notes if note[0] != FrameType.BLOCKS]
        self.counters["journal_entries_dropped"] += blocks_named(notes) - blocks_named(kept)
        return kept

    def _put(self, notes: list[Note]) -> None:
        written = self._writer.append(notes)
        if written < len(notes):
            self._compact()
            notes = notes[:written] + _without_uses(notes[written:])
            written += self._writer.append(notes[written:])
        self.counters["journal_frames"] += written
        left = blocks_named(notes[written:])
        self.counters["journal_entries_dropped"] += left
        if written < len(notes) and not left:
            self._health.begin("file", "the journal is full of live blocks")

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
        self._must_compact = True  # until it is done: a superblock half written names either region
        found = read_region(self._file, self.superblock)
        if found.lost_frames or "torn_tail" in found.dropped:
            self.counters["journal_damages"] += 1
        with self._lock:  # the numbers in use, whatever the region still says of them
            found.namespaces, found.kinds = list(self._notes), list(self._kinds)
        self.superblock, self._writer, left = open_region(self._file, self.superblock, found, 0)
        self._must_compact = False
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


def _without_uses(notes: list[Note]) -> list[Note]:
    """Without what nothing but an order hangs on."""
    return [note for note in notes if note[0] != FrameType.USED]


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
