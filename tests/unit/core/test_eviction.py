"""Eviction: who goes, in which order, and who never does.

Goal: leaf-first LRU, exact; quotas and watermarks touch only their scope; leases and the writer's
own path are safe; segments change hands without showing anything.  Method: pools of a few slots.
"""

from __future__ import annotations

import random

from anchorstore.layout import Component, StateLayout
from anchorstore.server.core.leaf_order import SCAN_LEAVES_MIN
from anchorstore.server.core.types import NeedAll, NeedLast
from anchorstore.transport.segment import RECORD_BYTES
from tests.unit.core.small import ANCHOR, KV, SEGMENT_BYTES, SLOT_BYTES, STATE, Small

SEALED, KNOWN, DECLINED = 1, 2, 3


def test_evict_least_recently_used_leaf_goes_first() -> None:
    engine = Small(segments=1).session()
    a, b, c = (engine.path(1, name) for name in "abc")
    for path in (a, b, c, engine.path(1, "d")):
        engine.put(path)
    engine.stored(a)
    engine.put(engine.path(1, "e"))
    assert [engine.present(path) for path in (a, b, c)] == [[True], [False], [True]]


def test_evict_path_shrinks_from_its_end() -> None:
    engine = Small(segments=1).session()
    long = engine.path(4)
    engine.put(long)
    for kept in (3, 2, 1, 0):
        engine.put(engine.path(1, f"other {kept}"))
        assert engine.present(long) == [True] * kept + [False] * (4 - kept)
    assert engine.store.check() == []


def test_evict_inner_page_outlives_newer_leaves() -> None:
    engine = Small(segments=1).session()
    trunk, left, right = engine.path(1), engine.path(2, "l", 1), engine.path(2, "r", 1)
    engine.put(left)
    engine.put(right, first=1)
    engine.put(engine.path(1, "x"))
    engine.stored(right)
    engine.put(engine.path(1, "y"))
    assert engine.present(trunk) == [True] and engine.present(left) == [True, False]


def test_evict_leased_page_is_passed_over() -> None:
    engine = Small(segments=1).session()
    paths = [engine.path(1, name) for name in "abcd"]
    for path in paths:
        engine.put(path)
    reading = engine.lookup(paths[0])
    engine.put(engine.path(1, "e"))
    assert [engine.present(path)[0] for path in paths] == [True, False, True, True]
    engine.release(reading)
    assert engine.store.check() == []


def test_evict_everything_leased_declines_the_writer() -> None:
    engine = Small(segments=1).session()
    path = engine.path(4)
    engine.put(path)
    engine.lookup(path)
    assert engine.put(engine.path(1, "b")) == [DECLINED]
    assert engine.present(path) == [True] * 4


def test_evict_lease_that_expires_frees_its_pages() -> None:
    small = Small(segments=1)
    engine = small.session()
    engine.put(engine.path(4))
    engine.lookup(engine.path(4))
    small.now = 10.0
    small.store.expire(small.now)
    assert engine.put(engine.path(1, "b")) == [SEALED]
    assert small.store.check() == []


def test_evict_never_bites_the_writers_own_path() -> None:
    engine = Small(segments=1).session()
    path = engine.path(7)
    assert engine.put(path) == [SEALED] * 4 + [DECLINED] * 3
    assert engine.put(path, first=4) == [DECLINED] * 3
    assert engine.present(path) == [True] * 4 + [False] * 3


def test_evict_page_loses_all_its_blocks_at_once() -> None:
    engine = Small(segments=2, component_share={Component.KV: 0.5, Component.ANCHOR: 0.5}).session()
    old = engine.path(1, "old")
    engine.put(old, layouts=[0, 1])
    for name in "abcd":
        engine.put(engine.path(1, name))
    assert engine.present(old) == [False]
    assert engine.store.check() == []


