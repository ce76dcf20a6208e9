"""The daemon's own core, in simulated time: every decision of the product, and no bytes.

::

    request --> lookup, release --> reserve, begin_seal, finish_seal of the rest --> evict_step
                   |                       |
                   hit, or why not         what is declined

The copy between begin_seal and finish_seal takes no time here, and one request is over before the
next one starts.
"""

from __future__ import annotations

import collections
import math

import numpy as np

from anchorstore.keys import DIGEST_BYTES, Namespace
from anchorstore.layout import Component
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import (
    ANY_LINEAGE,
    LookupResult,
    Miss,
    Need,
    NeedAll,
    NeedWindow,
    Sealed,
    SealWork,
    StoreConfig,
    Verdict,
)
from anchorstore.transport.segment import SegmentShape
from anchorstore.units import GIB, MIB
from benchmarks.trace.caches import Loss, Served
from benchmarks.trace.sizes import ROWS_PER_PAGE, Sizes
from benchmarks.trace.trace import U32, U64, Trace
from engine_adapter.budget import MAX_ROWS_DEFAULT, RATIO_DEFAULT

KV, ANCHOR = 0, 1
NEEDS: tuple[Need, ...] = (
    NeedAll(KV, first_page=0),
    NeedWindow(ANCHOR, RATIO_DEFAULT, MAX_ROWS_DEFAULT, ROWS_PER_PAGE),
)
"""What an engine asks for that holds nothing itself and replays by the default budget."""

SESSION = b"trace lab       "
EVICT_STEP_BLOCKS = 4096
SEGMENTS = 128


class CapacityError(Exception):
    """So few bytes that the pool has no room for a page of each component."""


def page_hashes(distinct: int) -> U64:
    """[distinct, 4] a path hash for every page number: mixed counters, all different."""
    mixed = np.arange(4 * distinct, dtype=np.uint64) + np.uint64(1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed.reshape(distinct, 4)


def store_config(capacity_bytes: int, sizes: Sizes) -> StoreConfig:
    """A dram pool of so many bytes, cut between kv and anchors as pages need it."""
    segment_bytes = min(capacity_bytes // SEGMENTS, GIB) // MIB * MIB
    segment_bytes = max(segment_bytes, 8 * sizes.kv_bytes + MIB)
    segments = capacity_bytes // segment_bytes
    if segments < 2:
        raise CapacityError(
            f"{capacity_bytes} bytes: at least {2 * segment_bytes} are needed for {sizes.model}"
        )
    anchor_segments = _anchor_segments(segments, segment_bytes, sizes)
    return StoreConfig(
        segments=segments,
        segment_bytes=segment_bytes,
        component_share={
            Component.ANCHOR: anchor_segments / segments,
            Component.KV: (segments - anchor_segments) / segments,
        },
    )


def _anchor_segments(segments: int, segment_bytes: int, sizes: Sizes) -> int:
    """Fewest segments that hold anchors of as many pages as the others hold kv of."""
    kv_slots = SegmentShape(segment_bytes, sizes.kv_bytes).slots
    anchor_slots = SegmentShape(segment_bytes, sizes.anchor_bytes).slots
    return math.ceil(segments * kv_slots / (kv_slots + anchor_slots))


class StoreCache:
    """The core with a dram tier, asked as an engine's adapter asks it."""

    def __init__(self, trace: Trace, sizes: Sizes, capacity_bytes: int, margin_pages: int) -> None:
        self.name = "anchorstore lru"
        self.trace = trace
        self.sizes = sizes
        self.margin_pages = margin_pages
        self.store = Store(store_config(capacity_bytes, sizes), boot_id=bytes(16))
        self._hashes = page_hashes(trace.distinct)
        self._declined = np.zeros(trace.distinct, np.bool_)  # when last offered
        self._moved: collections.Counter[str] = collections.Counter()
        namespace = Namespace("lab", sizes.model, bytes(32), page_tokens=trace.page_tokens)
        layouts = [sizes.kv, sizes.anchor]
        grant = self.store.open_session(SESSION, namespace, layouts, now=0.0)
        self.store.connection_opened(SESSION, namespace.domain)
        self._root = grant.root_digest

    def serve(self, request: int, seen: int) -> Served:
        """Looks up, seals what is missing, does the watermark's work."""
        path = self.trace.path(request)
        hashes = self._hashes[path].tobytes()
        now = float(self.trace.seconds[request])
        usable = int(self.trace.usable[request])
        served, resume = Served(0, {}), 0
        if usable:
            asked = hashes[: DIGEST_BYTES * usable]
            found = self._look_up(asked, now)
            resume = found.resume_pages
            served = self._served(path, asked, found, seen)
        self._keep(path, hashes, resume, now)
        while self.store.evict_step(now, EVICT_STEP_BLOCKS):
            pass
        return served

    def moved(self) -> dict[str, int]:
        """Bytes read from and written to dram."""
        return dict(self._moved)

    def _look_up(self, asked: bytes, now: float) -> LookupResult:
        found = self.store.lookup(
            SESSION, asked, NEEDS, max_lineage=ANY_LINEAGE, margin_pages=self.margin_pages, now=now
        )
        if found.lease_id:
            self.store.release(SESSION, [found.lease_id], now)
        for columns in found.columns:
            size = self.sizes.kv_bytes if columns.layout == KV else self.sizes.anchor_bytes
            self._moved["dram read"] += size * len(columns)
        return found

    def _served(self, path: U32, asked: bytes, found: LookupResult, seen: int) -> Served:
        boundary = found.boundary_pages
        present = boundary
        if boundary < seen:
            present = min(seen, self.store.explain(self._root, asked).pages_present)
        if found.miss is Miss.MARGIN:
            boundary = min(self.margin_pages, present)
        lost = collections.Counter({Loss.MARGIN: boundary - found.resume_pages})
        for stop, reason in ((present, Loss.WINDOW), (seen, Loss.EVICTED)):
            if stop > boundary:
                lost[Loss.DECLINED if self._declined[path[boundary]] else reason] += stop - boundary
                boundary = stop
        return Served(found.resume_pages, lost)

    def _keep(self, path: U32, hashes: bytes, first: int, now: float) -> None:
        """Offers the pages from `first` on, both components."""
        count = len(path) - first
        if not count:
            return
        start = DIGEST_BYTES * first
        parent = hashes[start - DIGEST_BYTES : start] if first else self._root
        layouts = [KV, ANCHOR]
        answer = self.store.reserve(SESSION, parent, first, hashes[start:], layouts, 0, now)
        verdicts = np.frombuffer(answer.verdicts, np.uint8).reshape(count, len(layouts))
        declined = (verdicts == Verdict.DECLINED).any(axis=1)
        if answer.reservation_id:
            rows, columns = np.nonzero(verdicts == Verdict.TAKE)
            work = self.store.begin_seal(
                SESSION,
                answer.reservation_id,
                rows.astype(np.uint32),
                columns.astype(np.uint8),
                keep_open=False,
                now=now,
            )
            results = self._copy(work, now)
            declined[rows[results == Sealed.DECLINED]] = True
        self._declined[path[first:]] = declined

    def _copy(self, work: SealWork, now: float) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """What the daemon's mover would do; one answer a block."""
        count = len(work.copies)
        self._moved["dram written"] += int(work.copies.block_bytes.sum())
        results = self.store.finish_seal(
            work.ticket, np.ones(count, np.bool_), np.zeros(count, np.uint64), now
        )
        return np.frombuffer(results, np.uint8)
