"""Lookup and leases: what a reader is told, what it holds, when it loses it.

Goal: the answer names the right blocks and nothing else; holes, lineage and margins are told apart;
a lease protects exactly while it lives.  Method: one small store a test.
"""

from __future__ import annotations

import math

import pytest

from anchorstore.errors import CapacityFull, InvalidKey, InvalidRequest, LeaseExpired
from anchorstore.server.core.planning import PAGES_PLANNED_MAX
from anchorstore.server.core.types import Miss, Need, NeedAll, NeedLast, NeedWindow
from anchorstore.transport.segment import PLACE
from tests.unit.core.small import ANCHOR, KV, SLOT_BYTES, STATE, Small

BIG = {"segments": 8}


def test_lookup_hit_names_each_block_in_path_order() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path, layouts=[0, 1])
    result = engine.lookup(path, [NeedAll(0, 1), NeedWindow(1, 1.0, 8, 4)], margin=1)
    assert (result.boundary_pages, result.resume_pages, result.miss) == (3, 2, Miss.HIT)
    kv, anchors = result.columns
    assert (kv.layout, kv.first_page, kv.places["checksum"].tolist()) == (0, 1, [2])
    assert (anchors.layout, anchors.first_page) == (1, 0)
    assert anchors.places["checksum"].tolist() == [1, 3]
    assert kv.places["slot"].tolist() == [1] and kv.places.dtype == PLACE


@pytest.mark.parametrize(
    ("needs", "max_lineage", "margin", "miss"),
    [
        ([NeedAll(0, 0)], 255, 0, Miss.HIT),
        ([NeedAll(0, 0)], 255, 2, Miss.MARGIN),
        ([NeedAll(0, 0)], 0, 0, Miss.LINEAGE),
        ([NeedAll(0, 0), NeedLast(1)], 255, 0, Miss.INCOMPLETE),
        ([NeedLast(1)], 255, 0, Miss.NOT_STORED),
    ],
)
def test_lookup_miss_says_why(needs: list[Need], max_lineage: int, margin: int, miss: Miss) -> None:
    engine = Small(**BIG).session()
    path = engine.path(2)
    engine.put(path, lineage=1)
    assert engine.lookup(path, needs, max_lineage, margin).miss is miss


def test_lookup_disabled_namespace_misses_until_enabled() -> None:
    engine = Small().session()
    path = engine.path(1)
    engine.put(path)
    engine.store.set_enabled(engine.root, False)
    assert engine.lookup(path).miss is Miss.DISABLED
    engine.store.set_enabled(engine.root, True)
    assert engine.lookup(path).miss is Miss.HIT


def test_lookup_window_needs_no_ancestors() -> None:
    """Holes are legal: a window needs its own pages alone."""
    engine = Small(**BIG).session()
    path = engine.path(4)
    engine.put(path, first=2, layouts=[1])
    assert engine.stored(path, [NeedWindow(1, 1.0, 8, 4)]) == 4
    assert engine.stored(path, [NeedWindow(1, 1.0, 9, 4)]) == 0
    assert engine.stored(path, [NeedWindow(1, 1.0, 9, 4, min_rows=5)]) == 4


def test_lookup_orphans_join_their_parent_when_the_path_is_seen() -> None:
    engine = Small(**BIG).session()
    path = engine.path(2)
    engine.put(path, first=1)
    engine.put(path[:32])
    engine.lookup(path)
    children = {p.page: p.children for p in engine.store.list_pages(engine.root, 0, 9).pages}
    assert children == {0: 1, 1: 0} and engine.store.check() == []


def test_lookup_orphans_behind_a_hole_join_one_another() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path, first=2)
    engine.put(path[:64], first=1)
    engine.lookup(path, [NeedLast(0)])
    children = {p.page: p.children for p in engine.store.list_pages(engine.root, 0, 9).pages}
    assert children == {1: 1, 2: 0} and engine.store.check() == []
    assert engine.stored(path[32:64] + path[64:], [NeedLast(0)]) == 0, "not in its place"


