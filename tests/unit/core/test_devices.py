"""A device of the nvme tier that fails takes nothing else with it.

Goal: what it held is forgotten, so that writers bring it again; nothing more is written there; what
dram or another device holds is served on.  Method: two devices of one segment each, in the core's
own numbers.
"""

from __future__ import annotations

from tests.unit.core.small import KV, Engine
from tests.unit.core.test_tiers import fill_dram, promotion_of
from tests.unit.core.tiered import Tiered, fetch, tiers_of

SEALED, KNOWN = 1, 2


def two_devices() -> tuple[Tiered, Engine, bytes, bytes]:
    """Four pages on each, none of them in dram."""
    small = Tiered(segments=1, nvme={"segments": 2})
    engine = small.session(layouts=[KV])
    first, second = engine.path(4, "first"), engine.path(4, "second")
    for path in (first, second):
        engine.put(path)
        small.write_all()
    small.store.pause_demotion(True)
    fill_dram(engine)
    assert tiers_of(engine, first + second) == ["n"] * 8
    return small, engine, first, second


def test_lost_device_is_forgotten_and_the_other_serves_on() -> None:
    small, engine, first, second = two_devices()
    assert small.store.lose_segments([1]) == 4
    assert small.store.check() == []
    assert engine.lookup(first).promotion is None
    found = fetch(engine, second)
    assert found.boundary_pages == 4
    engine.release(found)
    assert engine.put(first) == [SEALED] * 4, "a writer brings it again"
    small.note_gone()
    assert len(small.disk.journal) == 4


def test_lost_device_leaves_in_dram_what_dram_holds() -> None:
    small, engine, first, _ = two_devices()
    small.read(promotion_of(engine, first[:64]))
    assert small.store.lose_segments([1]) == 2
    assert tiers_of(engine, first) == ["d", "d", "", ""] and small.store.check() == []


def test_lost_device_while_it_is_read() -> None:
    small, engine, first, _ = two_devices()
    promotion = promotion_of(engine, first)
    assert small.store.lose_segments([1]) == 4
    assert small.store.check() == []
    assert small.read(promotion) == 0 and small.store.check() == []
    assert engine.stored(first) == 0


def test_lost_device_is_written_no_more() -> None:
    small, engine, first, second = two_devices()
    small.store.lose_segments([1])
    small.store.pause_demotion(False)
    engine.put(engine.path(4, "new"))
    assert small.write_all() == 4, "the other device makes room"
    assert tiers_of(engine, engine.path(4, "new")) == ["dn"] * 4
    assert set(small.disk.journal) <= set(range(16, 24)) and small.store.check() == []
    assert tiers_of(engine, first + second) == [""] * 8


def test_closed_device_is_read_but_not_written_until_it_is_open_again() -> None:
    small, engine, first, _ = two_devices()
    small.store.close_segments([1, 2])
    assert small.store.check() == []
    small.store.pause_demotion(False)
    found = fetch(engine, first)
    assert found.boundary_pages == 4
    engine.release(found)
    small.store.remove(engine.root, first[:32])
    engine.put(engine.path(4, "new"))
    assert small.write_all() == 0 and small.store.check() == []
    small.store.reopen_segments([1, 2])
    engine.put(engine.path(1, "newer"))
    assert small.write_all() > 0 and small.store.check() == []


def test_device_that_takes_nothing_for_a_while_is_no_reason_to_evict() -> None:
    marks = {"high_watermark": 0.5, "low_watermark": 0.25}
    small = Tiered(segments=2, nvme={"segments": 8, **marks})
    engine = small.session(layouts=[KV])
    path = engine.path(4)
    engine.put(path)
    assert small.write_all() == 4, "a part of what nvme may hold"
    small.store.close_segments(range(1, 9))
    while small.store.evict_step(0.0, 8):
        pass
    assert all("n" in place for place in tiers_of(engine, path)) and small.store.check() == []


def test_closed_device_that_was_never_used_stays_so() -> None:
    small = Tiered(segments=1, nvme={"segments": 2})
    engine = small.session()
    small.store.close_segments([1, 2])
    engine.put(engine.path(2))
    assert small.write_all() == 0 and small.store.check() == []
    small.store.reopen_segments([2])
    engine.put(engine.path(1, "b"))
    assert small.write_all() > 0
    assert min(small.disk.journal) >= 16 and small.store.check() == []
