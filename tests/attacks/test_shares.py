"""Goal: one domain can use up its own share of the daemon, and never the others'.

Method: one tenant takes all the sessions and connections that it can get, on each carrier; another
tenant and an operator come afterwards.
"""

from __future__ import annotations

import pathlib
import threading
import time

import pytest

from anchorstore import errors
from anchorstore.server.limits import ConnectionBudget, Place
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import WAIT_SECONDS, Engine, Running, Wire, attach_request, running
from tests.integration.test_remote import ADMIN, TOKEN_A, TOKEN_B, tcp_config

SESSIONS = {"limits__sessions": 4}  # two a domain
CONNECTIONS = {"limits__connections": 6, "limits__sessions": 6}  # three a domain


def attach(wire: Wire, token: str) -> pb.AttachResponse:
    answer: pb.AttachResponse = wire.call(Method.ATTACH, attach_request(token=token))
    return answer


def domains(daemon: Running) -> dict[str, int]:
    """Connections of each."""
    return dict(daemon.daemon.carriers.local.budget.open_of)


def eventually(daemon: Running, wanted: dict[str, int]) -> None:
    """A connection that was closed here is counted out there a moment later."""
    deadline = time.monotonic() + WAIT_SECONDS
    while domains(daemon) != wanted:
        assert time.monotonic() < deadline, domains(daemon)
        time.sleep(0.01)


def test_one_domains_sessions_leave_room_for_another(tmp_path: pathlib.Path) -> None:
    with running(tcp_config(tmp_path, **SESSIONS)) as daemon:
        greedy, other = Wire.tcp(daemon.tcp), Wire.tcp(daemon.tcp)
        grants = [attach(greedy, TOKEN_A) for _ in range(2)]
        used_bytes = daemon.daemon.service.stagings.used_bytes
        for wire in (greedy, Wire.tcp(daemon.tcp)):
            with pytest.raises(errors.CapacityFull, match="'team-a' has 2 sessions, limit 2"):
                attach(wire, TOKEN_A)
        assert daemon.daemon.service.stagings.used_bytes == used_bytes, "no trace of the refused"
        assert attach(other, TOKEN_B).domain == "team-b"
        greedy.call(Method.DETACH, pb.DetachRequest(session_id=grants[0].session_id))
        assert attach(greedy, TOKEN_A).domain == "team-a"


def test_one_domains_connections_leave_room_for_another_and_for_operators(
    tmp_path: pathlib.Path,
) -> None:
    """Connections without a session count, too: a tenant's Status is enough to stay."""
    with running(tcp_config(tmp_path, **CONNECTIONS)) as daemon:
        greedy = [Wire.tcp(daemon.tcp) for _ in range(3)]
        for wire in greedy:
            wire.call(Method.STATUS, admin_pb2.StatusRequest(token=TOKEN_A))
        more = Wire.tcp(daemon.tcp)
        with pytest.raises(errors.CapacityFull, match="'team-a' has 3 connections, limit 3"):
            attach(more, TOKEN_A)
        assert attach(more, TOKEN_B).domain == "team-b"
        operator = Wire.tcp(daemon.tcp)
        status = operator.call(Method.STATUS, admin_pb2.StatusRequest(token=ADMIN))
        assert status.sessions == 1
        assert domains(daemon) == {"team-a": 3, "team-b": 1}
        greedy[0].close()
        eventually(daemon, {"team-a": 2, "team-b": 1})
        assert attach(Wire.tcp(daemon.tcp), TOKEN_A).domain == "team-a"


def test_local_users_connections_are_their_domains(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tcp_config(tmp_path, **CONNECTIONS)) as daemon:
        monkeypatch.setattr(daemon.daemon.service.auth, "_admin_uids", set())
        engines = [Engine(daemon.socket) for _ in range(3)]
        refused = Wire.unix(daemon.socket)
        with pytest.raises(errors.CapacityFull, match="'default' has 3 connections, limit 3"):
            refused.receive_answer()
        assert refused.is_closed()
        assert attach(Wire.tcp(daemon.tcp), TOKEN_B).domain == "team-b"
        engines[0].close()
        eventually(daemon, {"default": 2, "team-b": 1})
        assert Engine(daemon.socket).grant.domain == "default"


def test_place_moves_between_domains_and_is_given_once() -> None:
    budget = ConnectionBudget(2, 1)
    first, second = budget.take(), budget.take()
    assert first is not None and second is not None and budget.take() is None
    first.claim("a")
    first.claim("a")
    with pytest.raises(errors.CapacityFull):
        second.claim("a")
    second.claim("b")
    with pytest.raises(errors.CapacityFull):
        first.claim("b")
    assert budget.open_of == {"a": 1, "b": 1}, "a refused move changes nothing"
    second.give()
    first.claim("b")
    assert (budget.open, budget.open_of) == (1, {"b": 1})
    first.give()
    with pytest.raises(AssertionError, match="twice"):
        first.give()
    assert (budget.open, budget.open_of) == (0, {})


def test_places_claimed_and_given_by_many_threads_add_up() -> None:
    budget = ConnectionBudget(6, 3)

    def come_and_go() -> None:
        for number in range(2000):
            place: Place | None = budget.take()
            if place is not None:
                try:
                    place.claim("ab"[number % 2])
                except errors.CapacityFull:
                    pass
                place.give()

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (budget.open, budget.open_of) == (0, {})
