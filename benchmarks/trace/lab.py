"""Runs caches over traces and adds up what they spared.

A document, for --json: traces, each with its caches by capacity; figures are pages and bytes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.testing.daemon import Daemon
from anchorstore.units import format_bytes
from benchmarks.trace.belady import BeladyCache
from benchmarks.trace.caches import Cache, Loss
from benchmarks.trace.checkpoints import (
    CheckpointCache,
    GridPlacement,
    Placement,
    ToldPlacement,
    WorkloadPlacement,
)
from benchmarks.trace.core import StoreCache
from benchmarks.trace.daemon import DaemonCache, DaemonError, settings_of
from benchmarks.trace.infinite import InfiniteCache
from benchmarks.trace.memory import Capacity, Memory
from benchmarks.trace.sizes import Sizes
from benchmarks.trace.trace import U32, Trace, next_uses, seen_before
from benchmarks.trace.variants import Variant, parse_variant

Say = Callable[[str], None]

PROGRESS_SECONDS = 5.0
OWN_DAEMON = ""
"""Address of a daemon that the lab starts itself."""
GRID = "checkpoints grid"
"""The rival that factors are stated over."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compared; with the address of a daemon, it alone, as large as it is, or, where that
    is OWN_DAEMON, one that is started for each capacity and variant.  `jobs` caches are served at a
    time, in processes of their own where that is more than one."""

    capacities: tuple[Capacity, ...]
    variants: tuple[Variant, ...]
    margin_pages: int
    daemon: str | None = None
    jobs: int = 1


class Bench:
    """One trace and what is known of it once for all caches."""

    def __init__(self, trace: Trace, sizes: Sizes, plan: Plan, say: Say) -> None:
        self.trace = trace
        self.sizes = sizes
        self.plan = plan
        self.say = say
        self.seen: U32 = seen_before(trace)
        self._uses = next_uses(trace)
        self._placements: dict[str, Placement] = {
            GRID: GridPlacement(trace.page_tokens),
            "checkpoints placed": WorkloadPlacement(trace, self.seen),
            "checkpoints told": ToldPlacement(trace),
        }

    @property
    def working_set_bytes(self) -> int:
        """Every different page, kv and anchors."""
        return self.trace.distinct * self.sizes.page_bytes

    def names(self, memory: Memory) -> list[str]:
        """Every cache that is compared; variants that need nvme are left out where there is none.
        Tiers are the store's alone, its rivals have the same bytes in one piece."""
        variants = [v for v in self.plan.variants if memory.nvme_bytes or not v.needs_nvme]
        return [*map(str, variants), BeladyCache.name, *self._placements]

    def make(self, name: str, memory: Memory) -> Cache:
        """The cache of a name, empty."""
        trace, sizes, margin = self.trace, self.sizes, self.plan.margin_pages
        if name == BeladyCache.name:
            return BeladyCache(trace, self._uses, sizes, memory.total_bytes, margin)
        if placement := self._placements.get(name):
            return CheckpointCache(name, trace, sizes, memory.total_bytes, placement)
        return StoreCache(trace, sizes, memory, parse_variant(name), margin)

    def line(self, capacity: Capacity, name: str) -> dict[str, Any]:
        """One line of the report."""
        return self._line(capacity, self.make(name, capacity.of(self.working_set_bytes)))

    def own_daemon_line(self, capacity: Capacity, variant: Variant) -> dict[str, Any]:
        """The same of a daemon that lives as long."""
        memory, margin = capacity.of(self.working_set_bytes), self.plan.margin_pages
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="anchorstore-lab-"))
            folder = pathlib.Path(name)
            settings = settings_of(memory, self.sizes, variant, folder)
            try:
                daemon = stack.enter_context(Daemon(folder / "daemon", settings=settings))
            except RuntimeError as error:
                raise DaemonError(f"no daemon of {capacity}: {error}") from error
            cache = DaemonCache(self.trace, self.sizes, daemon.address, margin, f"daemon {variant}")
            return self._line(capacity, stack.enter_context(contextlib.closing(cache)))

    def _line(self, capacity: Capacity, cache: Cache) -> dict[str, Any]:
        memory = capacity.of(self.working_set_bytes)
        about = {
            "capacity": str(capacity),
            "capacity_bytes": memory.total_bytes,
            "nvme_bytes": memory.nvme_bytes,
        }
        found = self.serve_all(cache)
        self.say(f"{self.trace.name}, {capacity}, {found['cache']}: {found['hit_rate']:.1%} spared")
        return about | found

    def serve_all(self, cache: Cache) -> dict[str, Any]:
        """Every request of the trace, in order; the cache's line of the report."""
        trace = self.trace
        hits = np.zeros(len(trace), np.int64)
        lost: Counter[Loss] = Counter()
        told = time.monotonic()
        for request, before in enumerate(self.seen.tolist()):
            served = cache.serve(request, before)
            accounted = served.hit_pages + sum(served.lost.values())
            assert accounted == before, f"{cache.name}, request {request}: {served}, {before} seen"
            hits[request] = served.hit_pages
            lost.update(served.lost)
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                self.say(f"{trace.name}, {cache.name}: {request + 1} of {len(trace)} requests")
        return {
            "cache": cache.name,
            "hit_pages": int(hits.sum()),
            "hit_requests": int(np.count_nonzero(hits)),
            "hit_depth_tokens": _depths(hits * trace.page_tokens),
            "hit_rate": int(hits.sum()) / max(1, trace.usable_pages),
            "lost_pages": {reason.value: lost[reason] for reason in Loss if lost[reason]},
            "moved_bytes": dict(cache.moved()),
        }

    def lines(self) -> Iterator[dict[str, Any]]:
        """Cache by cache, capacity by capacity."""
        if self.plan.daemon == OWN_DAEMON:
            pairs = itertools.product(self.plan.capacities, self.plan.variants)
            yield from itertools.starmap(self.own_daemon_line, pairs)
            return
        if self.plan.daemon is not None:
            daemon = DaemonCache(self.trace, self.sizes, self.plan.daemon, self.plan.margin_pages)
            with contextlib.closing(daemon):
                yield self.serve_all(daemon)
            return
        wanted = [
            (capacity, name)
            for capacity in self.plan.capacities
            for name in self.names(capacity.of(self.working_set_bytes))
        ]
        if self.plan.jobs == 1:
            yield from itertools.starmap(self.line, wanted)
            return
        with concurrent.futures.ProcessPoolExecutor(self.plan.jobs) as pool:
            yield from pool.map(self.line, *zip(*wanted, strict=True))


def _depths(tokens: npt.NDArray[np.int64]) -> dict[str, int]:
    """How deep the hits among these requests [n] reach: the middle one, the upper tenth's least."""
    hits = np.sort(tokens[tokens > 0])
    return {f"p{p}": int(hits[len(hits) * p // 100]) if len(hits) else 0 for p in (50, 90)}


def run_trace(trace: Trace, sizes: Sizes, plan: Plan, say: Say) -> dict[str, Any]:
    """All caches of the plan over one trace."""
    bench = Bench(trace, sizes, plan, say)
    say(
        f"{trace.name}: {len(trace)} requests, {trace.distinct} pages, "
        f"{format_bytes(bench.working_set_bytes)}"
    )
    return {
        "trace": trace.name,
        "requests": len(trace),
        "pages": trace.distinct,
        "page_tokens": trace.page_tokens,
        "working_set_bytes": bench.working_set_bytes,
        "usable_pages": trace.usable_pages,
        "new_pages": trace.usable_pages - int(bench.seen.sum()),
        "margin_pages": plan.margin_pages,
        "infinite": bench.serve_all(InfiniteCache(plan.margin_pages)),
        "caches": list(bench.lines()),
    }
