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

from anchorstore.server.core.mirror_tables import (
    DOOMED,
    FREE,
    SEALED,
    WRITING,
    CopySegment,
    KnownSlots,
    groups,
)
from anchorstore.server.core.types import U32, U64, Bools, FormatSegment, Gone
from anchorstore.transport.segment import (
    DEVICE_IDS_FROM,
    PLACE,
    Places,
    SegmentShape,
    slot_bytes_of,
)

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


class Mirror:
    """See the module.  Calls leave the invariants that check() walks; one thread calls.

    Args:
        ids: of segments, from DEVICE_IDS_FROM on; the mirrors of one daemon share them.
    """

    def __init__(self, config: MirrorConfig, ids: Iterator[int] | None = None) -> None:
        self.config = config
        self.counters: collections.Counter[str] = collections.Counter()
        self._ids = itertools.count(DEVICE_IDS_FROM) if ids is None else ids
        self._tickets = itertools.count(1)
        self._tick = 0
        self._open: dict[int, MirrorWork] = {}
        self._known: dict[int, KnownSlots] = {}
        self._segments: dict[int, CopySegment] = {}

    @property
    def blocks(self) -> int:
        """Copies that can be found."""
        return sum(int((s.state == SEALED).sum()) for s in self._segments.values())

    @property
    def used_bytes(self) -> int:
        """Slots that are taken, in bytes."""
        return sum(s.slab.used * s.shape.slot_bytes for s in self._segments.values())

    @property
    def segments_free(self) -> int:
        """Segments that hold no size yet."""
        return self.config.segments - len(self._segments)

    @property
    def writing(self) -> int:
        """Copies on their way."""
        return sum(map(len, self._open.values()))

    # ---- reading ----

    def find(self, places: Places) -> Places:
        """Where copies of these blocks lie in hbm [n], which are used by it; segment 0 where there
        is none."""
        found = np.zeros(len(places), PLACE)
        self._tick += 1
        for segment, rows, at in self._copies(places):
            found["segment"][rows], found["slot"][rows] = segment.segment_id, at
            found["generation"][rows] = segment.slab.generations_of(at)
            found["checksum"][rows] = places["checksum"][rows]
            segment.stamp[at] = self._tick
            self.counters["copies_found"] += len(rows)
        return found

    def holds(self, places: Places) -> Bools:
        """Which of these blocks [n] have a copy; nothing is used by the question."""
        held = np.zeros(len(places), np.bool_)
        for _, rows, _ in self._copies(places):
            held[rows] = True
        return held

    def _copies(self, places: Places) -> Iterator[tuple[CopySegment, npt.NDArray[np.intp], U32]]:
        """Copies that can be read: their segment, whose they are (rows of `places`), their slots
        there."""
        for known, rows in self._by_source(places):
            slots = places["slot"][rows]
            inside = slots < len(known.seen)
            rows, slots = rows[inside], slots[inside]
            same = known.generation[slots] == places["generation"][rows]
            rows, slots = rows[same], slots[same]
            for home, mine in groups(known.home[slots]):
                if home:
                    segment, at = self._segments[home - 1], known.at[slots[mine]]
                    sealed = segment.state[at] == SEALED
                    yield segment, rows[mine[sealed]], at[sealed]

    def _by_source(self, places: Places) -> Iterator[tuple[KnownSlots, npt.NDArray[np.intp]]]:
        for segment_id, rows in groups(places["segment"]):
            known = self._known.get(segment_id)
            if known is not None:
                yield known, rows

    # ---- copying ----

    def see(self, places: Places, block_bytes: int) -> MirrorWork | None:
        """These blocks, each named once, were asked for; what is to be copied now."""
        shape = SegmentShape(self.config.segment_bytes, slot_bytes_of(block_bytes))
        if not len(places) or not shape.slots:
            return None
        for segment_id in np.unique(places["segment"]).tolist():
            self._known.setdefault(segment_id, KnownSlots())
        chosen = [rows[self._saw(known, places[rows])] for known, rows in self._by_source(places)]
        rows = np.sort(np.concatenate(chosen))[: self.config.batch_blocks]
        return self._take(places[rows], shape, block_bytes) if len(rows) else None

    def _saw(self, known: KnownSlots, places: Places) -> Bools:
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
        offsets = shape.offsets(columns[1])
        work = MirrorWork(
            next(self._tickets), formats, kept, *columns[:2], offsets, columns[2], block_bytes
        )
        self._mark(work)
        self._open[work.ticket] = work
        return work

    def _mark(self, work: MirrorWork) -> None:
        for index, rows in groups(work.segment_indices):
            segment, slots = self._segments[index], work.slots[rows]
            segment.source[slots], segment.state[slots] = work.sources[rows], WRITING
            segment.stamp[slots] = self._tick
        for segment_id, rows in groups(work.sources["segment"]):
            known, at = self._known[segment_id], work.sources["slot"][rows]
            known.home[at], known.at[at] = work.segment_indices[rows] + 1, work.slots[rows]

    def finish(self, ticket: int, moved: Bools) -> None:
        """Blocks moved[n] of the work have arrived; the others get no copy for now."""
        work = self._open.pop(ticket, None)
        if work is None:
            return  # from before a clear()
        for index, rows in groups(work.segment_indices):
            segment, slots = self._segments[index], work.slots[rows]
            arrived = moved[rows] & (segment.state[slots] == WRITING)
            segment.state[slots[arrived]] = SEALED
            failed = slots[~arrived]
            self.counters["copies_made"] += int(arrived.sum())
            self.counters["copies_failed"] += len(failed)
            unwanted = failed[segment.state[failed] == WRITING]
            self._unlink(segment, unwanted)
            segment.give(failed)

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

    def _drop(self, known: KnownSlots, slots: U32) -> None:
        """Forgets what was known of a dram segment's slots [n]."""
        copied = slots[known.home[slots] != 0]
        for home, rows in groups(known.home[copied]):
            segment, mine = self._segments[home - 1], known.at[copied[rows]]
            writing = segment.state[mine] == WRITING
            segment.state[mine[writing]] = DOOMED
            segment.give(mine[~writing])
            self.counters["copies_dropped"] += len(mine)
        known.home[slots], known.seen[slots] = 0, 0

    def _unlink(self, segment: CopySegment, slots: U32) -> None:
        """The blocks that these slots hold have no copy any more."""
        sources = segment.source[slots]
        for segment_id, rows in groups(sources["segment"]):
            known, at = self._known[segment_id], sources["slot"][rows]
            known.home[at], known.seen[at] = 0, 0

    # ---- room ----

    def _of_size(self, slot_bytes: int) -> list[CopySegment]:
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
        sealed = np.flatnonzero(stalest.state == SEALED).astype(np.uint32)
        self._unlink(stalest, sealed)
        self.counters["copies_evicted"] += len(sealed)
        worn = stalest.slab.is_worn
        first = 0 if worn else stalest.slab.ceiling()
        formats.append(self._format(stalest.index, shape, first, fresh_memory=worn))
        return True

    def _format(
        self, index: int, shape: SegmentShape, generation: int, *, fresh_memory: bool
    ) -> FormatSegment:
        made = CopySegment(index, next(self._ids), shape, generation)
        self._segments[index] = made
        return FormatSegment(
            index, made.segment_id, shape.slot_bytes, shape.slots, generation, fresh_memory
        )

    def _stalest_beyond_its_share(self, slot_bytes: int) -> CopySegment | None:
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

    def _evict(self, segments: list[CopySegment], count: int) -> bool:
        """Gives up the copies used least recently, but none that is used right now."""
        rows = [
            (segment, slots := np.flatnonzero(idle).astype(np.uint32), segment.stamp[slots])
            for segment in segments
            if (idle := (segment.state == SEALED) & (segment.stamp < self._tick)).any()
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

    def _retire(self, segment: CopySegment, slots: U32) -> None:
        self._unlink(segment, slots)
        segment.give(slots)
        self.counters["copies_evicted"] += len(slots)

    # ---- invariants ----

    def check(self) -> list[str]:
        """Violations of what must always hold."""
        found = []
        for index, segment in self._segments.items():
            taken = np.flatnonzero(segment.state != FREE).astype(np.uint32)
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
        if written != self.writing:
            found.append(f"{written} slots are being written, not those of the open tickets")
        return found
