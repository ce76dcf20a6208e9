"""Goal: a remote peer cannot make the daemon hold memory that nothing accounts for.

Method: raw frames on TCP: headers that promise a body, sessions that end while their staging
memory is still in use elsewhere, a host that gives no thread; memory is read from /proc.
"""

from __future__ import annotations

import pathlib
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from anchorstore import errors
from anchorstore.transport import frames
from anchorstore.transport.frames import HEADER, Kind, Method
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import (
    MIB,
    WAIT_SECONDS,
    Engine,
    Running,
    Wire,
    attach_request,
    config_of,
    running,
)


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Running]:
    with running(config_of(tmp_path, listen__tcp="127.0.0.1:0")) as here:
        yield here


def resident_mib(kind: str) -> int:
    """RssAnon or RssShmem of this process, which is the daemon's, too."""
    found = re.search(rf"^{kind}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) // 1024


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def test_bodies_promised_but_never_sent_take_no_memory(daemon: Running) -> None:
    before, count = resident_mib("RssAnon"), 40
    header = HEADER.pack(b"AS", 1, Kind.REQUEST, Method.ATTACH, 0, 1, frames.BODY_BYTES_MAX, 0)
    wires = [Wire.tcp(daemon.tcp) for _ in range(count)]
    for wire in wires:
        wire.sock.sendall(header + b"x")
    remote = daemon.daemon.carriers.remote
    assert remote is not None
    eventually(lambda: remote.connections_open == count)
    time.sleep(0.2)  # a daemon that believed the headers would have 320 MiB by now
    assert resident_mib("RssAnon") - before < 64


def test_staging_of_ended_sessions_goes_back_while_the_connection_stays(daemon: Running) -> None:
    wire = Wire.tcp(daemon.tcp)
    before = resident_mib("RssShmem")
    for _ in range(12):
        session = wire.call(Method.ATTACH, attach_request(staging_bytes=8 * MIB)).session_id
        write = pb.WriteRequest(session_id=session)
        wire.call(Method.WRITE, write, payload=b"x" * (8 * MIB))
        wire.call(Method.DETACH, pb.DetachRequest(session_id=session))
    assert daemon.daemon.service.stagings.used_bytes == 0
    assert resident_mib("RssShmem") - before <= 16
    with pytest.raises(errors.UnknownSession):
        wire.call(Method.WRITE, write, payload=b"x")


def test_staging_of_an_ended_session_goes_back_though_a_client_maps_it(daemon: Running) -> None:
    engine = Engine(daemon.socket)
    assert engine.staging is not None
    engine.staging[:] = b"x" * len(engine.staging)
    engine.call(Method.DETACH, pb.DetachRequest)
    assert engine.staging[:] == bytes(len(engine.staging))


def test_write_after_another_connection_ended_the_session_is_refused(daemon: Running) -> None:
    first, second = Wire.tcp(daemon.tcp), Wire.tcp(daemon.tcp)
    session = first.call(Method.ATTACH, attach_request()).session_id
    second.call(Method.JOIN, pb.JoinRequest(protocol_version=1, session_id=session))
    write = pb.WriteRequest(session_id=session)
    second.call(Method.WRITE, write, payload=b"x")
    first.call(Method.DETACH, pb.DetachRequest(session_id=session))
    with pytest.raises(errors.UnknownSession):
        second.call(Method.WRITE, write, payload=b"x")


def test_host_without_threads_refuses_one_connection_and_goes_on(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def no_thread(self: threading.Thread) -> None:
        if not refused and "_serve" in self.name:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert Wire.tcp(daemon.tcp).is_closed()
    assert Wire.tcp(daemon.tcp).call(Method.ATTACH, attach_request()).session_id
    assert len(refused) == 1