def test_lookup_same_question_is_answered_anew_after_every_change() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path[:64])
    answers = [engine.lookup(path) for _ in range(4)]
    first = answers[-1]
    assert [answer.boundary_pages for answer in answers] == [2] * 4
    assert len({answer.lease_id for answer in answers}) == 4
    with pytest.raises(ValueError, match="read-only"):
        first.columns[0].places["slot"][0] = 0
    engine.put(path, first=2, lineage=1)
    assert (engine.lookup(path).boundary_pages, engine.lookup(path).lineage) == (3, 1)
    engine.put(path, first=2)
    assert engine.lookup(path).lineage == 0
    engine.store.remove(engine.root, path[32:64])
    assert engine.lookup(path).boundary_pages == 1
    engine.store.set_enabled(engine.root, False)
    assert engine.lookup(path).miss is Miss.DISABLED
    assert engine.store.check() == []


def test_lookup_same_question_of_another_session_follows_its_own_layouts() -> None:
    small = Small(**BIG)
    kv_first, anchor_first = small.session(layouts=[KV, ANCHOR]), small.session(layouts=[ANCHOR])
    path = kv_first.path(2)
    kv_first.put(path)
    assert kv_first.stored(path) == 2
    assert anchor_first.lookup(path).miss is Miss.NOT_STORED


def test_lookup_questions_are_remembered_from_the_second_time_on_and_not_for_ever() -> None:
    engine = Small(segment_bytes=600 * SLOT_BYTES).session()
    path = engine.path(500)
    engine.put(path)
    plans = engine.store._plans
    lengths = range(500, 300, -1)
    for pages in lengths:
        engine.release(engine.lookup(path[: 32 * pages]))
    assert plans.pages_remembered() == 0, "each was asked once"
    for pages in lengths:
        engine.release(engine.lookup(path[: 32 * pages]))
    assert PAGES_PLANNED_MAX // 2 < plans.pages_remembered() <= PAGES_PLANNED_MAX
    assert engine.stored(path) == 500


def test_lookup_page_named_twice_matches_once_in_its_place() -> None:
    engine = Small(**BIG).session()
    path = engine.path(2)
    engine.put(path)
    first, second = path[:32], path[32:]
    assert engine.lookup(first + second + second + first).boundary_pages == 2
    assert engine.lookup(second + first).boundary_pages == 0
    assert engine.lookup(first + first, [NeedAll(0, 0), NeedAll(0, 0)]).boundary_pages == 1
    assert engine.store.check() == []


def test_lookup_circle_of_parents_cannot_be_made() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    a, b, c = path[:32], path[32:64], path[64:]
    engine.put(path)
    for order in (c + b + a, b + c, c + a + b, a + c + b):
        engine.lookup(order)
        engine.store.explain(engine.root, order)
    assert engine.store.check() == []


def test_lease_expires_unless_renewed() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(1)
    engine.put(path)
    kept, lost = engine.lookup(path).lease_id, engine.lookup(path).lease_id
    small.now = 6.0
    assert small.store.renew(engine.session_id, [kept, 99], small.now) == [99]
    small.now = 10.0
    small.store.expire(small.now)
    assert small.store.renew(engine.session_id, [kept, lost], small.now) == [lost]
    assert len(small.store.leased_columns(engine.session_id, kept, 0, small.now)[0]) == 1
    with pytest.raises(LeaseExpired, match=f"lease {lost}"):
        small.store.leased_columns(engine.session_id, lost, 0, small.now)
    assert small.store.check() == []


def test_lease_of_removed_blocks_goes_on_until_released() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(2)
    engine.put(path)
    result = engine.lookup(path[:32])
    removed = small.store.remove(engine.root, None)
    assert (removed.blocks_removed, removed.blocks_leased) == (2, 1)
    assert engine.lookup(path).miss is Miss.NOT_STORED
    assert small.store.status(0.0).used_bytes == SLOT_BYTES and small.store.check() == []
    held, _ = small.store.leased_columns(engine.session_id, result.lease_id, 0, 0.0)
    assert held.places.tolist() == result.columns[0].places.tolist()
    engine.release(result)
    assert small.store.status(0.0).used_bytes == 0 and small.store.check() == []


