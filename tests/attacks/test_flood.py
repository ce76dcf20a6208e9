"""Goal: what one local peer sends, or does not read, never holds up or uses up what others need.

Method: raw frames: huge repeated fields, thousands of calls at once, answers that nobody reads,
frames that never end, connections that never attach; other engines are served all the while.
"""

from __future__ import annotations

import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore import errors
from anchorstore.server import dispatch
from anchorstore.server.local import CALLS_PER_TURN
from anchorstore.transport import frames
from anchorstore.transport.frames import HEADER_BYTES, Kind, Method, Parser
from anchorstore.transport.segment import PLACE
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import WAIT_SECONDS, Engine, Running, Wire, chain, config_of, running

SHORT = {"deadlines__handshake": 0.5, "deadlines__frame": 0.5, "deadlines__idle_write": 0.5}
MANY_IDS = [1] * 1_000_000


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Running]:
    with running(config_of(tmp_path, **SHORT)) as here:
        yield here


def descriptors() -> int:
    """Open ones of this process, which is the daemon's, too."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Method.RELEASE, pb.ReleaseRequest(lease_ids=MANY_IDS)),
        (Method.RENEW, pb.RenewRequest(lease_ids=MANY_IDS)),
        (Method.LOOKUP, pb.LookupRequest(path_hashes=bytes(32), release_leases=MANY_IDS)),
        (Method.RESERVE, pb.ReserveRequest(parent_hash=bytes(32), layouts=MANY_IDS)),
        (Method.MAP, pb.MapRequest(segment_ids=MANY_IDS)),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_a_million_ids_in_one_call_are_refused_in_a_short_line(
    daemon: Running, method: Method, message: Any
) -> None:
    engine = Engine(daemon.socket)
    message.session_id = engine.session_id
    with pytest.raises(errors.InvalidRequest, match=r"1000000 .*limit") as refusal:
        engine.wire.call(method, message)
    assert len(str(refusal.value)) < 200


def test_reserve_of_a_million_layouts_while_draining_is_refused(daemon: Running) -> None:
    """The verdicts, one a page and layout, would be 16 GB."""
    engine = Engine(daemon.socket)
    daemon.do(lambda: setattr(daemon.daemon.service, "is_draining", True))
    with pytest.raises(errors.InvalidRequest, match="1000000 entries, limit 16"):
        engine.reserve(bytes(32 * 16384), MANY_IDS)


def test_answer_beyond_the_frames_limit_is_a_refusal(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, range(60))
    assert engine.put(hashes) == b"\1" * 120
    monkeypatch.setattr(dispatch, "BODY_BYTES_MAX", 1024)
    with pytest.raises(errors.InvalidRequest, match=r"answer of \d+ bytes, limit 1024"):
        engine.lookup(hashes)
    assert engine.lookup(hashes[:32]).boundary_pages == 1


def test_thousands_of_calls_at_once_leave_others_their_turn(daemon: Running) -> None:
    flooder, other = Engine(daemon.socket), Engine(daemon.socket)
    answered: list[str] = []
    observer = daemon.daemon.metrics
    observer.call_ended = lambda name, *_: answered.append(name)  # type: ignore[method-assign]
    body = pb.RenewRequest(session_id=flooder.session_id).SerializeToString()
    calls = 2000
    go_on = threading.Event()
    daemon.loop.call_soon_threadsafe(go_on.wait, WAIT_SECONDS)  # until both have sent
    flooder.wire.sock.sendall(frames.encode(Kind.REQUEST, Method.RENEW, 1, body) * calls)
    other.wire.send(Method.RELEASE, pb.ReleaseRequest(session_id=other.session_id))
    go_on.set()
    other.wire.receive_answer()
    for _ in range(calls):
        flooder.wire.receive_answer()
    assert answered.count("renew") == calls
    assert answered.index("release") <= 2 * CALLS_PER_TURN


def test_maps_whose_answers_nobody_reads_take_no_descriptors(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    hashes = chain(engine.grant.root_digest, [1])
    engine.put(hashes)
    segment = int(np.frombuffer(engine.lookup(hashes).columns[0].places, PLACE)["segment"][0])
    request = pb.MapRequest(session_id=engine.session_id, segment_ids=[segment] * 250)
    flooder, most = Engine(daemon.socket), 0
    flooder.wire.call(Method.JOIN, pb.JoinRequest(protocol_version=1, session_id=engine.session_id))
    before, deadline = descriptors(), time.monotonic() + WAIT_SECONDS
    flooder.wire.sock.settimeout(0.01)
    cut_off = False
    while not cut_off:
        assert time.monotonic() < deadline, "a peer that reads nothing is never cut off"
        try:
            flooder.wire.send(Method.MAP, request)
        except TimeoutError:
            pass  # the daemon has stopped reading
        except OSError:
            cut_off = True
        most = max(most, descriptors())
    assert most <= before + 2 * 250 + 8
    assert descriptors() <= before
    assert engine.lookup(hashes).boundary_pages == 1


def test_connection_that_makes_only_refused_calls_does_not_stay(daemon: Running) -> None:
    wire = Wire.unix(daemon.socket)
    with pytest.raises(errors.UnknownSession):
        wire.call(Method.RELEASE, pb.ReleaseRequest(session_id=b"x" * 16))
    assert wire.is_closed()


def test_frame_that_never_ends_does_not_stay(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    engine.wire.sock.sendall(frames.encode(Kind.REQUEST, Method.LOOKUP, 1, bytes(100))[:-1])
    assert engine.wire.is_closed()


def test_connection_that_waits_between_frames_stays(daemon: Running) -> None:
    """The frame's limit runs while a frame is under way, and at no other time."""
    engine = Engine(daemon.socket)
    request = pb.ReleaseRequest(session_id=engine.session_id).SerializeToString()
    frame = frames.encode(Kind.REQUEST, Method.RELEASE, 1, request)
    for _ in range(3):
        engine.wire.sock.sendall(frame[:30])
        time.sleep(0.1)
        engine.wire.sock.sendall(frame[30:])
        engine.wire.receive_answer()
        time.sleep(0.3)


def test_frame_in_many_pieces_is_not_copied_for_each() -> None:
    frame = frames.encode(Kind.REQUEST, Method.LOOKUP, 1, bytes(frames.BODY_BYTES_MAX))
    parser, started = Parser(), time.monotonic()
    pieces = [frame[at : at + 256] for at in range(0, len(frame), 256)]
    found = [cut for piece in pieces for cut in parser.feed(piece)]
    assert [len(cut.body) for cut in found] == [len(frame) - HEADER_BYTES]
    assert time.monotonic() - started < 5  # copied for each: 130 GB, a minute
