"""The store evicts in the order of the policy that it was given, in each tier by its own.

Goal: a policy's columns are kept up to date by lookups, reserves and seals, and only where one
reads them.  Method: a pool of four slots; the policies themselves are tested in test_policies.py.
"""

from __future__ import annotations

import pytest

from anchorstore.server.core.admission import Admission, SecondSight, Size
from anchorstore.server.core.policies import Fifo, FlopAware, Lfu, Lru, Policy, Priority, Slru, Ttl
from tests.unit.core.small import KV, Engine, Small
from tests.unit.core.tiered import Tiered, fetch, tiers_of

SEALED = 1


def kept(engine: Engine, names: str) -> str:
    """Which of the one-page paths are there."""
    return "".join(name for name in names if engine.present(engine.path(1, name))[0])


def put(engine: Engine, names: str) -> None:
    """One-page paths, one after another."""
    for name in names:
        assert engine.put(engine.path(1, name)) == [SEALED]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Lru(), "aef"),
        (Fifo(), "def"),
        (Lfu(), "abf"),
        (Slru(), "abf"),
        (None, "aef"),
    ],
)
def test_policy_decides_who_stays(policy: Policy | None, expected: str) -> None:
    engine = Small(segments=1, policy=policy).session()
    put(engine, "abcd")
    for name in "bba":
        engine.stored(engine.path(1, name))
    put(engine, "ef")
    found = kept(engine, "abcdef")
    assert set(expected) <= set(found), found
    assert engine.store.check() == []


def test_priority_of_an_offer_outlives_recency() -> None:
    small = Small(segments=1, policy=Priority())
    engine = small.session()
    path = engine.path(1, "dear")
    reserved = small.store.reserve(engine.session_id, engine.root, 0, path, [0], 0, 0.0, priority=5)
    engine.finish(engine.begin(reserved.reservation_id, [(0, 0)]))
    put(engine, "abcdefg")
    assert engine.present(path) == [True] and kept(engine, "abcdefg") == "efg"
    small.store.reserve(engine.session_id, engine.root, 0, engine.path(1, "e"), [0], 0, 0.0, 9)
    put(engine, "hij")
    assert kept(engine, "efghij") == "eij", "an offer of what is known raises it too"


def test_ttl_lets_go_of_what_is_old_first() -> None:
    small = Small(segments=1, policy=Ttl(10.0))
    engine = small.session()
    put(engine, "ab")
    small.now = 8.0
    put(engine, "cd")
    small.now = 12.0
    engine.stored(engine.path(1, "a"))
    put(engine, "ef")
    assert kept(engine, "abcdef") == "cdef", "a and b are over time, used or not"


def test_flop_aware_holds_dear_pages_longer() -> None:
    small = Small(segments=1, policy=FlopAware(alpha=100.0, balance_pages=1.0))
    engine = small.session()
    deep = engine.path(2, "deep")
    engine.put(deep)
    put(engine, "ab")
    put(engine, "cd")
    assert engine.present(deep) == [True, True] and kept(engine, "abcd") == "cd"


def test_columns_exist_only_where_a_policy_reads_them() -> None:
    plain, often = Small().store._state.index, Small(policy=Lfu()).store._state.index
    assert not hasattr(plain, "uses") and hasattr(often, "uses")
    assert not hasattr(often, "created")
    assert not hasattr(plain, "cold_children") and hasattr(
        Tiered().store._state.index, "cold_children"
    )


def test_each_tier_has_its_own_policy() -> None:
    small = Tiered(segments=2, policy=Lru(), nvme={"segments": 1, "policy": Fifo()})
    engine = small.session()
    put(engine, "abcd")
    assert small.write_all() == 4
    engine.stored(engine.path(1, "a"))
    put(engine, "e")
    assert small.write_all() == 1
    assert tiers_of(engine, engine.path(1, "a")) == ["d"], "first come, first gone, in nvme"
    assert tiers_of(engine, engine.path(1, "e")) == ["dn"]
    assert small.store.check() == []


def test_second_sight_writes_what_was_used_again() -> None:
    small = Tiered(segments=2, nvme={"admission": SecondSight()})
    engine = small.session()
    once, twice = engine.path(2, "once"), engine.path(2, "twice")
    engine.put(once)
    engine.put(twice)
    assert small.write_all() == 0
    engine.stored(twice)
    assert small.write_all() == 2
    assert tiers_of(engine, twice) == ["dn", "dn"] and tiers_of(engine, once) == ["d", "d"]


@pytest.mark.parametrize(("rule", "written"), [(Size(8192), 0), (Size(4096, 4096), 1)])
def test_size_admits_pages_by_the_bytes_of_their_slots(rule: Admission, written: int) -> None:
    small = Tiered(segments=2, nvme={"admission": rule})
    engine = small.session()
    engine.put(engine.path(1))
    assert small.write_all() == written


def test_watermark_does_not_wait_for_what_nvme_does_not_admit() -> None:
    small = Tiered(
        segments=1, high_watermark=0.5, low_watermark=0.25, nvme={"admission": Size(8192)}
    )
    engine = small.session()
    engine.put(engine.path(4))
    assert small.store.evict_step(0.0, 8) == 3
    assert small.store.counters["pages_evicted"] == 3 and small.store.check() == []


def test_pages_do_not_displace_one_another_in_nvme_without_end() -> None:
    """Flop-aware measures anew what is there; nothing is used, so nothing more is to be written."""
    small = Tiered(segments=1, nvme={"segments": 2, "policy": FlopAware()})
    engine = small.session(layouts=[KV])
    for number in range(60):
        path = engine.path(2, str(number % 7))
        engine.release(fetch(engine, path))
        engine.put(path)
        rounds = 0
        while small.write():
            rounds += 1
            assert rounds < 20, "the same pages are written again and again"
    assert small.store.check() == []
