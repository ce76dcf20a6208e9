"""From a journal's frames to the blocks that live: what was said last of each unit stands.  Pure.

::

    frames   blocks(u7 u9) gone(u7) blocks(u7' u3) used(u9)   in the order of their writing
    events   unit 7: entry, gone, entry'    unit 9: entry    unit 3: entry
    live     entry' at 7, entry at 9, entry at 3           then: what cannot be true goes
    recency  7, 3, 9                                       each unit by what was said of it last

No step runs Python per entry.  A journal is hostile until proven: entries outside the device, of
numbers never introduced, that overlap, that share a segment with slots of another size, or that
name a block twice are dropped (the newest stays) and counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Layout
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.format import ENTRY, UNIT_BYTES, Entries, FrameHeader, FrameType
from anchorstore.tiers.nvme.notes import (
    KINDS_MAX,
    NAMESPACES_MAX,
    NamespaceNote,
    read_kind,
    read_namespace,
)

Positions = npt.NDArray[np.intp]


@dataclasses.dataclass(slots=True)
class Recovered:
    """What a journal holds.

    Attributes:
        namespaces, kinds: by number; entries use these numbers.
        entries: live blocks, of format.ENTRY, by unit.
        recency: of each entry, rising with its last use, as coarsely as the journal knows it.
        frames: read.
        dropped: what was not kept, counted by reason.
        lost_frames: at least so many were on the device and are no more: damage.
    """

    namespaces: list[NamespaceNote] = dataclasses.field(default_factory=list)
    kinds: list[Layout] = dataclasses.field(default_factory=list)
    entries: Entries = dataclasses.field(default_factory=lambda: np.zeros(0, ENTRY))
    recency: Positions = dataclasses.field(default_factory=lambda: np.zeros(0, np.intp))
    frames: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    lost_frames: int = 0

    def drop(self, reason: str, count: int) -> None:
        """Counts what is not kept."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


class FrameWalk:
    """Walks the frames of one journal in memory, from its start.

    Args:
        memory: the region, as far as it has been read.
        journal_id: of the frames that count.
    """

    def __init__(self, memory: memoryview, journal_id: int) -> None:
        self._memory, self._journal_id = memory, journal_id
        self.position = 0
        self.sequence = 0
        self.is_torn = False

    def wanted(self, available: int) -> int:
        """Bytes that must be there for the next step; 0 where there is no next frame."""
        if self.position + nvme_format.FRAME_HEADER_BYTES > len(self._memory):
            return 0
        end = self.position + UNIT_BYTES
        if end > available:
            return end
        header = self._header()
        if header is None:
            return 0
        return self.position + header.frame_bytes

    def _header(self) -> FrameHeader | None:
        head = self._memory[self.position : self.position + nvme_format.FRAME_HEADER_BYTES]
        header = nvme_format.frame_header_of(head)
        if header is None or header.journal_id != self._journal_id:
            mark = self._journal_id.to_bytes(8, "little")
            self.is_torn = bytes(head[8:16]) == mark and bytes(head[:4]) == nvme_format.FRAME_MAGIC
            return None
        fits = self.position + header.frame_bytes <= len(self._memory)
        if header.sequence != self.sequence or not fits:
            self.is_torn = True
            return None
        return header

    def step(self) -> tuple[FrameHeader, memoryview] | None:
        """The next frame; None where the journal ends, torn or not."""
        header = self._header()
        if header is None:
            return None
        start = self.position + nvme_format.FRAME_HEADER_BYTES
        payload = self._memory[start : start + header.payload_bytes]
        if nvme_format.xxh3(payload) != header.payload_xxh3:
            self.is_torn = True
            return None
        self.position += header.frame_bytes
        self.sequence += 1
        return header, payload


