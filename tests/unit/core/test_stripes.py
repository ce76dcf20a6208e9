"""Blocks are spread over the devices of the nvme tier.

Goal: every device gets what it has room for and no more, neighbours lie on different devices, and a
device without room, closed or full holds up none of the others.  Method: the arithmetic against its
definition for random rooms; then a small store with four devices, whose works say where blocks go.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.layout import Component
from anchorstore.server.core.stripes import Stripes
from anchorstore.server.core.types import U32
from anchorstore.server.core.work import DemoteWork
from tests.unit.core.small import ANCHOR, KV, Engine
from tests.unit.core.tiered import SHARES, Tiered, tiers_of

ROOMS = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(ROOMS, st.integers(0, 100))
def test_parts_fill_the_wanted_within_the_rooms_and_in_proportion(
    rooms: list[int], wanted: int
) -> None:
    stripes = Stripes([4] * len(rooms))
    stripes.limit(rooms)
    parts = dict(stripes.parts(wanted, range(len(rooms))))
    assert sum(parts.values()) == min(wanted, sum(rooms)) == stripes.total(wanted)
    for device, room in enumerate(rooms):
        part = parts.get(device, 0)
        assert part <= room
        if wanted < sum(rooms):
            assert abs(part - wanted * room / sum(rooms)) < len(rooms)


def test_single_blocks_take_turns() -> None:
    stripes = Stripes([4, 4, 4])
    taken = [stripes.parts(1, range(3)) for _ in range(9)]
    assert all(len(parts) == 1 and parts[0][1] == 1 for parts in taken)
    assert collections.Counter(parts[0][0] for parts in taken) == {0: 3, 1: 3, 2: 3}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_dealt_order_keeps_each_devices_slots_in_order_and_spreads_them(ids: list[int]) -> None:
    stripes = Stripes([3, 5, 4])
    order = stripes.dealt(np.array(ids, np.uint32))
    assert sorted(order.tolist()) == list(range(len(ids)))
    devices = [stripes.device_of(ids[at]) for at in order]
    for device in range(3):
        mine = [at for at in order if stripes.device_of(ids[at]) == device]
        assert mine == sorted(mine)
        for stop in range(1, len(ids) + 1):  # any start of the order has its share of the device
            share = len(mine) * stop / len(ids)
            assert abs(devices[:stop].count(device) - share) <= 1.5


def striped(devices: int, segments: int = 8, **nvme: object) -> tuple[Tiered, Engine]:
    """So many devices of equal segments of 4 slots, over a pool of 32 slots."""
    shape = {"segments": devices * segments, "devices": (segments,) * devices, **nvme}
    small = Tiered(segments=8, nvme=shape)
    return small, small.session(layouts=[KV])


def rows_of(small: Tiered, path: bytes) -> U32:
    """Rows of its pages in the index."""
    return small.store._state.index.probe(1, np.frombuffer(path, np.uint64).reshape(-1, 4))


def devices_of(small: Tiered, path: bytes) -> list[int]:
    """The device of each page's block in nvme."""
    state = small.store._state
    assert state.nvme is not None
    rows = state.index.first_block[rows_of(small, path)]
    found = state.nvme.cold_pool.stripes.devices_of(state.nvme.segments_of(rows))
    return [int(device) for device in found]


def test_window_of_a_path_lies_on_all_devices() -> None:
    small, engine = striped(4)
    path = engine.path(16)
    engine.put(path)
    small.write_all()
    where = devices_of(small, path)
    for start in range(13):
        assert set(where[start : start + 4]) == {0, 1, 2, 3}, f"pages from {start} on"
    assert small.store.check() == []


def test_one_work_a_device_and_never_more_than_its_room() -> None:
    small, engine = striped(4)
    engine.put(engine.path(24))
    works = small.store.begin_demote(20, 0.0, [8, 2, 0, 2])
    assert {work.device: len(work) for work in works} == {0: 8, 1: 2, 3: 2}
    assert small.store.begin_demote(20, 0.0, [0, 0, 0, 0]) == []
    assert sum(small.finish_write(work) for work in works) == 12
    assert small.store.check() == []


