"""Reserve, begin_seal, finish_seal: what becomes visible, when, and what never does.

Goal: guarantees 1 to 4 of docs/architecture.md at the core.  Method: one small store a test,
`check()` after the act.
"""

from __future__ import annotations

import numpy as np
import pytest

from anchorstore.errors import InvalidKey, InvalidRequest, LeaseExpired, UnknownSession
from anchorstore.layout import StateLayout
from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.types import NeedAll
from tests.unit.core.small import ANCHOR, KV, SLOT_BYTES, Small

SEALED, KNOWN, DECLINED, MISMATCH = 1, 2, 3, 4
TAKE = 1


def test_seal_before_finish_is_invisible() -> None:
    engine = Small().session()
    path = engine.path(2)
    work = engine.begin(engine.reserve(path).reservation_id, [(0, 0), (1, 0)])
    assert list(work.results) == [0, 0] and len(work.copies) == 2
    assert engine.stored(path) == 0
    assert engine.finish(work) == [SEALED, SEALED]
    assert engine.stored(path) == 2
    assert engine.store.check() == []


def test_seal_generations_are_odd_then_even_and_rise_with_reuse() -> None:
    engine = Small().session()
    path = engine.path(1)
    seen = []
    for _ in range(3):
        work = engine.begin(engine.reserve(path).reservation_id, [(0, 0)])
        engine.finish(work)
        result = engine.lookup(path)
        engine.release(result)
        [written], [sealed] = work.copies.generation, result.columns[0].places["generation"]
        assert written % 2 == 1 and sealed == written + 1
        seen.append((int(work.copies.offset[0]), int(sealed)))
        engine.store.remove(engine.root, None)
    assert seen == [(SLOT_BYTES, 2), (SLOT_BYTES, 4), (SLOT_BYTES, 6)]


def test_reserve_known_pages_are_not_taken_again() -> None:
    engine = Small().session()
    path = engine.path(3)
    engine.put(path[:64])
    assert list(engine.reserve(path).verdicts) == [KNOWN, KNOWN, TAKE]
    everything_known = engine.reserve(path[:64])
    assert everything_known.reservation_id == 0 and everything_known.reason == ""


def test_seal_two_writers_second_to_finish_is_known() -> None:
    small = Small()
    first, second = small.session(), small.session()
    path = first.path(1)
    works = [e.begin(e.reserve(path).reservation_id, [(0, 0)]) for e in (first, second)]
    assert first.finish(works[0]) == [SEALED]
    assert second.finish(works[1]) == [KNOWN]
    assert small.store.check() == []
    assert small.store.status(0.0).used_bytes == SLOT_BYTES


def test_seal_mismatch_leaves_nothing_and_may_be_sent_again() -> None:
    engine = Small().session()
    path = engine.path(1)
    reservation = engine.reserve(path).reservation_id
    work = engine.begin(reservation, [(0, 0)], keep_open=True)
    assert engine.finish(work, ok=False) == [MISMATCH]
    assert engine.stored(path) == 0 and engine.store.check() == []
    assert engine.finish(engine.begin(reservation, [(0, 0)])) == [SEALED]
    assert engine.stored(path) == 1


@pytest.mark.parametrize("event", ["end", "abort", "switch", "remove"])
def test_seal_abandoned_between_begin_and_finish_shows_nothing(event: str) -> None:
    small = Small()
    engine, other = small.session(), small.session()
    path = engine.path(1)
    reservation = engine.reserve(path).reservation_id
    work = engine.begin(reservation, [(0, 0)], keep_open=True)
    match event:
        case "end":
            small.store.end_session(engine.session_id, 0.0)
        case "abort":
            small.store.abort(engine.session_id, reservation, 0.0)
        case "switch":
            small.store.set_enabled(engine.root, False)
        case "remove":
            small.store.remove(engine.root, None)
    assert small.store.status(0.0).used_bytes == SLOT_BYTES, "slots rest while the mover may write"
    assert small.store.check() == []
    assert engine.finish(work) == [DECLINED]
    small.store.set_enabled(engine.root, True)
    assert other.stored(path) == 0
    assert small.store.status(0.0).used_bytes == 0 and small.store.check() == []