def test_evict_states_of_inner_pages_are_thinned_oldest_first() -> None:
    small = Small(segments=2, component_share={Component.KV: 0.5, Component.STATE: 0.5})
    engine = small.session(layouts=[KV, STATE])
    path = engine.path(4)
    engine.put(path)
    engine.put(path[:32], layouts=[1])
    engine.put(path[:64], first=1, layouts=[1])
    assert engine.put(path[:96], first=2, layouts=[1]) == [SEALED]
    assert engine.present(path) == [True] * 4, "kv has no hole"
    assert engine.stored(path[:32], [NeedLast(1)]) == 0
    assert engine.stored(path, [NeedLast(1)]) == 3
    assert small.store.check() == []


def test_quota_evicts_own_oldest_leaves_and_nobody_elses() -> None:
    small = Small(segments=4, quotas={("acme", "bounded"): 3 * SLOT_BYTES})
    bounded, free = small.session(model="bounded"), small.session(model="free")
    old = free.path(1)
    free.put(old)
    for name in "abc":
        bounded.put(bounded.path(1, name))
    assert bounded.put(bounded.path(1, "d")) == [SEALED]
    assert free.present(old) == [True]
    assert [bounded.present(bounded.path(1, n))[0] for n in "abcd"] == [False, True, True, True]
    status = {s.model: s for s in small.store.status(0.0).namespaces}
    assert status["bounded"].bytes == 3 * SLOT_BYTES


def test_quota_page_that_became_a_leaf_elsewhere_is_not_its_victim() -> None:
    """The eviction queue of a quota is told of every new leaf, of any namespace."""
    small = Small(segments=4, quotas={("acme", "bounded"): 2 * SLOT_BYTES})
    free, bounded = small.session(model="free"), small.session(model="bounded")
    path = free.path(2)
    free.put(path)
    bounded.put(bounded.path(2))
    assert bounded.put(bounded.path(2, "b")) == [SEALED] * 2  # its queue has scanned
    small.store.remove(free.root, path[32:])  # makes page 0 a leaf, older than the scan's horizon
    bounded.put(bounded.path(2, "c"))
    assert free.present(path) == [True, False]


def test_quota_too_small_takes_the_leading_pages() -> None:
    small = Small(default_quota_bytes=3 * SLOT_BYTES)
    engine = small.session()
    result = engine.reserve(engine.path(5))
    assert (list(result.verdicts), result.reason) == ([1, 1, 1, 3, 3], "quota")


def test_watermark_drains_to_the_low_mark_in_bounded_steps() -> None:
    small = Small(segments=2, high_watermark=0.8, low_watermark=0.5)
    engine = small.session()
    for number in range(6):
        engine.put(engine.path(1, str(number)))
    assert small.store.evict_step(0.0, 10) == 0, "6 of 8 slots lie below the high watermark"
    engine.put(engine.path(1, "6"))
    assert small.store.evict_step(0.0, 2) == 2
    assert small.store.evict_step(0.0, 2) == 1
    assert small.store.evict_step(0.0, 2) == 0
    held = [engine.present(engine.path(1, str(number)))[0] for number in range(7)]
    assert held == [False] * 3 + [True] * 4
    assert small.store.check() == []


def test_segment_of_same_domain_is_reformatted_in_place_above_its_generations() -> None:
    small = Small(segments=1)
    kv = small.session(layouts=[KV])
    kv.put(kv.path(4))
    wide = small.session(layouts=[StateLayout(8192, "x")], model="wide")
    work = wide.begin(wide.reserve(wide.path(1)).reservation_id, [(0, 0)])
    [form] = work.formats
    assert (form.index, form.segment_id, form.slot_bytes, form.slots) == (0, 2, 8192, 2)
    assert form.first_generation == 2 and not form.fresh_memory
    assert work.copies.generation.tolist() == [3]
    assert wide.finish(work) == [SEALED]
    assert kv.present(kv.path(4)) == [False] * 4 and small.store.check() == []