class Replay:
    """Collects frames, then says what lives."""

    def __init__(self) -> None:
        self.found = Recovered()
        self._events: list[Entries] = []  # in the journal's order
        self._gone: list[npt.NDArray[np.bool_]] = []
        self._used: list[npt.NDArray[np.uint32]] = []
        self._used_at: list[int] = []  # how many events came before
        self._count = 0  # of events

    def add(self, header: FrameHeader, payload: memoryview) -> None:
        """One frame, in the journal's order."""
        self.found.frames += 1
        if header.type == FrameType.BLOCKS and len(payload) == header.count * ENTRY.itemsize:
            entries = np.frombuffer(payload, ENTRY)
            self._put(entries, is_gone=False)
        elif header.type == FrameType.GONE and len(payload) == header.count * 4:
            entries = np.zeros(header.count, ENTRY)
            entries["unit"] = np.frombuffer(payload, "<u4")
            self._put(entries, is_gone=True)
        elif header.type == FrameType.USED and len(payload) == header.count * 4:
            self._used.append(np.frombuffer(payload, "<u4"))
            self._used_at.append(self._count)
        elif header.type == FrameType.NAMESPACE:
            self._name(self.found.namespaces, read_namespace(bytes(payload)), NAMESPACES_MAX)
        elif header.type == FrameType.KIND:
            self._name(self.found.kinds, read_kind(bytes(payload)), KINDS_MAX)
        else:
            self.found.drop("unknown_frames", 1)

    def _put(self, entries: Entries, *, is_gone: bool) -> None:
        self._events.append(entries)
        self._gone.append(np.full(len(entries), is_gone))
        self._count += len(entries)

    def _name(self, known: list[Any], named: tuple[int, Any] | None, limit: int) -> None:
        """A new number is the next one; a known one may be said again."""
        if named is None or named[0] > len(known) or named[0] >= limit:
            self.found.drop("unknown_frames", 1)
        elif named[0] == len(known):
            known.append(named[1])
        else:
            known[named[0]] = named[1]

    def result(self, segment_bytes: int, units: int) -> Recovered:
        """What lives on a device of that many units."""
        found = self.found
        if not self._events:
            return found
        events, gone = np.concatenate(self._events), np.concatenate(self._gone)
        self._events.clear()
        last = _last_of_each(events["unit"])
        kept = last[~gone[last]]
        entries = np.take(events, kept)  # five times as fast as events[kept]
        entries, order = _possible(found, entries, kept, segment_bytes, units)
        entries, order = _same_class(found, entries, order, segment_bytes)
        _assert_apart(found, entries)
        found.entries, order = once(found, entries, order)
        found.recency = self._recency(found.entries, order)
        return found

    def _recency(self, entries: Entries, order: Positions) -> Positions:
        """By use: of a unit both written and used, what came later counts; what was used before it
        was written was another block's."""
        units = np.concatenate([np.zeros(0, np.uint32), *self._used])
        at = np.repeat(np.array(self._used_at, np.intp), [len(used) for used in self._used])
        last = _last_of_each(units)
        when, rank = 2 * order + 1, np.zeros(len(entries), np.intp)  # frames of uses lie between
        if len(last):
            where = np.searchsorted(units[last], entries["unit"])
            here = last[np.minimum(where, len(last) - 1)]
            is_later = (units[here] == entries["unit"]) & (at[here] > order)
            when[is_later], rank[is_later] = 2 * at[here[is_later]], here[is_later]
        by_use = np.lexsort((rank, when))
        recency: Positions = np.empty(len(entries), np.intp)
        recency[by_use] = np.arange(len(entries))
        return recency