def test_seal_exact_block_replaces_approximate_one() -> None:
    engine = Small().session()
    path = engine.path(1)
    assert engine.put(path, lineage=2) == [SEALED]
    assert engine.lookup(path, max_lineage=1).boundary_pages == 0
    assert engine.put(path, lineage=2) == [KNOWN]
    assert engine.put(path, lineage=1) == [SEALED]
    assert engine.lookup(path, max_lineage=1).lineage == 1
    assert engine.put(path) == [SEALED]
    assert engine.put(path, lineage=1) == [KNOWN]
    result = engine.lookup(path, max_lineage=0)
    assert (result.boundary_pages, result.lineage) == (1, 0)
    assert engine.store.check() == []


def test_seal_replaced_block_keeps_its_slot_until_its_lease_ends() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(1)
    engine.put(path, lineage=1)
    reading = engine.lookup(path)
    engine.put(path)
    assert small.store.status(0.0).used_bytes == 2 * SLOT_BYTES
    held, _ = small.store.leased_columns(engine.session_id, reading.lease_id, 0, 0.0)
    assert held.places.tolist() == reading.columns[0].places.tolist()
    assert small.store.check() == []
    engine.release(reading)
    assert small.store.status(0.0).used_bytes == SLOT_BYTES and small.store.check() == []


def test_reserve_lineage_beyond_namespace_is_declined() -> None:
    engine = Small().session(max_lineage=1)
    result = engine.reserve(engine.path(1), lineage=2)
    assert (list(result.verdicts), result.reason) == ([DECLINED], "lineage")


def test_reserve_any_lineage_is_taken_where_the_namespace_says_255() -> None:
    engine = Small().session(max_lineage=255)
    path = engine.path(1)
    assert engine.put(path, lineage=1000) == [SEALED]
    assert engine.lookup(path, max_lineage=255).lineage == 254


def test_reserve_disabled_namespace_declines_everything() -> None:
    engine = Small().session()
    engine.store.set_enabled(engine.root, False)
    result = engine.reserve(engine.path(2))
    assert (list(result.verdicts), result.reason) == ([DECLINED] * 2, "disabled")


def test_reserve_more_than_allowed_is_declined_as_limit() -> None:
    engine = Small(max_reservations=1).session()
    engine.reserve(engine.path(1))
    result = engine.reserve(engine.path(1, "b"))
    assert (list(result.verdicts), result.reason) == ([DECLINED], "limit")


def test_reserve_component_without_share_is_declined_as_capacity() -> None:
    small = Small(component_share={KV.component: 1.0})
    engine = small.session()
    result = engine.reserve(engine.path(1), layouts=[0, 1])
    assert (list(result.verdicts), result.reason) == ([TAKE, DECLINED], "capacity")


def test_reservation_unused_expires_and_gives_its_quota_back() -> None:
    small = Small(default_quota_bytes=2 * SLOT_BYTES)
    engine = small.session()
    reservation = engine.reserve(engine.path(2)).reservation_id
    assert list(engine.reserve(engine.path(1, "b")).verdicts) == [DECLINED]
    small.now = 10.0
    small.store.expire(small.now)
    with pytest.raises(LeaseExpired, match="reservation"):
        engine.begin(reservation, [(0, 0)])
    assert list(engine.reserve(engine.path(1, "b")).verdicts) == [TAKE]
    assert small.store.check() == []


def test_seal_expired_reservation_lets_copies_in_flight_land() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(1)
    work = engine.begin(engine.reserve(path).reservation_id, [(0, 0)], keep_open=True)
    small.now = 10.0
    small.store.expire(small.now)
    assert engine.finish(work) == [SEALED]
    assert engine.stored(path) == 1 and small.store.check() == []