def test_segment_of_other_domain_passes_only_without_holders_and_with_fresh_memory() -> None:
    small = Small(segments=1)
    acme, globex = small.session("acme"), small.session("globex")
    acme.put(acme.path(4))
    small.store.map_segments(acme.session_id, [1], 0.0)
    assert globex.put(globex.path(1)) == [DECLINED]
    assert acme.present(acme.path(4)) == [True] * 4
    small.store.end_session(acme.session_id, 0.0)
    work = globex.begin(globex.reserve(globex.path(1)).reservation_id, [(0, 0)])
    [form] = work.formats
    assert form.fresh_memory and form.first_generation == 0 and form.segment_id == 2
    assert globex.finish(work) == [SEALED] and small.store.check() == []


def test_segment_of_an_idle_class_flows_to_the_one_that_is_pressed() -> None:
    """Two segments of old wide blocks, one of narrow ones in use: memory follows the use."""
    small = Small(segments=3)
    idle = small.session(layouts=[StateLayout(8192, "x")], model="idle")
    idle.put(idle.path(4))
    busy = small.session(layouts=[StateLayout(4096, "y")], model="busy")
    for number in range(8):
        busy.put(busy.path(1, str(number)))
    assert idle.present(idle.path(4)) == [False, False, True, True], "one segment came over"
    assert all(busy.present(busy.path(1, str(n)))[0] for n in range(8)), "nothing hot was lost"
    for number in range(8, 20):
        busy.put(busy.path(1, str(number)))
    assert idle.present(idle.path(4)) == [False] * 4
    assert [busy.present(busy.path(1, str(n)))[0] for n in range(20)] == [False] * 8 + [True] * 12
    assert small.store.check() == []


def test_segment_of_a_class_in_use_stays() -> None:
    small = Small(segments=3)
    used = small.session(layouts=[StateLayout(8192, "x")], model="used")
    used.put(used.path(4))
    busy = small.session(layouts=[StateLayout(4096, "y")], model="busy")
    for number in range(12):
        busy.put(busy.path(1, str(number)))
        used.stored(used.path(4))
    assert used.present(used.path(4)) == [True] * 4


def test_segment_being_written_never_changes_hands() -> None:
    small = Small(segments=1)
    acme, globex = small.session("acme"), small.session("globex")
    work = acme.begin(acme.reserve(acme.path(1)).reservation_id, [(0, 0)])
    assert globex.put(globex.path(1)) == [DECLINED]
    assert acme.finish(work) == [SEALED]


def test_component_share_bounds_its_segments() -> None:
    small = Small(segments=4, component_share={Component.KV: 0.5, Component.ANCHOR: 0.25})
    engine = small.session(layouts=[KV, ANCHOR])
    for number in range(12):
        engine.put(engine.path(1, str(number)), layouts=[0, 1])
    segments = {c.component: c.segments for c in small.store.status(0.0).components}
    assert segments == {Component.ANCHOR: 1, Component.KV: 2, Component.STATE: 0}


def test_evict_many_leaves_in_exact_order() -> None:
    """More leaves than one scan takes: victims equal a sort by last use, across several scans."""
    source = random.Random(7)
    slots = 2 * SCAN_LEAVES_MIN + 100
    small = Small(segments=1, segment_bytes=SEGMENT_BYTES + slots * (SLOT_BYTES + RECORD_BYTES))
    engine = small.session(layouts=[KV])
    paths = [engine.path(1, str(number)) for number in range(slots)]
    for path in paths:
        engine.put(path)
    order = list(range(slots))
    for number in source.sample(range(slots), slots // 2):
        engine.stored(paths[number], [NeedAll(0, 0)])
        order.remove(number)
        order.append(number)
    for step in range(220):
        batch = 1 + source.randrange(10)
        engine.put(engine.path(batch, f"new {step}"))
    evicted = small.store.counters["pages_evicted"]
    assert evicted > SCAN_LEAVES_MIN
    held = {page.path_hash for page in small.store.list_pages(engine.root, 0, 10_000).pages}
    assert [paths[number] in held for number in order] == (
        [False] * min(evicted, slots) + [True] * (slots - evicted)
    )
    assert small.store.check() == []