def _last_of_each(values: npt.NDArray[Any]) -> Positions:
    """Position of the last occurrence of every value, by value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]


def _slot_units(found: Recovered, entries: Entries) -> npt.NDArray[np.int64]:
    """Units of each entry's slot."""
    sizes = [nvme_format.slot_bytes_of(kind.block_bytes()) // UNIT_BYTES for kind in found.kinds]
    taken: npt.NDArray[np.int64] = np.array(sizes, np.int64)[entries["kind"]]
    return taken


def _keep(
    found: Recovered, reason: str, entries: Entries, order: Positions, keep: npt.NDArray[np.bool_]
) -> tuple[Entries, Positions]:
    found.drop(reason, len(keep) - int(keep.sum()))
    if keep.all():
        return entries, order
    kept = np.flatnonzero(keep)
    return np.take(entries, kept), order[kept]


def _possible(
    found: Recovered, entries: Entries, order: Positions, segment_bytes: int, units: int
) -> tuple[Entries, Positions]:
    """Entries of known numbers whose slots lie within one segment, on its grid."""
    known = (entries["namespace"] < len(found.namespaces)) & (entries["kind"] < len(found.kinds))
    entries, order = _keep(found, "unknown_numbers", entries, order, known)
    if not len(entries):
        return entries, order
    start, size = entries["unit"].astype(np.int64), _slot_units(found, entries)
    within = start % (segment_bytes // UNIT_BYTES)
    fits = (start + size <= units) & (within + size <= segment_bytes // UNIT_BYTES)
    return _keep(found, "outside", entries, order, fits & (within % size == 0))


def _same_class(
    found: Recovered, entries: Entries, order: Positions, segment_bytes: int
) -> tuple[Entries, Positions]:
    """A segment has slots of one size and component: its newest entry's."""
    if not len(entries):
        return entries, order
    component_of = np.array([int(kind.component) for kind in found.kinds], np.int64)
    class_of = component_of[entries["kind"]] << 32 | _slot_units(found, entries)
    segment = entries["unit"].astype(np.int64) // (segment_bytes // UNIT_BYTES)
    starts = np.flatnonzero(np.diff(segment, prepend=-1))  # entries come by unit
    lowest, highest = np.minimum.reduceat(class_of, starts), np.maximum.reduceat(class_of, starts)
    wanted = np.repeat(lowest, np.diff(starts, append=len(segment)))
    for start in starts[lowest != highest].tolist():
        stop = int(np.searchsorted(segment, segment[start], "right"))
        wanted[start:stop] = class_of[start + int(np.argmax(order[start:stop]))]
    return _keep(found, "outdated", entries, order, class_of == wanted)


def _assert_apart(found: Recovered, entries: Entries) -> None:
    """On one grid a segment, and each unit with one entry, no two slots can overlap."""
    if len(entries):
        start = entries["unit"].astype(np.int64)
        ends = start[:-1] + _slot_units(found, entries)[:-1]
        assert (ends <= start[1:]).all(), "two slots of one segment overlap"


def once(found: Recovered, entries: Entries, order: Positions) -> tuple[Entries, Positions]:
    """Each block (namespace, kind, path hash) once: the newest; and their places in the order."""
    mixed = entries["path_hash"][:, 0] ^ (
        entries["namespace"].astype(np.uint64) << np.uint64(32) ^ entries["kind"].astype(np.uint64)
    )
    by_key = np.argsort(mixed, kind="stable")
    ordered = mixed[by_key]
    same = np.zeros(len(by_key), np.bool_)
    same[1:] = ordered[1:] == ordered[:-1]
    if not same.any():
        return entries, order
    same[:-1] |= same[1:]  # every member of a group of two and more
    group = by_key[same]
    group = group[np.argsort(-order[group], kind="stable")]  # newest first
    keys = np.zeros(len(group), [("hash", "V32"), ("namespace", "<u4"), ("kind", "<u2")])
    keys["hash"] = np.ascontiguousarray(entries["path_hash"][group]).view("V32")[:, 0]
    keys["namespace"], keys["kind"] = entries["namespace"][group], entries["kind"][group]
    _, first = np.unique(keys.view("V38"), return_index=True)
    keep = np.ones(len(entries), np.bool_)
    keep[group] = False
    keep[group[first]] = True
    return _keep(found, "doubled", entries, order, keep)
