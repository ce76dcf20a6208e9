"""Sessions, namespaces and the wall between domains.

Goal: a session ends when it should and leaves nothing; what one domain holds, no other can match,
map, read, charge or learn of.  Method: a small store; every record is compared before and after.
"""

from __future__ import annotations

import pytest

from anchorstore.errors import (
    CapacityFull,
    InvalidRequest,
    LeaseExpired,
    SpecMismatch,
    UnknownSession,
)
from anchorstore.keys import Namespace
from anchorstore.layout import AnchorLayout, StateLayout
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import Miss, NeedLast
from tests.unit.core.small import CONFIG, KV, SLOT_BYTES, STATE, Small

NAMESPACE = Namespace("acme", "model", b"w" * 32)


def test_open_session_grants_slots_and_root() -> None:
    store = Store(CONFIG, b"b" * 16)
    grant = store.open_session(b"s", NAMESPACE, [KV, STATE], now=0.0)
    assert grant.root_digest == NAMESPACE.root_digest()
    assert grant.slot_bytes == (4096, 8192)
    assert grant.max_lineage == 16


@pytest.mark.parametrize(
    ("layouts", "error", "message"),
    [
        ([], InvalidRequest, "0 layouts, must be 1 to 16"),
        ([KV, KV], SpecMismatch, "layout 1 repeats"),
        ([StateLayout(1 << 20, "x")], SpecMismatch, "1048576 bytes does not fit a segment"),
        ([AnchorLayout(1, 4, 64, "bfloat16", 32)], SpecMismatch, "32 tokens, the namespace of 64"),
    ],
)
def test_open_session_wrong_layouts_leave_no_trace(
    layouts: list[AnchorLayout], error: type[Exception], message: str
) -> None:
    store = Store(CONFIG, b"b" * 16)
    with pytest.raises(error, match=message):
        store.open_session(b"s", NAMESPACE, layouts, now=0.0)
    status = store.status(0.0)
    assert (status.sessions, status.namespaces, store.check()) == (0, [], [])


def test_open_session_limits_name_value_and_limit() -> None:
    small = Small(max_sessions=2, max_namespaces=1)
    small.session()
    with pytest.raises(CapacityFull, match="1 namespaces, limit 1"):
        small.session(model="other")
    small.session()
    with pytest.raises(CapacityFull, match="2 sessions, limit 2"):
        small.session()
    assert small.store.check() == []


def test_open_session_leaves_other_domains_their_share() -> None:
    small = Small(max_sessions=4, max_sessions_per_domain=2)
    greedy = small.session()
    small.session(model="other")
    for model in ("model", "third"):
        with pytest.raises(CapacityFull, match=r"'acme' has 2 sessions, limit 2 .*per_domain"):
            small.session(model=model)
    other = small.session("globex")
    small.session("globex")
    small.store.end_session(greedy.session_id, 0.0)
    small.session(model="third")
    assert other.put(other.path(1)) == [1]
    assert small.store.check() == []


def test_open_session_id_in_use_is_refused() -> None:
    store = Store(CONFIG, b"b" * 16)
    store.open_session(b"s", NAMESPACE, [KV], now=0.0)
    for session_id in (b"s", b""):
        with pytest.raises(InvalidRequest, match="empty or in use"):
            store.open_session(session_id, NAMESPACE, [KV], now=0.0)


def test_max_lineage_changes_only_where_nobody_else_is_attached() -> None:
    small = Small()
    first = small.session(max_lineage=3)
    with pytest.raises(SpecMismatch, match="max_lineage 3, not 4"):
        small.session(max_lineage=4)
    small.session(max_lineage=3)
    small.session()
    assert small.store.status(0.0).namespaces[0].max_lineage == 3
    for number in range(1, small.sessions + 1):
        session_id = number.to_bytes(16, "big")
        if number != 2:  # refused above
            small.store.end_session(session_id, 0.0)
    again = small.session(max_lineage=4)
    assert again.root == first.root
    assert small.store.status(0.0).namespaces[0].max_lineage == 4
    with pytest.raises(InvalidRequest, match="must be 0 to 255"):
        small.session(model="x", max_lineage=256)


def test_session_ends_with_its_last_connection() -> None:
    small = Small()
    engine = small.session()
    path = engine.path(1)
    engine.put(path)
    engine.lookup(path)
    engine.reserve(engine.path(1, "b"))
    for _ in range(2):
        small.store.connection_opened(engine.session_id, "acme")
    small.store.connection_closed(engine.session_id, 0.0)
    assert small.store.status(0.0).sessions == 1
    small.store.connection_closed(engine.session_id, 0.0)
    status = small.store.status(0.0)
    assert (status.sessions, status.leases, status.reservations) == (0, 0, 0)
    assert status.used_bytes == SLOT_BYTES and small.store.check() == []
    small.store.connection_closed(engine.session_id, 0.0)
    with pytest.raises(UnknownSession):
        engine.lookup(path)


def test_session_without_connection_ends_when_unused() -> None:
    small = Small()
    used, unused, connected = small.session(), small.session(), small.session()
    small.store.connection_opened(connected.session_id, "acme")
    small.now = 40.0
    used.stored(used.path(1))
    assert small.store.next_deadline() == 60.0
    small.now = 60.0
    small.store.expire(small.now)
    with pytest.raises(UnknownSession):
        unused.stored(unused.path(1))
    used.stored(used.path(1))
    connected.stored(connected.path(1))
    assert small.store.status(0.0).sessions == 2 and small.store.check() == []


