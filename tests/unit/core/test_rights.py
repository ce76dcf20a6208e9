"""Memory of rights: what reservations and leases take of the daemon's own memory is bounded.

Goal: many sessions together cannot reserve or lease without end; the refusal names value and limit
and leaves everything as it was; what ends is counted out.  Method: a small store, tight limits.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.errors import CapacityFull
from anchorstore.server.core.types import NeedAll, NeedLast
from tests.unit.core.small import Small


def counts(small: Small) -> tuple[Any, Any]:
    """(pages reserved, blocks leased) as operators see them."""
    counters = small.store.status(small.now).counters
    return counters["reserved_pages"], counters["leased_blocks"]


def test_reserved_pages_of_all_sessions_share_one_limit() -> None:
    small = Small(max_reserved_pages=8)
    first, second = small.session(), small.session("globex")
    reserved = first.reserve(first.path(5))
    with pytest.raises(CapacityFull, match=r"9 pages in open reservations, limit 8 .*reserved_pag"):
        second.reserve(second.path(4))
    assert counts(small) == (5, 0)
    assert second.reserve(second.path(3)).reservation_id
    small.store.abort(first.session_id, reserved.reservation_id, 0.0)
    assert counts(small) == (3, 0)
    assert second.reserve(second.path(5, "b")).reservation_id
    small.store.end_session(second.session_id, 0.0)
    assert counts(small) == (0, 0)
    assert first.put(first.path(4)) == [1] * 4
    assert counts(small) == (0, 0)
    assert first.reserve(first.path(4)).reservation_id == 0, "known: nothing is reserved"
    assert counts(small) == (0, 0) and small.store.check() == []


def test_reserved_pages_come_back_when_a_reservation_expires() -> None:
    small = Small(max_reserved_pages=4)
    engine = small.session()
    engine.reserve(engine.path(4))
    small.now = 10.0
    small.store.expire(small.now)
    assert engine.reserve(engine.path(4)).reservation_id
    assert small.store.check() == []


def test_leased_blocks_of_all_sessions_share_one_limit() -> None:
    small = Small(max_leased_blocks=6)
    first, second = small.session(), small.session()
    path = first.path(4)
    first.put(path)
    held = first.lookup(path)
    with pytest.raises(CapacityFull, match=r"8 blocks under read leases, limit 6 .*leased_blocks"):
        second.lookup(path)
    assert counts(small) == (0, 4)
    assert small.store.status(0.0).leases == 1
    assert second.lookup(path[:64]).boundary_pages == 2
    first.release(held)
    assert counts(small) == (0, 2)
    small.now = 10.0
    small.store.expire(small.now)
    assert counts(small) == (0, 0) and small.store.check() == []


def test_leased_blocks_count_once_a_need() -> None:
    """64 needs of one component hold each block once, and name it 64 times."""
    small = Small(max_leased_blocks=11)
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    engine.lookup(path, [NeedAll(0, 0), NeedAll(0, 2), NeedLast(0)])
    assert counts(small) == (0, 7)
    with pytest.raises(CapacityFull, match="12 blocks under read leases"):
        engine.lookup(path, [NeedAll(0, 0), NeedLast(0)])
    assert small.store.check() == []
