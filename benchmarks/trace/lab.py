"""Runs caches over traces and adds up what they spared.

A document, for --json: traces, each with its caches by capacity; figures are pages and bytes.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from anchorstore.units import format_bytes
from benchmarks.trace.belady import BeladyCache
from benchmarks.trace.caches import Cache, Loss
from benchmarks.trace.core import StoreCache
from benchmarks.trace.infinite import InfiniteCache
from benchmarks.trace.sizes import Sizes
from benchmarks.trace.trace import U32, Trace, next_uses, seen_before

Say = Callable[[str], None]

PROGRESS_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is compared: capacities are fractions of a trace's working set."""

    capacities: tuple[Fraction, ...]
    margin_pages: int


def serve_all(trace: Trace, seen: U32, cache: Cache, say: Say) -> dict[str, Any]:
    """Every request of the trace, in order; the cache's line of the report."""
    hit_pages = hit_requests = 0
    lost: Counter[Loss] = Counter()
    told = time.monotonic()
    for request, before in enumerate(seen.tolist()):
        served = cache.serve(request, before)
        spared = served.hit_pages + sum(served.lost.values())
        assert spared == before, f"{cache.name}, request {request}: {served} of {before} seen"
        hit_pages += served.hit_pages
        hit_requests += served.hit_pages > 0
        lost.update(served.lost)
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            say(f"{trace.name}, {cache.name}: {request + 1} of {len(trace)} requests")
    return {
        "cache": cache.name,
        "hit_pages": hit_pages,
        "hit_requests": hit_requests,
        "hit_rate": hit_pages / max(1, trace.usable_pages),
        "lost_pages": {reason.value: lost[reason] for reason in Loss if lost[reason]},
        "moved_bytes": cache.moved(),
    }


def run_trace(trace: Trace, sizes: Sizes, plan: Plan, say: Say) -> dict[str, Any]:
    """All caches of the plan over one trace."""
    seen, uses = seen_before(trace), next_uses(trace)
    working_set_bytes = trace.distinct * sizes.page_bytes
    say(
        f"{trace.name}: {len(trace)} requests, {trace.distinct} pages, "
        f"{format_bytes(working_set_bytes)}"
    )
    lines = []
    for capacity in plan.capacities:
        capacity_bytes = int(capacity * working_set_bytes)
        caches: Sequence[Cache] = (
            StoreCache(trace, sizes, capacity_bytes, plan.margin_pages),
            BeladyCache(trace, uses, sizes, capacity_bytes, plan.margin_pages),
        )
        for cache in caches:
            found = serve_all(trace, seen, cache, say)
            lines.append({"capacity": str(capacity), "capacity_bytes": capacity_bytes} | found)
    infinite = serve_all(trace, seen, InfiniteCache(plan.margin_pages), say)
    return {
        "trace": trace.name,
        "requests": len(trace),
        "pages": trace.distinct,
        "page_tokens": trace.page_tokens,
        "working_set_bytes": working_set_bytes,
        "usable_pages": trace.usable_pages,
        "new_pages": trace.usable_pages - int(seen.sum()),
        "margin_pages": plan.margin_pages,
        "infinite": infinite,
        "caches": lines,
    }
