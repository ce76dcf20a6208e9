"""Which blocks of the dram tier also lie in hbm.  Pure.

::

    lookup's places --find--> places in hbm, for those that have a copy          (and they are used)
                    --see---> those asked for again: slots taken, MirrorWork --> the shell copies
    finish(ticket, moved)     the copies can be found
    forget(gone)              a block that has left dram loses its copy

The hbm tier holds copies and nothing else: every block in it lies in dram too, so losing the device
loses nothing, a reader whose copy is replaced under it (its generation moves) turns to dram, and
copies need no lease.  A block is worth a copy the second time that it is asked for.  The copies
used least recently make room, exactly; a slot size that has less than its share of segments may
have the stalest one of another.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, U64, Bools, FormatSegment, Gone
from anchorstore.tiers.slab import Slab
from anchorstore.transport.segment import PLACE, Places, SegmentShape, slot_bytes_of

IDS_FROM = 1 << 31
"""Segments of dram have ids below, those of hbm from here on."""

_FREE, _DOOMED, _WRITING, _SEALED = range(4)  # doomed: written for a block that is gone
_SEEN_MAX = 255


@dataclasses.dataclass(frozen=True)
class MirrorConfig:
    """Size and habits of the hbm tier.

    Attributes:
        sightings: a block is copied when it is asked for so often.
        batch_blocks: copied at once, at most; the rest must be asked for again.
    """

    segments: int
    segment_bytes: int
    sightings: int = 2
    batch_blocks: int = 256

    def __post_init__(self) -> None:
        assert self.segments > 0 and self.segment_bytes > 0 and self.batch_blocks > 0, self
        assert 0 < self.sightings <= _SEEN_MAX, self


@dataclasses.dataclass(frozen=True, slots=True)
class MirrorWork:
    """Work: `formats` at once, in order; then copy block sources[i] of dram to slot slots[i] of
    segment segment_indices[i] and finish(ticket), exactly once.  Columns [n]; `generations` are
    the odd ones that the slots show while they are written."""

    ticket: int
    formats: list[FormatSegment]
    sources: Places
    segment_indices: U32
    slots: U32
    offsets: U64
    generations: U32
    block_bytes: int

    def __len__(self) -> int:
        return len(self.slots)


class _Known:
    """What is known of one dram segment's slots; arrays [slots], grown as slots are seen.

    `home` is the position of the copy's segment plus 1, 0 where there is none; `at` its slot.
    """

    def __init__(self) -> None:
        self.generation = self.home = self.at = np.zeros(0, np.uint32)
        self.seen = np.zeros(0, np.uint8)

    def grow(self, slots: int) -> None:
        if slots > len(self.seen):
            more = max(slots, 2 * len(self.seen)) - len(self.seen)
            for name in ("generation", "home", "at", "seen"):
                setattr(self, name, np.pad(getattr(self, name), (0, more)))

    @property
    def is_idle(self) -> bool:
        return not (self.home.any() or self.seen.any())


class _Segment:
    """One segment of hbm with slots of one size; arrays [slots]."""

    def __init__(self, index: int, segment_id: int, shape: SegmentShape, generation: int) -> None:
        self.index, self.segment_id, self.shape = index, segment_id, shape
        self.slab = Slab(shape.slots, generation)
        self.source = np.zeros(shape.slots, PLACE)
        self.state = np.zeros(shape.slots, np.uint8)
        self.stamp = np.zeros(shape.slots, np.uint64)

    @property
    def is_still(self) -> bool:
        """Whether no slot is being written."""
        return not self.written.any()

    @property
    def linked(self) -> Bools:
        """Slots whose block knows of them."""
        return np.asarray(self.state >= _WRITING)

    @property
    def written(self) -> Bools:
        """Slots that an open ticket writes."""
        return np.asarray((self.state == _WRITING) | (self.state == _DOOMED))


class Mirror:
    """See the module.  Calls leave the invariants that check() walks; one thread calls."""

    def __init__(self, config: MirrorConfig) -> None:
        self.config = config
        self.counters: collections.Counter[str] = collections.Counter()
        self._ids = itertools.count(IDS_FROM)
        self._tickets = itertools.count(1)
        self._tick = 0
        self._open: dict[int, MirrorWork] = {}
        self._known: dict[int, _Known] = {}
        self._segments: dict[int, _Segment] = {}

    @property
    def blocks(self) -> int:
        """Copies that can be found."""
        return sum(int((s.state == _SEALED).sum()) for s in self._segments.values())

    @property
    def used_bytes(self) -> int:
        """Slots that are taken, in bytes."""
        return sum(s.slab.used * s.shape.slot_bytes for s in self._segments.values())

    # ---- reading ----

    def find(self, places: Places) -> Places:
        """Where copies of these blocks lie in hbm [n], which are used by it; segment 0 where there
        is none."""
        found = np.zeros(len(places), PLACE)
        self._tick += 1
        for known, rows in self._by_source(places):
            slots = places["slot"][rows]
            inside = slots < len(known.seen)
            rows, slots = rows[inside], slots[inside]
            same = known.generation[slots] == places["generation"][rows]
            for index in np.unique(known.home[slots[same]]).tolist():
                if index:
                    self._fill(found, places, known, rows[same], self._segments[index - 1])
        self.counters["copies_found"] += int(np.count_nonzero(found["segment"]))
        return found

    def _fill(
        self,
        found: Places,
        places: Places,
        known: _Known,
        rows: npt.NDArray[np.intp],
        segment: _Segment,
    ) -> None:
        mine = rows[known.home[places["slot"][rows]] == segment.index + 1]
        at = known.at[places["slot"][mine]]
        sealed = segment.state[at] == _SEALED
        mine, at = mine[sealed], at[sealed]
        found["segment"][mine], found["slot"][mine] = segment.segment_id, at
        found["generation"][mine] = segment.slab.generations_of(at)
        found["checksum"][mine] = places["checksum"][mine]
        segment.stamp[at] = self._tick

    def _by_source(self, places: Places) -> Iterator[tuple[_Known, npt.NDArray[np.intp]]]:
        for segment_id in np.unique(places["segment"]).tolist():
            known = self._known.get(segment_id)
            if known is not None:
                yield known, np.flatnonzero(places["segment"] == segment_id)

    # ---- copying ----

    def see(self, places: Places, block_bytes: int) -> MirrorWork | None:
        """These blocks, each named once, were asked for; what is to be copied now."""
        shape = SegmentShape(self.config.segment_bytes, slot_bytes_of(block_bytes))
        if not len(places) or not shape.slots:
            return None
        for segment_id in np.unique(places["segment"]).tolist():
            self._known.setdefault(segment_id, _Known())
        chosen = [rows[self._saw(known, places[rows])] for known, rows in self._by_source(places)]
        rows = np.sort(np.concatenate(chosen))[: self.config.batch_blocks]
        return self._take(places[rows], shape, block_bytes) if len(rows) else None

    def _saw(self, known: _Known, places: Places) -> Bools:
        """Which of a dram segment's blocks [n] are due for a copy."""
        slots = places["slot"]
        known.grow(int(slots.max()) + 1)
        stale = slots[known.generation[slots] != places["generation"]]
        self._drop(known, stale)
        known.generation[slots] = places["generation"]
        known.seen[slots] = np.minimum(known.seen[slots], _SEEN_MAX - 1) + 1
        return np.asarray((known.home[slots] == 0) & (known.seen[slots] >= self.config.sightings))

    def _take(self, sources: Places, shape: SegmentShape, block_bytes: int) -> MirrorWork | None:
        formats: list[FormatSegment] = []
        indices, slots, generations = [], [], []
        left = len(sources)
        while left:
            free = [s for s in self._of_size(shape.slot_bytes) if s.slab.free]
            if not free and not self._make_room(shape, left, formats):
                break
            for segment in free:
                count = min(left, segment.slab.free)
                taken, writing = segment.slab.take(count)
                indices.append(np.full(count, segment.index, np.uint32))
                slots.append(taken)
                generations.append(writing)
                left -= count
        if not slots:
            return None
        columns = np.concatenate(indices), np.concatenate(slots), np.concatenate(generations)
        kept = sources[: len(columns[0])]
        offsets = np.array([shape.offset(slot) for slot in columns[1].tolist()], np.uint64)
        work = MirrorWork(
            next(self._tickets), formats, kept, *columns[:2], offsets, columns[2], block_bytes
        )
        self._mark(work)
        self._open[work.ticket] = work
        return work

    def _mark(self, work: MirrorWork) -> None:
        for source, index, slot in zip(
            work.sources, work.segment_indices.tolist(), work.slots.tolist(), strict=True
        ):
            segment, known = self._segments[index], self._known[int(source["segment"])]
            segment.source[slot], segment.state[slot] = source, _WRITING
            segment.stamp[slot] = self._tick
            known.home[source["slot"]], known.at[source["slot"]] = index + 1, slot

    def finish(self, ticket: int, moved: Bools) -> None:
        """Blocks moved[n] of the work have arrived; the others get no copy for now."""
        work = self._open.pop(ticket, None)
        if work is None:
            return  # from before a clear()
        for index in np.unique(work.segment_indices).tolist():
            rows = work.segment_indices == index
            segment, slots = self._segments[index], work.slots[rows]
            arrived = moved[rows] & (segment.state[slots] == _WRITING)
            segment.state[slots[arrived]] = _SEALED
            failed = slots[~arrived]
            self.counters["copies_made"] += int(arrived.sum())
            self.counters["copies_failed"] += len(failed)
            unwanted = failed[segment.state[failed] == _WRITING]
            self._unlink(segment, unwanted)
            self._give(segment, failed)

    # ---- losing ----

    def forget(self, gone: Iterable[Gone]) -> None:
        """Blocks have left dram: nobody asks for their copies any more."""
        for part in gone:
            known = self._known.get(part.segment_id)
            if known is not None:
                self._drop(known, part.slots[part.slots < len(known.seen)])
                if known.is_idle:
                    del self._known[part.segment_id]

    def clear(self) -> None:
        """The device is gone, and every copy with it."""
        self.counters["copies_lost"] += self.blocks
        self._open.clear()
        self._known.clear()
        self._segments.clear()

    def _drop(self, known: _Known, slots: U32) -> None:
        """Forgets what was known of a dram segment's slots [n]."""
        copied = slots[known.home[slots] != 0]
        homes, at = known.home[copied], known.at[copied]
        for index in np.unique(homes).tolist():
            segment, mine = self._segments[index - 1], at[homes == index]
            writing = segment.state[mine] == _WRITING
            segment.state[mine[writing]] = _DOOMED
            self._give(segment, mine[~writing])
        known.home[slots], known.seen[slots] = 0, 0

    def _unlink(self, segment: _Segment, slots: U32) -> None:
        """The blocks that these slots hold have no copy any more."""
        for source in segment.source[slots]:
            known = self._known[int(source["segment"])]
            known.home[source["slot"]], known.seen[source["slot"]] = 0, 0

    @staticmethod
    def _give(segment: _Segment, slots: U32) -> None:
        segment.state[slots] = _FREE
        segment.slab.give(slots)

    # ---- room ----

    def _of_size(self, slot_bytes: int) -> list[_Segment]:
        return [s for s in self._segments.values() if s.shape.slot_bytes == slot_bytes]

    def _make_room(self, shape: SegmentShape, count: int, formats: list[FormatSegment]) -> bool:
        """At least one free slot of this size more; False where none can be had now."""
        unused = sorted(set(range(self.config.segments)) - set(self._segments))
        if unused:
            formats.append(self._format(unused[0], shape, 0, fresh_memory=False))
            return True
        stalest = self._stalest_beyond_its_share(shape.slot_bytes)
        if stalest is None:
            return self._evict(self._of_size(shape.slot_bytes), count)
        sealed = np.flatnonzero(stalest.state == _SEALED).astype(np.uint32)
        self._unlink(stalest, sealed)
        self.counters["copies_evicted"] += len(sealed)
        worn = stalest.slab.is_worn
        first = 0 if worn else stalest.slab.ceiling()
        formats.append(self._format(stalest.index, shape, first, fresh_memory=worn))
        return True

    def _format(
        self, index: int, shape: SegmentShape, generation: int, *, fresh_memory: bool
    ) -> FormatSegment:
        made = _Segment(index, next(self._ids), shape, generation)
        self._segments[index] = made
        return FormatSegment(
            index, made.segment_id, shape.slot_bytes, shape.slots, generation, fresh_memory
        )

    def _stalest_beyond_its_share(self, slot_bytes: int) -> _Segment | None:
        """A segment of another size that has more than its share, where this size has less."""
        held = collections.Counter(s.shape.slot_bytes for s in self._segments.values())
        share = max(1, self.config.segments // len({*held, slot_bytes}))
        if held[slot_bytes] >= share:
            return None
        others = [
            segment
            for segment in self._segments.values()
            if segment.shape.slot_bytes != slot_bytes
            and held[segment.shape.slot_bytes] > share
            and segment.is_still
        ]
        return min(others, key=lambda segment: int(segment.stamp.max()), default=None)

    def _evict(self, segments: list[_Segment], count: int) -> bool:
        """Gives up the copies used least recently, but none that is used right now."""
        rows = [
            (segment, slots := np.flatnonzero(idle).astype(np.uint32), segment.stamp[slots])
            for segment in segments
            if (idle := (segment.state == _SEALED) & (segment.stamp < self._tick)).any()
        ]
        if not rows:
            return False
        stamps = np.concatenate([stamp for _, _, stamp in rows])
        oldest = np.argpartition(stamps, min(count, len(stamps)) - 1)[:count]
        start = 0
        for segment, slots, stamp in rows:
            mine = oldest[(start <= oldest) & (oldest < start + len(stamp))]
            self._retire(segment, slots[mine - start])
            start += len(stamp)
        return True

    def _retire(self, segment: _Segment, slots: U32) -> None:
        self._unlink(segment, slots)
        self._give(segment, slots)
        self.counters["copies_evicted"] += len(slots)

    # ---- invariants ----

    def check(self) -> list[str]:
        """Violations of what must always hold."""
        found = []
        for index, segment in self._segments.items():
            taken = np.flatnonzero(segment.state != _FREE).astype(np.uint32)
            found += [f"hbm segment {index}: {text}" for text in segment.slab.check(taken)]
            for slot in np.flatnonzero(segment.linked).tolist():
                source = segment.source[slot]
                known = self._known.get(int(source["segment"]))
                at = (
                    None
                    if known is None
                    else (known.home[source["slot"]], known.at[source["slot"]])
                )
                if at != (index + 1, slot):
                    found.append(f"hbm segment {index} slot {slot}: its block knows {at}")
        linked = sum(int((known.home != 0).sum()) for known in self._known.values())
        held = sum(int(segment.linked.sum()) for segment in self._segments.values())
        if linked != held:
            found.append(f"{linked} blocks know of a copy, {held} copies are held")
        written = sum(int(segment.written.sum()) for segment in self._segments.values())
        if written != sum(map(len, self._open.values())):
            found.append(f"{written} slots are being written, not those of the open tickets")
        return found
