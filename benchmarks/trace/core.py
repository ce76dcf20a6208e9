"""The daemon's own core, in simulated time: every decision of the product, and no bytes.

::

    demote --> lookup, promote, release --> reserve, begin_seal, finish_seal --> evict_step
                  |                            |
                  hit, or why not              what is declined

The copy between begin_seal and finish_seal takes no time here, and one request is over before the
next one starts.  What moves between the tiers: movement.py.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY, Namespace
from anchorstore.layout import Component
from anchorstore.server.core.policies import FlopAware
from anchorstore.server.core.store import Store
from anchorstore.server.core.store_config import cold_slot_bytes_of
from anchorstore.server.core.tuning import tune
from anchorstore.server.core.types import (
    LookupResult,
    Miss,
    Need,
    NeedAll,
    NeedWindow,
    NvmeShape,
    Sealed,
    SealWork,
    StoreConfig,
    Verdict,
)
from anchorstore.transport.segment import align
from anchorstore.units import GIB, MIB, format_bytes
from benchmarks.trace.caches import Loss, Served
from benchmarks.trace.memory import Memory
from benchmarks.trace.movement import Movement
from benchmarks.trace.sizes import ROWS_PER_PAGE, Sizes
from benchmarks.trace.trace import U32, U64, Trace
from benchmarks.trace.variants import Variant
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
SEGMENT_BYTES_MIN = {"dram": MIB // 16, "nvme": MIB}
"""As the daemon's configuration has it."""


class CapacityError(Exception):
    """So few bytes that a pool has no room for a page of each component."""


def page_hashes(distinct: int) -> U64:
    """[distinct, 4] a path hash for every page number: mixed counters, all different."""
    mixed = np.arange(4 * distinct, dtype=np.uint64) + np.uint64(1)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed.reshape(distinct, 4)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """A pool of a tier."""

    segments: int
    segment_bytes: int
    component_share: dict[Component, float]