def test_namespace_is_forgotten_when_nothing_needs_it() -> None:
    small = Small()
    engine = small.session()
    engine.put(engine.path(1))
    small.store.end_session(engine.session_id, 0.0)
    assert len(small.store.status(0.0).namespaces) == 1
    small.store.remove(engine.root, None)
    assert small.store.status(0.0).namespaces == []
    with pytest.raises(InvalidRequest, match="no namespace with root digest"):
        small.store.remove(engine.root, None)


def test_kill_switch_outlives_the_sessions() -> None:
    small = Small()
    engine = small.session()
    small.store.set_enabled(engine.root, False)
    small.store.end_session(engine.session_id, 0.0)
    again = small.session()
    assert again.lookup(again.path(1)).miss is Miss.DISABLED
    small.store.end_session(again.session_id, 0.0)
    small.store.set_enabled(engine.root, True)
    assert small.store.status(0.0).namespaces == [] and small.store.check() == []


def test_layout_ids_are_recycled() -> None:
    """Clients that come with ever new layouts do not use anything up."""
    small = Small()
    for number in range(5000):
        session_id = number.to_bytes(16, "big")
        layout = StateLayout(64 * (1 + number % 100), f"label {number}")
        small.store.open_session(session_id, NAMESPACE, [layout], now=0.0)
        small.store.end_session(session_id, 0.0)
    assert small.store.check() == []


# ---- the wall ----


def test_domains_same_model_and_tokens_share_nothing() -> None:
    small = Small()
    acme, globex = small.session("acme"), small.session("globex")
    assert acme.root != globex.root
    acme.put(acme.path(2))
    assert globex.lookup(globex.path(2)).miss is Miss.NOT_STORED


def test_domains_foreign_hash_is_as_unknown_as_a_random_one() -> None:
    """Presenting another domain's path hashes learns nothing and changes nothing."""
    small = Small()
    acme, globex = small.session("acme"), small.session("globex")
    path = acme.path(2)
    acme.put(path)
    before = acme.store.list_pages(acme.root, 0, 9)
    for hashes in (path, b"r" * 32 + b"s" * 32):
        assert globex.lookup(hashes).miss is Miss.NOT_STORED
        assert globex.lookup(hashes, [NeedLast(0)], margin=1).miss is Miss.NOT_STORED
    verdicts = small.store.reserve(globex.session_id, path[:32], 1, path[32:], [0], 0, 0.0).verdicts
    assert list(verdicts) == [1], "not even known"
    assert acme.store.list_pages(acme.root, 0, 9) == before and small.store.check() == []


def test_domains_same_hash_in_two_namespaces_is_two_pages() -> None:
    small = Small()
    acme, globex = small.session("acme"), small.session("globex")
    parent, page = b"p" * 32, b"h" * 32
    for engine in (acme, globex):
        reservation = small.store.reserve(engine.session_id, parent, 1, page, [0], 0, 0.0)
        engine.finish(engine.begin(reservation.reservation_id, [(0, 0)]))
    assert small.store.remove(acme.root, None).blocks_removed == 1
    assert [p.path_hash for p in small.store.list_pages(globex.root, 0, 9).pages] == [page]
    assert small.store.check() == []


def test_domains_never_share_a_segment() -> None:
    small = Small()
    acme, globex = small.session("acme"), small.session("globex")
    segments = []
    for engine in (acme, globex):
        engine.put(engine.path(1))
        segments.append(set(engine.lookup(engine.path(1)).columns[0].places["segment"].tolist()))
    assert not segments[0] & segments[1]


def test_map_segments_foreign_and_unknown_ids_are_refused_alike() -> None:
    small = Small()
    acme, globex = small.session("acme"), small.session("globex")
    acme.put(acme.path(1))
    assert small.store.map_segments(acme.session_id, [1], 0.0) == [0]
    messages = []
    for segment_id in (1, 77):
        with pytest.raises(InvalidRequest) as refused:
            small.store.map_segments(globex.session_id, [segment_id], 0.0)
        messages.append(str(refused.value).replace(str(segment_id), "N"))
    assert messages[0] == messages[1]


def test_connection_foreign_domain_and_unknown_session_are_refused_alike() -> None:
    small = Small()
    acme = small.session("acme")
    messages = []
    for session_id in (acme.session_id, b"unknown"):
        with pytest.raises(UnknownSession) as refused:
            small.store.connection_opened(session_id, "globex")
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_leases_and_reservations_of_other_sessions_are_out_of_reach() -> None:
    small = Small()
    mine, other = small.session(), small.session()
    path = mine.path(1)
    mine.put(path)
    lease = mine.lookup(path).lease_id
    reservation = mine.reserve(mine.path(1, "b")).reservation_id
    assert small.store.renew(other.session_id, [lease], 0.0) == [lease]
    small.store.release(other.session_id, [lease], 0.0)
    small.store.abort(other.session_id, reservation, 0.0)
    with pytest.raises(LeaseExpired):
        small.store.leased_columns(other.session_id, lease, 0, 0.0)
    status = small.store.status(0.0)
    assert (status.leases, status.reservations) == (1, 1)
