"""The tuner of the flop-aware policy.

Goal: the window ends where the paper's does; replaying counts what a cache of that size would have
spared; a window in which deep prefixes come back chooses another alpha than one in which only
recent ones do.  Method: windows of a few dozen requests, made so that one answer is right.
"""

from __future__ import annotations

import math

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.policies import FlopAware, Lru
from anchorstore.server.core.tuning import Bootstrap, Window, tune, work_saved
from anchorstore.server.core.types import U32, U64
from tests.unit.core.small import KV, Small
from tests.unit.core.tiered import COLD_SEGMENT_BYTES, Tiered, fetch

PAGE_BYTES = 100


def hashes(*numbers: int) -> U64:
    return np.array([[number, 0, 0, 0] for number in numbers], np.uint64)


def window(paths: list[list[int]], sizes: dict[int, int] | None = None) -> Window:
    count = max(map(max, paths)) + 1
    columns = [(sizes or {}).get(page, PAGE_BYTES) for page in range(count)]
    return Window([np.array(path, np.uint32) for path in paths], np.array(columns, np.uint64))


def test_bootstrap_ends_at_five_times_the_requests_before_the_first_eviction() -> None:
    bootstrap = Bootstrap(requests_min=1)
    for number in range(3):
        bootstrap.note(hashes(number), PAGE_BYTES)
    bootstrap.evicted()
    for number in range(3, 30):
        assert bootstrap.is_full == (number >= 15)
        bootstrap.note(hashes(number), PAGE_BYTES)
    assert len(bootstrap.window().paths) == 15


def test_bootstrap_ends_at_its_bounds() -> None:
    few, small = Bootstrap(requests_max=2), Bootstrap(pages_max=5)
    for number in range(9):
        few.note(hashes(number), PAGE_BYTES)
        small.note(hashes(number, number + 100), PAGE_BYTES)
    assert len(few.window().paths) == 2 and len(small.window().paths) == 3


def test_bootstrap_numbers_pages_by_their_hash() -> None:
    bootstrap = Bootstrap()
    bootstrap.note(hashes(7, 8), 100)
    bootstrap.note(hashes(7, 9), 400)
    noted = bootstrap.window()
    assert [path.tolist() for path in noted.paths] == [[0, 1], [0, 2]]
    assert noted.sizes.tolist() == [100, 100, 400]


def test_work_saved_counts_what_the_cache_would_have_spared() -> None:
    """Two pages fit: 0 1 is there the second time, gone after 2 3, and its end goes first."""
    paths = [[0, 1], [0, 1], [2, 3], [0, 1]]
    assert work_saved(Lru(), window(paths), 2 * PAGE_BYTES, math.inf) == 2.0
    assert work_saved(Lru(), window(paths), 3 * PAGE_BYTES, math.inf) == 3.0
    assert work_saved(Lru(), window(paths), 4 * PAGE_BYTES, math.inf) == 4.0


def test_work_saved_deep_pages_count_for_more() -> None:
    assert work_saved(Lru(), window([[0, 1, 2]] * 2), 10**6, 1.0) == 1 + 2 + 3


def test_work_saved_path_larger_than_the_cache_is_served_all_the_same() -> None:
    assert work_saved(Lru(), window([[0, 1, 2]] * 2), PAGE_BYTES, math.inf) == 3.0


def trace(seed: int, returning: list[int]) -> list[U32]:
    """Many single pages that never come back, and every tenth request `returning`."""
    source = np.random.default_rng(seed)
    paths = []
    for number in range(200):
        once = [100 + number] if source.random() < 0.9 or number < 2 else returning
        paths.append(np.array(returning if number % 10 == 0 else once, np.uint32))
    return paths


def test_tune_small_pages_that_come_back_raise_alpha() -> None:
    """A page that costs little and returns seldom is lost to recency alone."""
    paths = trace(1, [0, 1, 2])
    sizes = np.full(400, 1000, np.uint64)
    sizes[:3] = 10
    asked = Window(paths, sizes)
    chosen = tune(asked, 4000, 1024.0)
    assert chosen.alpha > 0.0
    assert work_saved(chosen, asked, 4000, 1024.0) > work_saved(Lru(), asked, 4000, 1024.0)


def test_tune_alike_pages_leave_recency_alone() -> None:
    """No alpha does better than none, so none is chosen."""
    asked = window([[0], [1], [2], [0], [1], [3], [1], [2]])
    assert tune(asked, 3 * PAGE_BYTES, 1024.0).alpha == 0.0


def test_store_hands_out_its_window_once_and_follows() -> None:
    """Four slots; two prefixes are asked for in turn until the window is full."""
    small = Small(segments=1, policy=FlopAware())
    engine = small.session(layouts=[KV])
    assert small.store.take_window() is None, "nothing was asked for"
    for number in range(150):
        path = engine.path(2, str(number % 3))
        if not engine.stored(path):
            engine.put(path)
    window = small.store.take_window()
    assert window is not None and len(window.paths) == 100 and len(window.sizes) == 6
    assert small.store.take_window() is None
    tuned = tune(window, 4 * 4096, 1024.0)
    small.store.follow(tuned)
    engine.put(engine.path(2, "new"))
    assert engine.present(engine.path(2, "new")) == [True, True]
    assert small.store.check() == []


def test_store_of_another_policy_records_nothing() -> None:
    small = Small(segments=1, component_share={Component.KV: 1.0})
    engine = small.session(layouts=[KV])
    for _ in range(200):
        engine.lookup(engine.path(1))
    assert small.store.take_window() is None


def test_store_of_two_tiers_tunes_the_one_whose_pages_are_computed_again() -> None:
    small = Tiered(segments=1, nvme={"segments": 2, "policy": FlopAware()})
    engine = small.session(layouts=[KV])
    assert small.store.last_tier == (FlopAware(), 2 * COLD_SEGMENT_BYTES)
    for number in range(12):  # dram evicts, nvme does not
        engine.stored(engine.path(1, "hot"))
        engine.put(engine.path(2, str(number % 3)))
        small.write_all()
    state = small.store._state
    assert state.counters["pages_demoted"] and state.counters["pages_left_nvme_for_room"] == 0
    assert small.store.take_window() is None
    for number in range(200):
        engine.release(fetch(engine, engine.path(2, str(number % 7))))
        engine.put(engine.path(2, str(number % 7)))
        small.write_all()
    assert state.counters["pages_left_nvme_for_room"] > 0
    assert small.store.take_window() is not None
    small.store.follow(FlopAware(alpha=0.3))
    assert small.store.last_tier[0] == FlopAware(alpha=0.3) != state.dram.queues.policy
    engine.put(engine.path(2, "new"))
    assert small.write_all() == 2 and small.store.check() == []
