"""Goal: the Unix socket carries puts and gets, bounds every peer, and survives hostile ones.
Method: a daemon in a thread; a client that speaks raw frames, rightly and wrongly.
"""

from __future__ import annotations

import os
import pathlib
import socket
import stat
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore import errors
from anchorstore.transport import frames
from anchorstore.transport.frames import Kind, Method
from anchorstore.transport.segment import PLACE
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import (
    ANCHOR,
    KV,
    MIB,
    Engine,
    Running,
    Wire,
    attach_request,
    block_of,
    chain,
    config_of,
    running,
)


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Running]:
    with running(config_of(tmp_path)) as here:
        yield here


def is_alive(daemon: Running) -> bool:
    """Whether a new engine is served."""
    engine = Engine(daemon.socket)
    engine.close()
    return engine.grant.boot_id == daemon.daemon.boot_id


def test_put_by_one_engine_is_read_in_place_by_another(daemon: Running) -> None:
    writer, reader = Engine(daemon.socket), Engine(daemon.socket, staging_bytes=0)
    assert writer.grant.root_digest == reader.grant.root_digest
    hashes = chain(writer.grant.root_digest, range(5))
    assert reader.lookup(hashes).miss == pb.MISS_REASON_NOT_STORED
    assert writer.put(hashes) == bytes([1] * 10)
    hit = reader.lookup(hashes + chain(hashes[-32:], [99]))
    assert (hit.boundary_pages, hit.resume_pages, hit.lineage) == (5, 5, 0)
    for layout, columns in enumerate(hit.columns):
        size = reader.grant.layouts[layout].block_bytes
        expected = [block_of(100 * page + layout, size) for page in range(5)]
        assert reader.read(columns) == expected
    reader.call(Method.RELEASE, pb.ReleaseRequest, lease_ids=[hit.lease_id])


def test_put_known_by_reserve_is_not_asked_for_again(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(3))
    engine.put(hashes)
    again = engine.reserve(hashes)
    assert (again.reservation_id, bytes(again.verdicts)) == (0, bytes([2] * 6))


def test_seal_with_wrong_checksum_is_never_visible(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(2))
    reserved, columns = engine.reserve(hashes), engine.stage(2)
    assert engine.staging is not None
    engine.staging[0] ^= 1  # page 0, kv
    answer = engine.call(
        Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns
    )
    assert bytes(answer.results) == bytes([4, 1, 1, 1])
    assert engine.lookup(hashes).miss == pb.MISS_REASON_INCOMPLETE


def test_reserve_aborted_is_never_visible(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(2))
    reserved = engine.reserve(hashes)
    engine.call(Method.ABORT, pb.AbortRequest, reservation_id=reserved.reservation_id)
    assert engine.lookup(hashes).miss == pb.MISS_REASON_NOT_STORED
    with pytest.raises(errors.AnchorStoreError):
        engine.call(
            Method.SEAL,
            pb.SealRequest,
            reservation_id=reserved.reservation_id,
            **engine.stage(2),
        )


def test_seal_outside_staging_names_offset_and_limit(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(2))
    for offset in (4 * MIB - 1, 4 * MIB, 2**64 - 1):
        reserved, columns = engine.reserve(hashes), engine.stage(2)
        columns["staging_offsets"] = np.array([0, offset, 0, 0], "<u8").tobytes()
        with pytest.raises(errors.InvalidRequest, match=f"{offset} .*outside the {4 * MIB} bytes"):
            engine.call(
                Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns
            )
    assert engine.put(hashes) == bytes([1] * 4)