def test_lease_two_readers_of_removed_block_both_count() -> None:
    small = Small()
    engine, other = small.session(), small.session()
    path = engine.path(1)
    engine.put(path)
    first, second = engine.lookup(path), other.lookup(path)
    small.store.remove(engine.root, None)
    engine.release(first)
    assert small.store.status(0.0).used_bytes == SLOT_BYTES
    small.store.end_session(other.session_id, 0.0)
    assert second.lease_id and small.store.status(0.0).used_bytes == 0
    assert small.store.check() == []


def test_lease_limit_is_an_error_that_names_it() -> None:
    engine = Small(max_leases=1).session()
    path = engine.path(1)
    engine.put(path)
    engine.lookup(path)
    with pytest.raises(CapacityFull, match="session holds 1 leases, limit 1"):
        engine.lookup(path)


def test_lookup_nothing_to_read_takes_no_lease() -> None:
    engine = Small().session()
    path = engine.path(2)
    engine.put(path)
    result = engine.lookup(path, [NeedAll(0, 7)])
    assert (result.boundary_pages, result.lease_id, len(result.columns[0])) == (2, 0, 0)


def test_lookup_two_needs_of_one_layout_lease_each_block_once() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(2)
    engine.put(path)
    result = engine.lookup(path, [NeedAll(0, 0), NeedLast(0)])
    assert [len(columns) for columns in result.columns] == [2, 1]
    leases = [b.leases for p in small.store.list_pages(engine.root, 0, 9).pages for b in p.blocks]
    assert leases == [1, 1]
    engine.release(result)
    assert small.store.check() == []


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ([], "0 needs"),
        ([NeedAll(0, 0)] * 33, "33 needs, must be 1 to 32"),
        ([NeedAll(3, 0)], "layout 3 of 3"),
        ([NeedAll(-1, 0)], "layout -1 of 3"),
        ([NeedAll(0, -1)], "first page -1"),
        ([NeedAll(0, 2**32)], "first page 4294967296"),
        ([NeedWindow(0, math.nan, 8, 4)], "ratio nan"),
        ([NeedWindow(0, math.inf, 8, 4)], "ratio inf"),
        ([NeedWindow(0, -0.1, 8, 4)], "ratio -0.1"),
        ([NeedWindow(0, 0.1, 8, 0)], "0 rows a page"),
        ([NeedWindow(0, 0.1, 8, 65)], "65 rows a page, must be 1 to 64"),
        ([NeedWindow(0, 0.1, -1, 4)], "window rows"),
        ([NeedWindow(0, 0.1, 8, 4, min_rows=-1)], "window rows -1"),
    ],
)
def test_lookup_impossible_needs_are_refused(needs: list[Need], message: str) -> None:
    engine = Small().session(layouts=[KV, ANCHOR, STATE])
    with pytest.raises(InvalidRequest, match=message):
        engine.lookup(engine.path(1), needs)
    assert engine.store.check() == []


def test_lookup_wrong_hashes_are_refused() -> None:
    engine = Small(max_pages=4).session()
    with pytest.raises(InvalidKey, match="33 bytes"):
        engine.lookup(b"h" * 33)
    for pages in (0, 5):
        with pytest.raises(InvalidRequest, match=f"{pages} pages in one call, must be 1 to 4"):
            engine.lookup(b"h" * 32 * pages)
    with pytest.raises(InvalidRequest, match="margin_pages -1"):
        engine.lookup(engine.path(1), margin=-1)


def test_leased_columns_need_out_of_range_is_refused() -> None:
    engine = Small().session()
    path = engine.path(1)
    engine.put(path)
    lease = engine.lookup(path).lease_id
    with pytest.raises(InvalidRequest, match="need 1 of 1"):
        engine.store.leased_columns(engine.session_id, lease, 1, 0.0)