def test_device_that_never_has_room_starves_nobody() -> None:
    """Both devices are full, and the one without room holds what was used least recently."""
    small, engine = striped(2, segments=2)
    for number, room in enumerate(([8, 0], [0, 8])):
        engine.put(engine.path(8, f"old {number}"))
        for work in small.store.begin_demote(8, 0.0, room):
            small.finish_write(work)
    old = engine.path(8, "old 0")
    assert devices_of(small, old) == [0] * 8
    engine.put(engine.path(4, "new"))
    [work] = small.store.begin_demote(4, 0.0, [0, 4])
    assert work.device == 1 and small.finish_write(work) == 4
    assert devices_of(small, engine.path(4, "new")) == [1] * 4
    assert devices_of(small, old) == [0] * 8, "what lies on the other device stays"
    assert small.store.check() == []


def test_slow_device_gets_what_it_can_carry_and_the_other_goes_on() -> None:
    """Each device may have 8 blocks on their way; one ends a block a step, the other four."""
    small, engine = striped(2, segments=24, queue_blocks=4096)
    flying: list[collections.deque[DemoteWork]] = [collections.deque(), collections.deque()]
    out, written, speeds = [0, 0], [0, 0], [1, 4]
    left = [0.0, 0.0]
    for step in range(60):
        engine.put(engine.path(5, f"step {step}"))
        room = [8 - out[device] for device in range(2)]
        for work in small.store.begin_demote(16, 0.0, room):
            flying[work.device].append(work)
            out[work.device] += len(work)
        for device in range(2):
            left[device] += speeds[device]
            while flying[device] and len(flying[device][0]) <= left[device]:
                work = flying[device].popleft()
                left[device] -= len(work)
                out[device] -= len(work)
                written[device] += small.finish_write(work)
            left[device] = min(left[device], 8.0)
    assert written[0] <= 60 + 8, "no faster than it is"
    assert sum(written) >= 0.8 * 60 * 5, "what is sealed is written at the speed of both"
    assert small.store.check() == []


def test_full_device_leaves_the_rest_to_the_other() -> None:
    small = Tiered(segments=8, nvme={"segments": 9, "devices": (1, 8)})
    engine = small.session(layouts=[KV])
    path = engine.path(28)
    engine.put(path)
    assert small.write_all() == 28
    assert collections.Counter(devices_of(small, path)) == {0: 4, 1: 24}
    assert small.store.check() == []


def test_classes_of_a_small_tier_leave_segments_to_one_another() -> None:
    """Four devices of one segment each: a class does not take one of every device at once."""
    small = Tiered(segments=8, nvme={"segments": 4, "devices": (1,) * 4})
    engine = small.session(layouts=[KV, ANCHOR])
    engine.put(engine.path(4), layouts=(0, 1))
    assert small.write_all() == 8
    pool = small.store._state.nvme.cold_pool  # type: ignore[union-attr]
    assert {component: pool.held_segments(component) for component in Component} == {
        Component.KV: 1, Component.ANCHOR: 1, Component.STATE: 0,
    }  # fmt: skip


def test_closed_device_gets_nothing_and_the_stripe_goes_on_over_the_others() -> None:
    small, engine = striped(3)
    small.store.close_segments(range(9, 17))
    path = engine.path(12)
    engine.put(path)
    small.write_all()
    where = devices_of(small, path)
    assert collections.Counter(where) == {0: 6, 2: 6}
    small.store.reopen_segments(range(9, 17))
    more = engine.path(12, "more")
    engine.put(more)
    small.write_all()
    assert set(devices_of(small, more)) == {0, 1, 2} and small.store.check() == []


