"""Goal: the tables name every block that is there as long as their buckets have room, none that
is gone, and move whole into a larger one.  Method: a tier of real memory, random seals and losses
against a dict.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.server.core.types import Copies, FormatSegment, Gone
from anchorstore.server.hints import BUCKETS_MIN, HintTables
from anchorstore.tiers.dram import DramTier
from anchorstore.transport import hints as table_format
from anchorstore.transport.hints import HintView
from anchorstore.transport.segment import SegmentShape

BOOT = bytes(range(16))
SEGMENT_BYTES = 4 * 2**20
SLOTS = SegmentShape(SEGMENT_BYTES, 4096).slots
KEY = 0xD418A433F64EB4C3
Keys = dict[tuple[int, int], bytes]  # (segment id, slot) -> path hash


@pytest.fixture
def tier() -> Iterator[DramTier]:
    made = DramTier(2, SEGMENT_BYTES, BOOT, "never", print)
    for index in range(2):
        made.format(FormatSegment(index, index + 1, 4096, SLOTS, 0, fresh_memory=False))
    yield made
    made.close()


def view_of(tables: HintTables, domain: str = "acme") -> HintView:
    memory = tables.memory_of(domain)
    assert memory is not None
    return HintView(memoryview(memory.memory), BOOT)


def seal(tier: DramTier, tables: HintTables, new: Keys, domain: str = "acme") -> None:
    """Records of `new` blocks, and their hints."""
    places, count = list(new), len(new)
    hashes = np.frombuffer(b"".join(new.values()), np.uint64).reshape(count, 4)
    for (segment_id, slot), words in zip(places, hashes, strict=True):
        record = tier.records(tier.index_of(segment_id))[slot : slot + 1]
        record["path_hash"], record["layout_key"], record["generation"] = words, KEY, 2
    columns = np.array(places, np.uint32).T
    zeros = np.zeros(count, np.uint64)
    copies = Copies(
        columns[0], columns[0], columns[0], columns[1], zeros, zeros, columns[0], hashes,
        np.full(count, KEY, np.uint64), 0,
    )  # fmt: skip
    tables.insert(domain, copies, np.arange(count))


def fresh_keys(source: random.Random, places: list[tuple[int, int]]) -> Keys:
    return {place: source.randbytes(32) for place in places}


def found(view: HintView, keys: Keys) -> int:
    """How many of the keys a reader finds."""
    return sum(place in view.find(path_hash, KEY) for place, path_hash in keys.items())


@pytest.mark.parametrize("seed", range(5))
def test_hints_after_seals_and_losses_are_those_of_the_blocks_there(
    tier: DramTier, seed: int
) -> None:
    source, tables = random.Random(seed), HintTables(tier, BOOT)
    tables.expect("acme", 8 * SLOTS)
    free = [(segment, slot) for segment in (1, 2) for slot in range(SLOTS)]
    there: Keys = {}
    for _ in range(60):
        source.shuffle(free)
        new = fresh_keys(source, free[: source.randrange(1, 60)])
        free = free[len(new) :]
        seal(tier, tables, new)
        there |= new
        lost = source.sample(sorted(there), source.randrange(len(there) // 2))
        for segment_id in (1, 2):
            slots = [slot for segment, slot in lost if segment == segment_id]
            tables.forget([Gone("acme", segment_id, np.array(slots, np.uint32))])
        gone = {place: there.pop(place) for place in lost}
        free += lost
        view = view_of(tables)
        assert tables.lost == 0
        assert found(view, there) == len(there)
        assert found(view, gone) == 0
    memory = tables.memory_of("acme")
    assert memory is not None
    entries = np.frombuffer(memory.memory[64:], np.uint64)
    assert np.count_nonzero(entries) == len(there)


def test_hints_move_whole_into_a_larger_table_and_end_the_old_one(tier: DramTier) -> None:
    source, tables = random.Random(1), HintTables(tier, BOOT)
    tables.expect("acme", 1)
    keys = fresh_keys(source, [(1, slot) for slot in range(200)])
    seal(tier, tables, keys)
    old = view_of(tables)
    assert found(old, keys) == 200 and old.epoch
    tables.expect("acme", 10 * SLOTS)
    assert old.epoch == 0
    larger = view_of(tables)
    assert larger.epoch and found(larger, keys) == 200
    size = tables.nbytes
    tables.expect("acme", 5)  # never shrinks
    tables.expect("acme", 10 * SLOTS + 100)  # and at least doubles
    assert tables.nbytes >= 2 * size - 64
    tables.close()
    assert larger.epoch == 0


def test_hints_of_a_full_pool_are_all_found(tier: DramTier) -> None:
    source, tables = random.Random(4), HintTables(tier, BOOT)
    tables.expect("acme", 2 * SLOTS)  # exactly as many as there can be
    places = [(segment, slot) for segment in (1, 2) for slot in range(SLOTS)]
    keys = fresh_keys(source, places)
    seal(tier, tables, keys)
    for _ in range(10):  # and stay so while blocks come and go
        slots = np.array(source.sample(range(SLOTS), SLOTS // 2), np.uint32)
        tables.forget([Gone("acme", 1, slots)])
        again = fresh_keys(source, [(1, int(slot)) for slot in slots])
        seal(tier, tables, again)
        keys |= again
    assert found(view_of(tables), keys) == len(keys) - tables.lost
    assert tables.lost <= len(keys) // 200


def test_hints_beyond_a_full_bucket_make_way_and_are_counted(tier: DramTier) -> None:
    source, tables = random.Random(2), HintTables(tier, BOOT)
    tables.expect("acme", 1)
    room = BUCKETS_MIN * table_format.WAYS
    keys = fresh_keys(source, [(segment, slot) for segment in (1, 2) for slot in range(SLOTS)])
    assert len(keys) > room
    seal(tier, tables, keys)
    assert tables.lost >= len(keys) - room
    assert found(view_of(tables), keys) == len(keys) - tables.lost


def test_hints_of_two_domains_never_meet(tier: DramTier) -> None:
    source, tables = random.Random(3), HintTables(tier, BOOT)
    for domain in ("acme", "globex"):
        tables.expect(domain, 1000)
    keys = fresh_keys(source, [(1, slot) for slot in range(50)])
    seal(tier, tables, keys)
    assert found(view_of(tables, "globex"), keys) == 0
    memory = tables.memory_of("globex")
    assert memory is not None and not memory.memory[64:].any()
    tables.turn_epoch("globex")
    assert (view_of(tables).epoch, view_of(tables, "globex").epoch) == (1, 2)


def test_segment_ids_beyond_an_entry_get_no_hint(tier: DramTier) -> None:
    tables = HintTables(tier, BOOT)
    tables.expect("acme", 100)
    far = table_format.SEGMENT_ID_LIMIT
    tier.format(FormatSegment(0, far, 4096, SLOTS, 0, fresh_memory=False))
    seal(tier, tables, {(far, 3): b"h" * 32})
    assert tables.lost == 1 and view_of(tables).find(b"h" * 32, KEY) == []


def test_tables_of_a_daemon_without_direct_reads_are_never_made(tier: DramTier) -> None:
    tables = HintTables(tier, BOOT, blocks_max=0)
    tables.expect("acme", 1000)
    assert tables.memory_of("acme") is None and tables.nbytes == 0
    seal(tier, tables, {(1, 0): b"h" * 32})
    tables.forget([Gone("acme", 1, np.array([0], np.uint32))])
    tables.turn_epoch("acme")
