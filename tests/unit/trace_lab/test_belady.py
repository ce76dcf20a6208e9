"""Goal: Belady's line is the optimum that it says it is, closed towards the root.
Method: tiny random traces against every choice that a memory of so many pages has, leaf or not.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trace.belady import BeladyCache
from benchmarks.trace.caches import Loss
from benchmarks.trace.trace import Trace, make_trace, next_uses, seen_before
from tests.unit.trace_lab.tiny import SIZES, TRACES, leading, parents


def brute_force(trace: Trace, capacity: int) -> int:
    """Most pages that any memory of `capacity` pages could spare: every subset of what it held and
    what the request computed is tried, holes and all."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for request in range(len(trace)):
        path, usable = trace.path(request), int(trace.usable[request])
        after: dict[frozenset[int], int] = {}
        for held, spared in best.items():
            spared += leading(held, path, usable)
            choices = held | set(path.tolist())
            for size in range(min(capacity, len(choices)) + 1):
                for kept in itertools.combinations(sorted(choices), size):
                    key = frozenset(kept)
                    after[key] = max(after.get(key, -1), spared)
        best = after
    return max(best.values())


def belady(trace: Trace, capacity: int, margin_pages: int = 0) -> tuple[BeladyCache, int]:
    """The cache and the pages that it spares."""
    capacity_bytes = capacity * SIZES.page_bytes + SIZES.page_bytes - 1
    cache = BeladyCache(trace, next_uses(trace), SIZES, capacity_bytes, margin_pages)
    seen = seen_before(trace).tolist()
    return cache, sum(cache.serve(n, before).hit_pages for n, before in enumerate(seen))


@given(TRACES, st.integers(0, 4))
def test_belady_of_tiny_traces_equals_brute_force(trace: Trace, capacity: int) -> None:
    assert belady(trace, capacity)[1] == brute_force(trace, capacity)


@given(TRACES, st.integers(0, 6))
def test_belady_at_every_request_keeps_a_closed_set_that_fits(trace: Trace, capacity: int) -> None:
    cache, _ = belady(trace, 0)
    cache = BeladyCache(trace, next_uses(trace), SIZES, capacity * SIZES.page_bytes, 0)
    above = parents(trace)
    for request, seen in enumerate(seen_before(trace).tolist()):
        cache.serve(request, seen)
        every = np.arange(trace.distinct, dtype=np.uint32)
        kept = set(every[cache.kept(every)].tolist())
        assert len(kept) == cache.pages_kept <= capacity
        assert all(above[page] is None or above[page] in kept for page in kept)


@given(TRACES)
def test_belady_with_room_for_all_spares_what_was_seen(trace: Trace) -> None:
    assert belady(trace, trace.distinct)[1] == int(seen_before(trace).sum())


@given(TRACES, st.integers(0, 4), st.integers(1, 3))
def test_belady_with_a_margin_spares_less_and_says_so(
    trace: Trace, capacity: int, margin_pages: int
) -> None:
    cache = BeladyCache(trace, next_uses(trace), SIZES, capacity * SIZES.page_bytes, margin_pages)
    plain = BeladyCache(trace, next_uses(trace), SIZES, capacity * SIZES.page_bytes, 0)
    for request, seen in enumerate(seen_before(trace).tolist()):
        served, without = cache.serve(request, seen), plain.serve(request, seen)
        assert served.hit_pages == max(0, without.hit_pages - margin_pages)
        assert served.hit_pages + served.lost[Loss.MARGIN] == without.hit_pages
        assert served.hit_pages + sum(served.lost.values()) == seen


@pytest.mark.parametrize(("capacity", "spared"), [(0, 0), (1, 2), (2, 3), (3, 4)])
def test_belady_of_three_pages_keeps_the_nearest(capacity: int, spared: int) -> None:
    paths = [[0], [1], [2], [1], [0], [2], [1]]
    trace = make_trace(
        "three", 64, [np.array(p, np.uint32) for p in paths], [1] * 7, [float(n) for n in range(7)]
    )
    assert belady(trace, capacity)[1] == spared == brute_force(trace, capacity)