def half_closed() -> tuple[Tiered, Engine, list[bytes]]:
    """Two full devices, and then the second takes no more blocks; every second page is there."""
    small, engine = striped(2, segments=2)
    paths = [engine.path(8, "first"), engine.path(8, "second")]
    for path in paths:
        engine.put(path)
        small.write_all()
        assert devices_of(small, path)[-1] == 1, "a leaf where nothing can be written"
    small.store.close_segments([3, 4])
    return small, engine, paths


def test_device_that_takes_no_blocks_does_not_keep_the_other_from_making_room() -> None:
    small, engine, [first, second] = half_closed()
    engine.put(engine.path(3, "new"))
    small.write_all()
    assert devices_of(small, engine.path(3, "new")) == [0] * 3
    assert small.store.check() == []
    left = [tiers_of(engine, path).count("d") for path in (first, second)]
    assert 3 <= left[0] < 8 and left[1] == 0, "what was used last stays"
    assert small.store.counters["pages_left_nvme_for_room"] == left[0]


def test_what_a_closed_device_has_room_for_waits_for_the_other() -> None:
    small, engine, _ = half_closed()
    engine.put(engine.path(3, "new"))
    assert small.store.begin_demote(8, 0.0, [0, 8]) == []
    assert small.store.counters["nvme_blocks_refused"] == 0, "they wait"
    [work] = small.store.begin_demote(8, 0.0, [8, 8])
    assert work.device == 0 and small.finish_write(work) == len(work) >= 3
    assert devices_of(small, engine.path(3, "new")) == [0] * 3 and small.store.check() == []


def test_device_without_room_at_the_moment_hides_nothing() -> None:
    """Its pages may go when it has room again: those before them stay meanwhile."""
    small, engine = striped(2, segments=2)
    paths = [engine.path(8, "first"), engine.path(8, "second")]
    for path in paths:
        engine.put(path)
        small.write_all()
    engine.put(engine.path(3, "new"))
    for work in small.store.begin_demote(3, 0.0, [8, 0]):
        small.finish_write(work)
    for path in paths:
        assert "d" not in tiers_of(engine, path), "all are in nvme"
    assert small.store.check() == []


def test_room_behind_a_leaf_that_is_read_stays_and_another_path_gives_way() -> None:
    small, engine, [first, second] = half_closed()
    small.store.pause_demotion(True)
    for number in range(8):
        engine.put(engine.path(4, f"filler {number}"))
    small.store.pause_demotion(False)
    ticket = engine.lookup(first).promotion
    assert ticket is not None, "it is being read"
    engine.put(engine.path(2, "new"))
    small.write()
    assert tiers_of(engine, first) == ["n"] * 8 and small.store.check() == []
    assert tiers_of(engine, second).count("n") < 8


def test_path_that_ends_in_anchors_alone_gives_way_to_what_is_new() -> None:
    """Every second page has lost its keys and values with a device that is not there any more."""
    small = Tiered(segments=16, nvme={"segments": 12})
    engine = small.session(layouts=[KV, ANCHOR])
    for number in range(3):
        engine.put(engine.path(8, f"old {number}"), layouts=(0, 1))
        small.write_all()
    entries = list(small.disk.journal.items())
    for unit in [unit for unit, entry in entries if entry["kind"][0] == 0 and entry["page"][0] % 2]:
        del small.disk.journal[unit]
    other, restored = small.restart()
    assert (restored.pages, restored.blocks) == (24, 36)
    engine = other.session(layouts=[KV, ANCHOR])
    for number in range(8):
        path = engine.path(4, f"new {number}")
        engine.put(path)
        other.write_all()
        assert other.store.check() == []
        assert tiers_of(engine, path) == ["dn"] * 4, number
        while other.store.evict_step(1.0 + number, 8):
            pass
        assert tiers_of(engine, path)[0] in ("dn", "n"), "the watermark takes what is older, too"


@pytest.mark.parametrize("devices", [(1, 2), (0, 8)])
def test_devices_that_are_not_the_tier_are_a_bug(devices: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Tiered(nvme={"segments": 8, "devices": devices, "component_share": SHARES})
