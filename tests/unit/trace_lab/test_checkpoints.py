"""Goal: the checkpoint cache keeps what it says, counts its bytes right and explains its losses.
Method: tiny traces against a plain model of sets, and single behaviours on paths of few pages.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trace.caches import Loss
from benchmarks.trace.checkpoints import (
    CheckpointCache,
    Computed,
    GridPlacement,
    Placement,
    ToldPlacement,
    WorkloadPlacement,
)
from benchmarks.trace.trace import Trace, future_uses, make_trace, seen_before
from tests.unit.trace_lab.tiny import SIZES, TRACES, leading

PAGE = 64
NAMES = ("grid", "placed", "told")


def placement_of(name: str, trace: Trace) -> Placement:
    """A placement by the name that the report gives it."""
    if name == "grid":
        return GridPlacement(8192 // 2)  # a grid of two pages
    if name == "placed":
        return WorkloadPlacement(trace, seen_before(trace))
    return ToldPlacement(trace)


def trace_of(*paths: list[int]) -> Trace:
    """These requests, a second apart, every page usable."""
    return make_trace(
        "fixed",
        PAGE,
        [np.array(path, np.uint32) for path in paths],
        [len(path) for path in paths],
        [float(number) for number in range(len(paths))],
    )


class PlainModel:
    """States as paths, least recently used first; no counting, no heap."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.states: list[tuple[int, ...]] = []

    def held(self) -> set[int]:
        """Pages whose kv some state needs."""
        return {page for state in self.states for page in state}

    def bytes_kept(self) -> int:
        """What all of it takes."""
        states = len(self.states) * SIZES.state_bytes
        return states + len(self.held()) * SIZES.kv_bytes

    def use(self, state: tuple[int, ...]) -> None:
        """To the end of the line."""
        self.states = [other for other in self.states if other != state] + [state]

    def serve(self, request: int, path: list[int], usable: int, placement: Placement) -> int:
        """The pages spared."""
        asked = tuple(path[:usable])
        resume = max((len(s) for s in self.states if asked[: len(s)] == s), default=0)
        held = leading(self.held(), np.array(path, np.uint32), usable)
        if resume:
            self.use(asked[:resume])
        for depth in placement.depths(Computed(request, resume, held, len(path))):
            self.use(tuple(path[:depth]))
        while self.bytes_kept() > self.capacity_bytes:
            self.states.pop(0)
        return resume


@given(TRACES, st.integers(0, 12), st.sampled_from(NAMES))
def test_cache_on_tiny_traces_equals_the_plain_model(trace: Trace, slots: int, name: str) -> None:
    placement = placement_of(name, trace)
    cache = CheckpointCache(name, trace, SIZES, slots * 4096, placement)
    model = PlainModel(slots * 4096)
    for request, seen in enumerate(seen_before(trace).tolist()):
        path, usable = trace.path(request).tolist(), int(trace.usable[request])
        served = cache.serve(request, seen)
        assert served.hit_pages == model.serve(request, path, usable, placement)
        assert served.hit_pages + sum(served.lost.values()) == seen
        assert all(pages >= 0 for pages in served.lost.values())
        assert cache.bytes_kept == model.bytes_kept() <= slots * 4096
        assert cache.states == len(model.states)


@given(TRACES)
def test_future_uses_of_tiny_traces_equal_a_plain_count(trace: Trace) -> None:
    found = future_uses(trace)
    for request in range(len(trace)):
        for depth, page in enumerate(trace.path(request).tolist()):
            later = [
                other
                for other in range(request + 1, len(trace))
                if page in trace.path(other)[: int(trace.usable[other])]
            ]
            assert found[int(trace.starts[request]) + depth] == len(later)


def test_grid_of_a_long_request_takes_every_step_and_the_end() -> None:
    grid = GridPlacement(PAGE)
    assert grid.depths(Computed(0, 0, 0, 300)) == [128, 256, 300]
    assert grid.depths(Computed(0, 130, 130, 256)) == [256]


def test_branch_on_second_sight_resumes_on_the_third() -> None:
    trace = trace_of([0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5])
    cache = CheckpointCache("grid", trace, SIZES, 2**20, GridPlacement(PAGE))
    served = [cache.serve(request, seen) for request, seen in enumerate([0, 3, 3])]
    assert [one.hit_pages for one in served] == [0, 0, 3]
    assert served[1].lost[Loss.CHECKPOINT] == 3


def test_told_placement_puts_the_state_where_the_others_leave() -> None:
    trace = trace_of([0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5])
    cache = CheckpointCache("told", trace, SIZES, 2**20, ToldPlacement(trace))
    assert [cache.serve(n, seen).hit_pages for n, seen in enumerate([0, 3, 3])] == [0, 3, 3]
    assert cache.states == 1


@pytest.mark.parametrize(("states", "spared"), [(1, 0), (2, 2)])
def test_cache_over_its_bytes_drops_the_state_used_least_recently(states: int, spared: int) -> None:
    trace = trace_of([0, 1], [2, 3], [0, 1])
    room = states * (SIZES.state_bytes + 2 * SIZES.kv_bytes)
    cache = CheckpointCache("grid", trace, SIZES, room, GridPlacement(PAGE))
    served = [cache.serve(request, seen) for request, seen in enumerate([0, 0, 2])]
    assert served[2].hit_pages == spared
    assert served[2].lost[Loss.EVICTED] == 2 - spared
    assert cache.states == states