def _shape(tier: str, capacity_bytes: int, kv_slot_bytes: int, anchor_slot_bytes: int) -> _Shape:
    """A pool of so many bytes, cut between kv and anchors as pages need it."""
    segment_bytes = min(capacity_bytes // SEGMENTS, GIB) // MIB * MIB
    least_bytes = max(SEGMENT_BYTES_MIN[tier], align(8 * kv_slot_bytes + MIB // 2))
    segment_bytes = max(segment_bytes, least_bytes)
    segments = capacity_bytes // segment_bytes
    if segments < 2:
        raise CapacityError(
            f"{tier} of {format_bytes(capacity_bytes)}: at least {format_bytes(2 * segment_bytes)} "
            "are needed for a pool of such pages"
        )
    anchors = -(-segments * anchor_slot_bytes // (kv_slot_bytes + anchor_slot_bytes))
    shares = {
        Component.ANCHOR: anchors / segments,
        Component.KV: (segments - anchors) / segments,
    }
    return _Shape(segments, segment_bytes, shares)


def store_config(memory: Memory, sizes: Sizes, variant: Variant) -> StoreConfig:
    """The daemon's defaults with pools of so many bytes; CapacityError where a tier is too small
    to hold anything."""
    dram = _shape("dram", memory.dram_bytes, sizes.kv_bytes, sizes.anchor_bytes)
    nvme = None
    if memory.nvme_bytes:
        kv, anchor = sizes.kv.block_bytes(), sizes.anchor.block_bytes()
        slots = (cold_slot_bytes_of(kv), cold_slot_bytes_of(anchor))
        shape = _shape("nvme", memory.nvme_bytes, *slots)
        nvme = NvmeShape(
            shape.segments,
            shape.segment_bytes,
            shape.component_share,
            ahead=variant.is_ahead,
            policy=variant.make_policy(),
            admission=variant.make_admission(),
        )
    return StoreConfig(
        dram.segments,
        dram.segment_bytes,
        dram.component_share,
        policy=variant.make_policy(),
        nvme=nvme,
    )


class StoreCache:
    """The core with its tiers, asked as an engine's adapter asks it."""

    def __init__(
        self,
        trace: Trace,
        sizes: Sizes,
        memory: Memory,
        variant: Variant,
        margin_pages: int,
        *,
        config: StoreConfig | None = None,
    ) -> None:
        """`config` where it is to differ from `store_config`'s."""
        self.name = f"anchorstore {variant}"
        self.trace = trace
        self.sizes = sizes
        self.margin_pages = margin_pages
        self.tuned: FlopAware | None = None  # the order followed since the window was full
        config = config or store_config(memory, sizes, variant)
        self.store = Store(config, boot_id=bytes(16))
        self._hashes = page_hashes(trace.distinct)
        self._declined = np.zeros(trace.distinct, np.bool_)  # when last offered
        self._moved: collections.Counter[str] = collections.Counter()
        self._movement = Movement(self.store, self._moved) if memory.nvme_bytes else None
        namespace = Namespace("lab", sizes.model, bytes(32), page_tokens=trace.page_tokens)
        layouts = [sizes.kv, sizes.anchor]
        grant = self.store.open_session(SESSION, namespace, layouts, now=0.0)
        self.store.connection_opened(SESSION, namespace.domain)
        self._root = grant.root_digest

    def serve(self, request: int, seen: int) -> Served:
        """Looks up, seals what is missing, does the watermark's work."""
        path, now = self.trace.path(request), float(self.trace.seconds[request])
        hashes = self._hashes[path].tobytes()
        if self._movement:
            self._movement.demote(now)
        usable = int(self.trace.usable[request])
        served, resume = Served(0, {}), 0
        if usable:
            asked = hashes[: DIGEST_BYTES * usable]
            found, is_refused = self._look_up(asked, now)
            resume = found.resume_pages
            served = self._served(path, asked, found, is_refused, seen)
        self._keep(path, hashes, resume, int(self.trace.priorities[request]), now)
        while self.store.evict_step(now, EVICT_STEP_BLOCKS):
            pass
        self._tune()
        return served

    def moved(self) -> dict[str, int]:
        """Bytes read from and written to each tier."""
        return dict(self._moved)

    def _tune(self) -> None:
        """As the daemon does once, where the order is one that can be tuned."""
        policy, capacity_bytes = self.store.last_tier
        window = self.store.take_window()
        if window is not None and isinstance(policy, FlopAware):
            self.tuned = tune(window, capacity_bytes, policy.balance_pages)
            self.store.follow(self.tuned)

    def _look_up(self, asked: bytes, now: float) -> tuple[LookupResult, bool]:
        """The answer, and whether more lies in nvme that dram had no room for."""
        refused = self.store.counters["promotions_refused"]
        found = self._ask(asked, now)
        if found.promotion is not None:
            assert self._movement is not None
            self._movement.promote(found.promotion, now)
            found = self._ask(asked, now)
            assert found.promotion is None, "what was brought in is not there"
        if found.lease_id:
            self.store.release(SESSION, [found.lease_id], now)
        for columns in found.columns:
            size = self.sizes.kv_bytes if columns.layout == KV else self.sizes.anchor_bytes
            self._moved["dram read"] += size * len(columns)
        return found, self.store.counters["promotions_refused"] > refused

    def _ask(self, asked: bytes, now: float) -> LookupResult:
        return self.store.lookup(
            SESSION, asked, NEEDS, max_lineage=LINEAGE_ANY, margin_pages=self.margin_pages, now=now
        )

    def _served(
        self, path: U32, asked: bytes, found: LookupResult, is_refused: bool, seen: int
    ) -> Served:
        boundary = found.boundary_pages
        present = boundary
        if boundary < seen:
            present = min(seen, self.store.explain(self._root, asked).pages_present)
        if found.miss is Miss.MARGIN:
            boundary = min(self.margin_pages, present)
        lost = collections.Counter({Loss.MARGIN: boundary - found.resume_pages})
        unusable = Loss.COLD if is_refused else Loss.WINDOW
        for stop, reason in ((present, unusable), (seen, Loss.EVICTED)):
            if stop > boundary:
                lost[Loss.DECLINED if self._declined[path[boundary]] else reason] += stop - boundary
                boundary = stop
        return Served(found.resume_pages, lost)

    def _keep(self, path: U32, hashes: bytes, first: int, priority: int, now: float) -> None:
        """Offers the pages from `first` on, both components."""
        count = len(path) - first
        if not count:
            return
        start = DIGEST_BYTES * first
        parent = hashes[start - DIGEST_BYTES : start] if first else self._root
        layouts = [KV, ANCHOR]
        answer = self.store.reserve(
            SESSION, parent, first, hashes[start:], layouts, 0, now, priority=priority
        )
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
        self.store.take_gone()
        self._moved["dram written"] += int(work.copies.block_bytes.sum())
        results = self.store.finish_seal(
            work.ticket, np.ones(count, np.bool_), np.zeros(count, np.uint64), now
        )
        return np.frombuffer(results, np.uint8)
