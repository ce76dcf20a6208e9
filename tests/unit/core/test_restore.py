"""A warm restart: what the journal names is found again, and what makes no sense is not.

Goal: every block that reached nvme is served after a restart; entries that contradict each other,
or the tier as it is now, are dropped, counted and harmless.  Method: a store whose disk outlives
it; then journals that no store would have written.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from anchorstore.keys import Namespace
from anchorstore.layout import KvLayout
from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.store import Store
from anchorstore.server.core.work import KnownNamespace, Restored
from tests.unit.core.small import ANCHOR, CONFIG, KV, Small
from tests.unit.core.tiered import (
    COLD_SLOT_BYTES,
    ENTRY,
    SHAPE,
    Disk,
    Entry,
    Tiered,
    fetch,
    tiers_of,
)

SEALED, KNOWN = 1, 2
SPACE = Namespace("acme", "model", b"w" * 32)
ROOT = SPACE.root_digest()
FIRST_UNIT = SHAPE.segment_units
KV_UNITS = 2


def entries(count: int, **changes: Any) -> Entry:
    """A path of `count` pages with kv, slot by slot from segment 1 on."""
    made, parent = np.zeros(count, ENTRY), ROOT
    for page in range(count):
        digest = hashlib.sha256(parent + bytes([page])).digest()
        made[page]["path_hash"] = np.frombuffer(digest, np.uint64)
        made[page]["parent_hash"] = np.frombuffer(parent, np.uint64)
        parent = digest
    made["unit"] = FIRST_UNIT + KV_UNITS * np.arange(count)
    made["page"] = np.arange(count)
    made["generation"] = 2
    made["checksum"] = np.arange(count)
    for name, values in changes.items():
        made[name] = values
    return made


def restored(told: Entry, **changes: Any) -> tuple[Store, Restored]:
    """A new store that was told these entries; nothing is broken."""
    config = dataclasses.replace(CONFIG, nvme=dataclasses.replace(SHAPE, **changes))
    store = Store(config, b"b" * 16)
    found = store.restore([KnownNamespace(SPACE, 16)], [KV, ANCHOR], told, 0.0)
    assert store.check() == []
    assert found.blocks + sum(found.dropped.values()) == len(told)
    assert len(found.lost_units) == sum(found.dropped.values())
    return store, found


def test_restart_finds_every_written_block_and_serves_it() -> None:
    small = Tiered(segments=4)
    engine = small.session()
    left, right = engine.path(5, "l", 2), engine.path(4, "r", 2)
    engine.put(left, layouts=[0, 1], lineage=2)
    engine.put(right, first=2)
    assert small.write_all() == 12
    again, found = small.restart()
    assert (found.pages, found.blocks, found.dropped) == (7, 12, {})
    assert again.store.check() == []
    engine = again.session()
    assert tiers_of(engine, left) == ["n"] * 5 and tiers_of(engine, right) == ["n"] * 4
    assert fetch(engine, left).boundary_pages == 5
    assert engine.lookup(right, max_lineage=1).boundary_pages == 0, "lineage has come along"
    assert engine.put(right, lineage=2) == [KNOWN] * 4 and again.store.check() == []


def test_restart_keeps_what_was_written_and_no_more() -> None:
    small = Tiered(segments=4)
    engine = small.session()
    engine.put(engine.path(3))
    small.write_all()
    engine.put(engine.path(2, "late"))
    again, _ = small.restart()
    engine = again.session()
    assert tiers_of(engine, engine.path(3)) == ["n"] * 3
    assert engine.put(engine.path(2, "late")) == [SEALED] * 2
    assert again.write_all() == 2 and again.store.check() == []


def test_restart_goes_on_above_the_generations_that_slots_have_shown() -> None:
    store, _ = restored(entries(2, generation=[8, 20]))
    small = Small()
    small.store = store
    engine = small.session()
    engine.put(engine.path(1, "new"))
    [work] = store.begin_demote(8, 0.0)
    assert work.unit.tolist() == [FIRST_UNIT + 2 * KV_UNITS] and work.generation.tolist() == [22]


def test_restart_leaves_off_what_was_off_with_blocks_and_without() -> None:
    empty = Namespace("acme", "empty", b"w" * 32)
    small = Small(nvme=SHAPE)
    store = small.store
    known = [KnownNamespace(SPACE, 16, False), KnownNamespace(empty, 3, False)]
    store.restore(known, [KV, ANCHOR], entries(2), 0.0)
    assert store.check() == []
    assert {space.model: space.enabled for space in store.status(0.0).namespaces} == {
        SPACE.model: False, "empty": False,
    }  # fmt: skip
    known = [store.set_enabled(space.root_digest(), True) for space in (SPACE, empty)]
    assert known == [KnownNamespace(SPACE, 16, True), KnownNamespace(empty, 3, True)]
    assert [space.model for space in store.status(0.0).namespaces] == [SPACE.model]


def test_restart_evicts_leaves_first() -> None:
    small = Tiered(segments=4, nvme={"segments": 1})
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    assert small.write_all() == 4
    again, _ = small.restart()
    engine = again.session()
    engine.put(engine.path(1, "new"))
    again.write_all()
    assert tiers_of(engine, path) == ["n", "n", "n", ""]
    assert again.store.check() == []


def test_restart_block_whose_slot_shows_another_is_dropped_when_asked_for() -> None:
    small = Tiered(segments=4)
    engine = small.session()
    path = engine.path(3)
    engine.put(path)
    small.write_all()
    small.disk.slots[int(sorted(small.disk.slots)[1])] = (b"x" * 32, 2, 0)
    again, _ = small.restart()
    assert fetch(again.session(), path).boundary_pages == 1
    assert again.store.counters["blocks_corrupt"] == 1 and again.store.check() == []


def test_restart_two_devices_that_name_one_namespace_twice_are_one() -> None:
    told = entries(4)
    told["namespace"][2:] = 1
    config = dataclasses.replace(CONFIG, nvme=SHAPE)
    store = Store(config, b"b" * 16)
    found = store.restore([KnownNamespace(SPACE, 16)] * 2, [KV, KV], told, 0.0)
    assert found.pages == 4 and store.check() == []
    assert len(store.status(0.0).namespaces) == 1


@pytest.mark.parametrize(
    ("reason", "column", "values"),
    [
        ("unknown", "namespace", [0, 7, 0]),
        ("unknown", "kind", [0, 9, 0]),
        ("outside", "unit", [FIRST_UNIT, 0, FIRST_UNIT + 2]),
        ("outside", "unit", [FIRST_UNIT, FIRST_UNIT * 9, FIRST_UNIT + 2]),
        ("outside", "unit", [FIRST_UNIT, FIRST_UNIT + 3, FIRST_UNIT + 4]),
        ("outside", "unit", [FIRST_UNIT, 2**32 - 1, FIRST_UNIT + 4]),
        ("outside", "generation", [2, 3, 2]),
        ("outside", "generation", [2, 0, 2]),
        ("doubled", "unit", [FIRST_UNIT, FIRST_UNIT, FIRST_UNIT + 2]),
        ("outdated", "kind", [1, 0, 0]),
    ],
)
def test_restart_entry_that_makes_no_sense_is_dropped_alone(
    reason: str, column: str, values: list[int]
) -> None:
    _, found = restored(entries(3, **{column: values}))
    assert (found.blocks, dict(found.dropped)) == (2, {reason: 1})


def test_restart_page_that_is_said_to_lie_elsewhere_is_dropped() -> None:
    told = entries(3)
    told["path_hash"][2] = told["path_hash"][1]
    _, found = restored(told)
    assert (found.pages, dict(found.dropped)) == (2, {"contradicting": 1})


def test_restart_block_named_twice_keeps_the_later_place() -> None:
    told = np.concatenate([entries(2), entries(2, unit=FIRST_UNIT + np.array([4, 6]))])
    store, found = restored(told)
    assert (found.pages, found.blocks, dict(found.dropped)) == (2, 2, {"doubled": 2})
    assert sorted(found.lost_units.tolist()) == [FIRST_UNIT, FIRST_UNIT + 2]
    assert store.status(0.0).tiers[1].used_bytes == 2 * 8192


def test_restart_parents_that_close_a_circle_are_not_believed() -> None:
    told = entries(3)
    told["parent_hash"] = told["path_hash"][[1, 2, 0]]
    store, found = restored(told)
    assert found.pages == 3 and store.check() == []


def test_restart_more_blocks_a_page_than_a_chain_may_have_are_dropped() -> None:
    heads = CHAIN_LIMIT + 2
    layouts = [KvLayout(1, heads, 16, "bfloat16", head, head + 1) for head in range(heads)]
    told = np.concatenate([entries(1)] * len(layouts))
    told["kind"] = np.arange(len(layouts))
    told["unit"] = FIRST_UNIT + KV_UNITS * np.arange(len(layouts))
    shape = dataclasses.replace(SHAPE, segments=100)
    store = Store(dataclasses.replace(CONFIG, nvme=shape), b"b" * 16)
    found = store.restore([KnownNamespace(SPACE, 16)], layouts, told, 0.0)
    assert found.blocks == CHAIN_LIMIT and store.check() == []


def test_restart_random_journals_break_nothing() -> None:
    source = np.random.default_rng(5)
    for _ in range(30):
        told = np.frombuffer(source.bytes(200 * ENTRY.itemsize), ENTRY).copy()
        pool = np.frombuffer(source.bytes(32 * 12), np.uint64).reshape(12, 4)
        told["path_hash"] = pool[source.integers(0, 12, 200)]
        told["parent_hash"] = pool[source.integers(0, 12, 200)]
        told["unit"] = source.integers(0, 10 * FIRST_UNIT, 200)
        told["page"] = source.integers(0, 4, 200)
        told["generation"] = 2 * source.integers(0, 4, 200)
        told["namespace"], told["kind"] = source.integers(0, 2, 200), source.integers(0, 3, 200)
        store, found = restored(told)
        assert found.blocks > 0
        store.remove(ROOT, None)
        assert store.check() == [] and store.status(0.0).pages == 0


def test_restart_into_a_store_in_use_is_a_bug() -> None:
    small = Tiered()
    engine = small.session()
    engine.put(engine.path(1))
    with pytest.raises(AssertionError, match="a restart of a store in use"):
        small.store.restore([KnownNamespace(SPACE, 16)], [KV], entries(1), 0.0)


def test_restart_with_a_smaller_quota_comes_down_to_it_with_the_next_write() -> None:
    quota = 4 * COLD_SLOT_BYTES
    small = Tiered(segments=8, nvme={"quotas": {("acme", "model"): quota}})
    disk = Disk()
    before = Tiered(disk, segments=8)
    before.session(layouts=[KV]).put(before.session(layouts=[KV]).path(6))
    assert before.write_all() == 6
    small.disk = disk
    small.store.restore(disk.namespaces, disk.layouts, disk.entries(), 0.0)
    [space] = small.store.status(0.0).namespaces
    assert (space.cold_bytes, space.cold_quota_bytes) == (6 * COLD_SLOT_BYTES, quota)
    engine = small.session(layouts=[KV])
    engine.put(engine.path(1, "new"))
    assert small.write_all() == 1
    [space] = small.store.status(0.0).namespaces
    assert space.cold_bytes <= quota and small.store.check() == []


def test_restart_takes_the_order_of_entries_for_the_order_of_use_whosever_they_are() -> None:
    """Two namespaces take turns: what was used last stays, page by page."""
    small = Tiered(segments=8, nvme={"segments": 4})
    one, two = small.session(layouts=[KV]), small.session("globex", layouts=[KV])
    paths = [engine.path(1, f"{number}") for number in range(4) for engine in (one, two)]
    for number, path in enumerate(paths):
        (one, two)[number % 2].put(path)
        small.write_all()
    for number in (5, 0, 7):  # of the second, the first, the second
        assert (one, two)[number % 2].stored(paths[number]) == 1
    units = [int(unit) for unit in small.store.take_cold_used(100)]
    assert len(units) == 8 and len(small.store.take_cold_used(100)) == 0
    told = np.concatenate([small.disk.journal[unit] for unit in units])
    store = Store(small.store.config, b"c" * 16)
    store.restore(small.disk.namespaces, small.disk.layouts, told, 0.0)
    index = store._state.index
    by_use = np.argsort(index.stamp[1 : index.rows.top]) + 1
    order = [index.hashes[row].tobytes() for row in by_use]
    assert order == [paths[number] for number in (1, 2, 3, 4, 6, 5, 0, 7)]
    assert len(store.take_cold_used(100)) == 0, "the journal knows that already"


def test_what_was_used_is_told_in_bounded_steps_and_in_order() -> None:
    small = Tiered(segments=8, nvme={"segments": 8})
    engine = small.session(layouts=[KV])
    path = engine.path(20)
    engine.put(path)
    small.write_all()
    engine.stored(path)
    state = small.store._state
    steps = []
    while len(units := small.store.take_cold_used(6)):
        assert len(units) <= 6
        steps += units.tolist()
    pages = state.index.probe(1, np.frombuffer(path, np.uint64).reshape(-1, 4))
    assert steps == state.blocks.cold[state.index.first_block[pages]].tolist()


def test_index_of_many_pages_in_nvme_takes_at_most_200_bytes_a_page() -> None:
    """Kv and anchor of each, all of the core's tables and slabs counted."""
    count, segment_bytes = 100_000, 1024 * 8192
    kv = np.zeros(count, ENTRY)
    kv["path_hash"] = np.random.default_rng(1).integers(0, 2**63, (count, 4), np.uint64)
    kv["generation"] = 2
    anchor, at, units = kv.copy(), np.arange(count), segment_bytes // 4096
    kv["unit"] = units * (1 + at * KV_UNITS // units) + at * KV_UNITS % units
    anchor["unit"] = int(kv["unit"].max()) // units * units + units + at
    anchor["kind"] = 1
    told = np.concatenate([kv, anchor])
    segments = int(told["unit"].max()) // units
    store, found = restored(told, segments=segments, segment_bytes=segment_bytes)
    assert (found.pages, found.blocks) == (count, 2 * count)
    assert store.status(0.0).index_bytes / count <= 200


def test_ages_of_what_a_restart_found_count_from_the_restart() -> None:
    small = Tiered(segments=8, nvme={"segments": 1})
    small.now = 50_000.0  # the host has been up for so long
    engine = small.session(layouts=[KV])
    engine.put(engine.path(4, "old"))
    assert small.write_all() == 4
    small.now += 10.0
    other, _ = small.restart()
    other.now = small.now + 4.0
    engine = other.session(layouts=[KV])
    engine.put(engine.path(4, "new"))
    other.store.evict_step(other.now, 0)  # so late it is
    assert other.write_all() == 4
    counters = other.store.counters
    assert {name: n for name, n in counters.items() if "nvme_age" in name} == {
        "pages_left_nvme_age_10": 4
    }