def test_session_ended_by_its_last_connection_gives_staging_back(daemon: Running) -> None:
    first = Engine(daemon.socket)
    second = Wire.unix(daemon.socket)
    join = pb.JoinRequest(protocol_version=frames.VERSION, session_id=first.session_id)
    assert second.call(Method.JOIN, join).boot_id == daemon.daemon.boot_id
    stagings = daemon.daemon.service.stagings
    first.close()
    renew = pb.RenewRequest(session_id=first.session_id)
    assert second.call(Method.RENEW, renew) == pb.RenewResponse()
    assert daemon.do(lambda: stagings.used_bytes) == 4 * MIB
    second.call(Method.DETACH, pb.DetachRequest(session_id=first.session_id))
    assert daemon.do(lambda: stagings.used_bytes) == 0
    with pytest.raises(errors.UnknownSession):
        second.call(Method.RENEW, renew)


@pytest.mark.parametrize("method", [m for m in Method if m < 32 and m is not Method.ATTACH])
def test_session_of_another_connection_is_unknown(daemon: Running, method: Method) -> None:
    engine, stranger = Engine(daemon.socket), Wire.unix(daemon.socket)
    cls = frames.MESSAGES[method][0]
    for session_id in (engine.session_id, bytes(16), b"", bytes(100)):
        if method is Method.JOIN and session_id == engine.session_id:
            continue
        request = cls(session_id=session_id)
        if method is Method.JOIN:
            request = pb.JoinRequest(protocol_version=1, session_id=session_id)
        unheard = method in (Method.WRITE, Method.READ)  # TCP's alone
        wanted = errors.InvalidRequest if unheard else errors.UnknownSession
        with pytest.raises(wanted):
            stranger.call(method, request)
    assert engine.lookup(chain(engine.grant.root_digest, [1])).miss == pb.MISS_REASON_NOT_STORED