def test_seal_page_with_too_many_kinds_is_declined() -> None:
    small = Small(segments=32, max_layouts=255, segment_bytes=8 * SLOT_BYTES)
    layouts = [StateLayout(64, f"label {i}") for i in range(CHAIN_LIMIT + 1)]
    engine = small.session(layouts=layouts)
    results = engine.put(engine.path(1), layouts=range(len(layouts)))
    assert results == [SEALED] * CHAIN_LIMIT + [DECLINED]
    assert small.store.check() == []


def test_seal_partial_page_shows_only_what_was_sealed() -> None:
    engine = Small().session(layouts=[KV, ANCHOR])
    path = engine.path(1)
    engine.put(path, layouts=[1])
    assert engine.stored(path, [NeedAll(1, 0)]) == 1
    assert engine.stored(path, [NeedAll(0, 0), NeedAll(1, 0)]) == 0
    assert list(engine.reserve(path, layouts=[0, 1]).verdicts) == [TAKE, KNOWN]


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([(0, 0), (0, 0)], "named twice"),
        ([(2, 0)], "page 2 of 2"),
        ([(0, 1)], "layout 1 of 1"),
        ([], "must be equal, 1 to 2"),
    ],
)
def test_begin_seal_wrong_units_are_refused(units: list[tuple[int, int]], message: str) -> None:
    engine = Small().session()
    reservation = engine.reserve(engine.path(2)).reservation_id
    with pytest.raises(InvalidRequest, match=message):
        engine.begin(reservation, units)
    assert engine.store.check() == []


def test_begin_seal_block_being_sealed_is_refused() -> None:
    engine = Small().session()
    reservation = engine.reserve(engine.path(2)).reservation_id
    engine.begin(reservation, [(0, 0)], keep_open=True)
    with pytest.raises(InvalidRequest, match="being sealed already"):
        engine.begin(reservation, [(0, 0)])


def test_begin_seal_foreign_reservation_is_unknown() -> None:
    small = Small()
    mine, other = small.session(), small.session()
    reservation = mine.reserve(mine.path(1)).reservation_id
    with pytest.raises(LeaseExpired):
        other.begin(reservation, [(0, 0)])
    with pytest.raises(UnknownSession):
        small.store.begin_seal(
            b"nobody", reservation, np.zeros(1, np.uint32), np.zeros(1, np.uint8), False, 0.0
        )


@pytest.mark.parametrize(
    ("parent", "first", "hashes", "error"),
    [
        (b"p" * 31, 1, b"h" * 32, InvalidKey),
        (b"p" * 32, 0, b"h" * 32, InvalidKey),
        (b"p" * 32, 1, b"h" * 31, InvalidKey),
        (b"p" * 32, 1, b"", InvalidRequest),
        (b"p" * 32, 1, b"h" * 64, InvalidKey),
        (b"h" * 32, 1, b"h" * 32, InvalidKey),
        (b"p" * 32, 2**32, b"h" * 32, InvalidRequest),
        (b"p" * 32, -1, b"h" * 32, InvalidRequest),
    ],
)
def test_reserve_wrong_run_is_refused(
    parent: bytes, first: int, hashes: bytes, error: type[Exception]
) -> None:
    engine = Small().session()
    with pytest.raises(error):
        engine.store.reserve(engine.session_id, parent, first, hashes, [0], 0, 0.0)
    assert engine.store.check() == []


def test_finish_seal_unknown_ticket_stops_with_the_story() -> None:
    engine = Small().session()
    engine.put(engine.path(1))
    with pytest.raises(AssertionError, match="ticket 99 is not open\nlast events:\n"):
        engine.store.finish_seal(99, np.zeros(0, np.bool_), np.zeros(0, np.uint64), 0.0)