def test_requests_that_break_the_schema_are_refused_and_the_connection_lives(
    daemon: Running,
) -> None:
    engine = Engine(daemon.socket)
    long = bytes(32 * (engine.grant.max_pages + 1))
    refused: list[tuple[Method, type, dict[str, object], str]] = [
        (Method.LOOKUP, pb.LookupRequest, {"path_hashes": bytes(33)}, "33 bytes"),
        (Method.LOOKUP, pb.LookupRequest, {"path_hashes": long}, "pages, limit"),
        (Method.LOOKUP, pb.LookupRequest, {}, "0 pages"),
        (Method.LOOKUP, pb.LookupRequest, {"needs": [pb.Need()]}, "names no kind"),
        (
            Method.LOOKUP,
            pb.LookupRequest,
            {"path_hashes": bytes(32), "needs": [pb.Need(layout=9, all=pb.NeedAll())]},
            "layout",
        ),
        (Method.RESERVE, pb.ReserveRequest, {"parent_hash": b"short"}, "parent_hash has 5"),
        (Method.MAP, pb.MapRequest, {"segment_ids": range(251)}, "251 descriptors, limit 250"),
        (Method.MAP, pb.MapRequest, {"segment_ids": [12345]}, "12345"),
    ]
    for method, cls, fields, words in refused:
        with pytest.raises(errors.UsageError, match=words):
            engine.call(method, cls, **fields)
    with pytest.raises(errors.InvalidRequest, match="not a LookupRequest"):
        engine.wire.sock.sendall(frames.encode(Kind.REQUEST, Method.LOOKUP, 9, b"\xff\xff\xff"))
        engine.wire.receive_answer()
    assert engine.put(chain(engine.grant.root_digest, [1])) == bytes([1, 1])


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"protocol_version": 7}, errors.InvalidRequest, "version 7"),
        ({"layouts": []}, errors.InvalidRequest, "0 layouts"),
        ({"namespace": pb.NamespaceSpec(model="m")}, errors.InvalidKey, "weights_digest"),
        ({"max_lineage": 256}, errors.InvalidRequest, "lineage 256, limit 255"),
        ({"token": "not configured"}, errors.Unauthenticated, "token"),
    ],
)
def test_attach_that_is_wrong_leaves_no_session(
    daemon: Running, fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    wire = Wire.unix(daemon.socket)
    with pytest.raises(error, match=words):
        wire.call(Method.ATTACH, attach_request(**fields))
    status = daemon.do(lambda: daemon.daemon.core.status(0.0))
    assert status.sessions == 0 and daemon.daemon.service.stagings.used_bytes == 0


HEADER = frames.HEADER
GARBAGE = {
    "noise": os.urandom(64),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": HEADER.pack(b"AS", 9, 1, 7, 0, 1, 0, 0),
    "kind": HEADER.pack(b"AS", 1, 9, 7, 0, 1, 0, 0),
    "a reply": HEADER.pack(b"AS", 1, 2, 7, 0, 1, 0, 0),
    "method": HEADER.pack(b"AS", 1, 1, 99, 0, 1, 0, 0),
    "reserved": HEADER.pack(b"AS", 1, 1, 7, 1, 1, 0, 0),
    "body too long": HEADER.pack(b"AS", 1, 1, 7, 0, 1, 2**31, 0),
    "payload": HEADER.pack(b"AS", 1, 1, 17, 0, 1, 0, 100),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_frame_that_breaks_the_rules_gets_one_refusal_and_the_end(
    daemon: Running, name: str
) -> None:
    wire = Wire.unix(daemon.socket)
    wire.sock.sendall(GARBAGE[name])
    with pytest.raises(errors.InvalidRequest):
        wire.receive_answer()
    assert wire.is_closed()
    assert is_alive(daemon)


def test_frame_truncated_by_a_dying_peer_leaves_nothing(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    whole = frames.encode(Kind.REQUEST, Method.LOOKUP, 5, bytes(1000))
    engine.wire.sock.sendall(whole[:500])
    engine.close()
    assert is_alive(daemon)
    probe = Engine(daemon.socket)
    assert daemon.do(lambda: daemon.daemon.core.status(0.0)).sessions == 1
    probe.close()


def test_map_of_many_segments_among_other_calls_keeps_answers_in_place(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(60))
    for start in range(0, 60, 20):
        parent = engine.grant.root_digest if not start else hashes[32 * start - 32 : 32 * start]
        part = hashes[32 * start : 32 * start + 640]
        reserved = engine.reserve(part, parent_hash=parent, first_page=start)
        columns = engine.stage(20)
        engine.call(Method.SEAL, pb.SealRequest, reservation_id=reserved.reservation_id, **columns)
    hit = engine.lookup(hashes)
    assert hit.boundary_pages == 60
    places = np.concatenate([np.frombuffer(part.places, PLACE) for part in hit.columns])
    ids = sorted(set(places["segment"].tolist()))
    calls: list[tuple[Method, int]] = []
    for _ in range(20):
        lookup = pb.LookupRequest(session_id=engine.session_id, path_hashes=hashes)
        lookup.needs.append(pb.Need(layout=0, all=pb.NeedAll()))
        calls.append((Method.LOOKUP, engine.wire.send(Method.LOOKUP, lookup)))
        request = pb.MapRequest(session_id=engine.session_id, segment_ids=ids, staging=True)
        calls.append((Method.MAP, engine.wire.send(Method.MAP, request)))
    for method, call_id in calls:
        header, _, _ = engine.wire.receive()
        assert (header.method, header.call_id, header.kind) == (method, call_id, Kind.REPLY)
    assert len(engine.wire.descriptors) == 20 * (len(ids) + 1)


def test_peer_that_reads_nothing_does_not_hold_the_others_up(daemon: Running) -> None:
    engine, deaf = Engine(daemon.socket), Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(60))[: 32 * 20]
    engine.put(hashes)
    lookup = pb.LookupRequest(session_id=deaf.session_id, path_hashes=hashes, max_lineage=255)
    lookup.needs.append(pb.Need(layout=0, all=pb.NeedAll()))
    body = lookup.SerializeToString()
    flood = frames.encode(Kind.REQUEST, Method.LOOKUP, 1, body) * 50

    def send() -> None:
        try:
            while True:
                deaf.wire.sock.sendall(flood)
        except OSError:
            return  # refused further bytes, or closed below: as it should be

    deaf.wire.sock.settimeout(2.0)
    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(50):
        assert engine.lookup(hashes).boundary_pages == 20
    thread.join()
    connection = next(c for c in daemon.daemon.carriers.local.connections if c.is_held_back)
    assert connection.unsent_bytes < 32 * MIB
    deaf.close()
    assert is_alive(daemon)


def test_seals_in_flight_beyond_the_limit_wait_and_all_are_answered(tmp_path: pathlib.Path) -> None:
    with running(config_of(tmp_path, limits__calls_per_connection=2)) as daemon:
        engine = Engine(daemon.socket)
        hashes = chain(engine.grant.root_digest, range(32))
        reserved, columns = engine.reserve(hashes), engine.stage(32)
        rows = np.frombuffer(columns["pages"], "<u4")
        for page in range(32):
            mine = np.flatnonzero(rows == page)
            part = {
                "pages": rows[mine].tobytes(),
                "layouts": bytes(columns["layouts"][i] for i in mine),
                "staging_offsets": np.frombuffer(columns["staging_offsets"], "<u8")[mine].tobytes(),
            }
            request = pb.SealRequest(
                session_id=engine.session_id,
                reservation_id=reserved.reservation_id,
                keep_open=True,
                **part,
            )
            engine.wire.send(Method.SEAL, request)
        for _ in range(32):
            answer, _ = engine.wire.receive_answer()
            assert bytes(answer.results) == b"\1\1"  # type: ignore[attr-defined]
        assert engine.lookup(hashes).boundary_pages == 32


def test_socket_file_has_its_mode_and_goes_with_the_daemon(tmp_path: pathlib.Path) -> None:
    config = config_of(tmp_path)
    path = pathlib.Path(config.listen.socket)
    with running(config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()


def test_socket_file_left_by_a_dead_daemon_is_replaced(tmp_path: pathlib.Path) -> None:
    config = config_of(tmp_path)
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(config.listen.socket)
    dead.close()
    with running(config) as daemon:
        assert is_alive(daemon)


def test_socket_of_a_living_daemon_is_refused_and_left_alone(tmp_path: pathlib.Path) -> None:
    config = config_of(tmp_path)
    with running(config) as daemon:
        with pytest.raises(errors.ConfigError, match="another daemon listens"), running(config):
            pass
        assert is_alive(daemon)


def test_socket_path_that_is_a_file_or_too_long_is_refused(tmp_path: pathlib.Path) -> None:
    config = config_of(tmp_path)
    pathlib.Path(config.listen.socket).write_text("precious")
    with pytest.raises(errors.ConfigError, match="is not a socket"), running(config):
        pass
    assert pathlib.Path(config.listen.socket).read_text() == "precious"
    long = config_of(tmp_path, listen__socket=str(tmp_path / ("x" * 108)))
    with pytest.raises(errors.ConfigError, match="limit 107"), running(long):
        pass


def test_connections_beyond_the_limit_are_closed(tmp_path: pathlib.Path) -> None:
    with running(
        config_of(
            tmp_path, limits__connections=2, limits__sessions=2, limits__sessions_per_domain=2
        )
    ) as daemon:
        engines = [Engine(daemon.socket), Engine(daemon.socket)]
        assert Wire.unix(daemon.socket).is_closed()
        engines[0].close()
        daemon.do(lambda: None)
        assert is_alive(daemon)


def test_connection_that_says_nothing_is_closed(tmp_path: pathlib.Path) -> None:
    with running(config_of(tmp_path, deadlines__handshake=0.1)) as daemon:
        assert Wire.unix(daemon.socket).is_closed()
        engine = Engine(daemon.socket)
        assert engine.lookup(bytes(32)).boundary_pages == 0


def test_layouts_of_two_sizes_share_one_session(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    sizes = [grant.block_bytes for grant in engine.grant.layouts]
    assert sizes == [KV.block_bytes(), ANCHOR.block_bytes()]
    assert all(grant.slot_bytes % 4096 == 0 for grant in engine.grant.layouts)
