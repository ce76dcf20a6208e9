"""Goal: a dead, hung, restarted or slow daemon is a miss in time, and never wrong bytes.
Method: a daemon process that is killed, frozen and started again under a client's feet; a fake one
whose answers come late.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.client import AsyncClient, Client, NeedAll
from anchorstore.clock import ManualClock
from anchorstore.errors import AnchorStoreError, BootChanged, InvalidRequest, Unavailable
from anchorstore.testing.canned import CannedDaemon
from anchorstore.testing.daemon import Daemon
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store
from tests.integration.client_world import (
    ANCHOR,
    KV,
    LAYOUTS,
    OPTIONS,
    WAIT_SECONDS,
    Pages,
    eventually,
    namespace,
    pages,
    stored,
)
from tests.integration.faces import Face

ALL_KV = [NeedAll(0)]
HASTY = dataclasses.replace(OPTIONS, retry_seconds=0.05)
SHORT_SECONDS = 0.2  # for calls that get no answer
Connect = Callable[..., Any]


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    running = Daemon(tmp_path / "daemon")
    running.start()
    yield running
    running.thaw()
    if running.is_running:
        running.stop()


@pytest.fixture(params=["unix", "tcp"])
def connect(request: pytest.FixtureRequest, daemon: Daemon, face: Face) -> Iterator[Connect]:
    address = daemon.address if request.param == "unix" else daemon.tcp_address
    made: list[Any] = []

    def connect_one(**arguments: Any) -> Any:
        given = {"namespace": namespace(), "layouts": LAYOUTS, "options": OPTIONS, **arguments}
        made.append(face.connect(address, **given))
        return made[-1]

    yield connect_one
    for client in made:
        client.close()


def miss_of(client: Any, hashes: bytes, deadline_seconds: float = WAIT_SECONDS) -> str:
    """The miss reason; the deadline is short only where the daemon is known to hang."""
    with client.lookup(hashes, ALL_KV, deadline_seconds=deadline_seconds) as window:
        reason: str = window.miss
        return reason


def test_client_before_its_daemon_misses_and_attaches_later(
    tmp_path: pathlib.Path, face: Face
) -> None:
    daemon = Daemon(tmp_path)
    client = face.connect(daemon.address, namespace=namespace(), layouts=LAYOUTS, options=HASTY)
    assert not client.attached and client.path_hashes(range(64)) == b""
    assert miss_of(client, bytes(32)) == "unreachable"
    assert client.put(None, 0, bytes(32), {0: [bytes(KV.block_bytes())]}).reason == "unreachable"
    with daemon:
        eventually(lambda: miss_of(client, b"") == "not_stored")
        made = stored(client, 2)
        assert miss_of(client, made.hashes) == ""
        client.close()


def test_daemon_killed_between_lookup_and_read_leaves_whole_bytes_or_none(
    connect: Connect, daemon: Daemon
) -> None:
    client = connect(options=HASTY)
    made = stored(client, 4)
    loaded = client.lookup(made.hashes, ALL_KV)
    loaded.blocks(0).load()
    unread = client.lookup(made.hashes, ALL_KV)
    daemon.kill()
    out = np.empty((4, KV.block_bytes()), np.uint8)
    loaded.blocks(0).copy_into(out)  # what is mapped or fetched stays: nobody else can write it
    assert (out == made.kv).all()
    loaded.verify()
    try:  # on this host what is mapped still, for a second; from another nothing
        unread.blocks(0).copy_into(out)
    except Unavailable:
        pass
    else:
        assert client.address.startswith("unix") and (out == made.kv).all()
    assert miss_of(client, made.hashes) in ("unreachable", "deadline")
    daemon.start()
    eventually(lambda: miss_of(client, made.hashes) == "not_stored")
    for window in (loaded, unread):
        with pytest.raises(BootChanged):
            window.verify()
        window.release()
    again = client.put(None, 0, made.hashes, made.blocks())
    assert again.sealed == 8 and miss_of(client, made.hashes) == ""
    assert client.counters()["sessions"] == 2


def test_daemon_restarted_unseen_is_a_miss_within_the_same_call(
    connect: Connect, daemon: Daemon
) -> None:
    client = connect()
    made = stored(client, 2)
    daemon.restart()
    assert miss_of(client, made.hashes) == "not_stored"
    assert client.attached and client.counters()["sessions"] == 2


def get_of(client: Any, made: Pages) -> int:
    copied: int = client.get(made.hashes, 0, bytearray(made.kv.nbytes))
    return copied


ASKED: dict[str, tuple[Callable[[Any, Pages], Any], Any]] = {
    "lookup": (lambda client, made: miss_of(client, made.hashes), "not_stored"),
    "get": (get_of, 0),
    "put": (lambda client, made: client.put(None, 0, made.hashes, made.blocks()).sealed, 6),
}
"""Calls that name pages, and what they come to with a daemon that is empty."""


@pytest.mark.parametrize("call", ASKED)
def test_daemon_started_again_with_a_larger_limit_takes_the_next_call(
    call: str, tmp_path: pathlib.Path, face: Face
) -> None:
    ask, outcome = ASKED[call]
    with Daemon(tmp_path, settings={"limits.pages_per_call": "2"}) as small:
        client = face.connect(small.address, namespace=namespace(), layouts=LAYOUTS, options=HASTY)
        made = pages(client, 3)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="3 pages, limit 2 in one call"):
                ask(client, made)
        assert client.counters()["connections"] == 1
    with Daemon(tmp_path, settings={"limits.pages_per_call": "4"}):
        assert ask(client, made) == outcome
        assert client.max_pages == 4 and client.counters()["sessions"] == 2
        with pytest.raises(InvalidRequest, match="5 pages, limit 4 in one call"):
            ask(client, pages(client, 5))
        client.close()


def test_call_beyond_the_limit_of_a_daemon_that_is_gone_is_a_miss(
    tmp_path: pathlib.Path, face: Face
) -> None:
    with Daemon(tmp_path, settings={"limits.pages_per_call": "2"}) as daemon:
        given = {"namespace": namespace(), "layouts": LAYOUTS, "options": OPTIONS}
        client = face.connect(daemon.address, **given)
        made = pages(client, 3)
    assert miss_of(client, made.hashes) == "unreachable"
    assert client.put(None, 0, made.hashes, made.blocks()).reason == "unreachable"
    assert get_of(client, made) == 0
    client.close()


def test_frozen_daemon_is_a_miss_and_comes_back_on_the_same_connection(
    connect: Connect, daemon: Daemon
) -> None:
    clock = ManualClock()
    client = connect(clock=clock)
    made = stored(client, 3)
    daemon.freeze()
    assert miss_of(client, made.hashes, SHORT_SECONDS) == "deadline"
    assert miss_of(client, made.hashes) == "deadline"  # not even tried
    assert client.put(None, 0, made.hashes, made.blocks()).reason == "deadline"
    daemon.thaw()
    clock.advance(1.0)
    out = np.empty((3, KV.block_bytes()), np.uint8)
    with client.lookup(made.hashes, ALL_KV) as window:
        window.blocks(0).copy_into(out)
    assert (out == made.kv).all() and client.counters()["connections"] == 1


async def test_call_that_is_cancelled_leaves_the_connection_usable(daemon: Daemon) -> None:
    async with await AsyncClient.connect(
        daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
    ) as client:
        hashes = client.path_hashes(range(256))
        made = [bytes([page]) * KV.block_bytes() for page in range(4)]
        assert (await client.put(None, 0, hashes, {0: made})).sealed == 4
        daemon.freeze()
        call = asyncio.ensure_future(hit_of(client, hashes))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        daemon.thaw()
        assert await hit_of(client, hashes)
        assert client.counters()["connections"] == 1


async def hit_of(client: AsyncClient, hashes: bytes) -> bool:
    async with client.lookup(hashes, ALL_KV) as window:
        return window.hit


def test_daemon_frozen_for_long_is_found_again(connect: Connect, daemon: Daemon) -> None:
    clock = ManualClock()
    client = connect(clock=clock)
    made = stored(client, 2)
    daemon.freeze()
    for _ in range(4):
        assert miss_of(client, made.hashes, SHORT_SECONDS) == "deadline"
        clock.advance(1.0)
    daemon.thaw()
    eventually(lambda: miss_of(client, made.hashes) in ("", "not_stored"))


def test_daemon_frozen_in_mid_put_seals_right_bytes_or_none(
    connect: Connect, daemon: Daemon
) -> None:
    """The client gives up on a put and writes other bytes; the daemon wakes up in between."""
    options = dataclasses.replace(HASTY, staging_bytes=4 * KV.block_bytes())
    client = connect(options=options)
    first, second = pages(client, 4, seed=1), pages(client, 4, seed=2)
    reservation = client.reserve(None, 0, first.hashes, layouts=[0])
    for page in range(4):
        reservation.buffer(page, 0)[:] = memoryview(first.kv[page])
    daemon.freeze()
    outcome = reservation.seal(deadline_seconds=SHORT_SECONDS)
    assert (outcome.sealed, outcome.reason) == (0, "deadline")
    daemon.thaw()
    eventually(lambda: client.put(None, 0, second.hashes, {0: second.kv}).declined == 0)
    for made in (first, second):
        with client.lookup(made.hashes, ALL_KV) as window:
            out = np.empty((window.resume_pages, KV.block_bytes()), np.uint8)
            if window.hit:
                window.blocks(0).copy_into(out)
                assert (out == made.kv[: len(out)]).all()


def test_session_ended_by_another_process_is_attached_again_in_the_same_call(
    connect: Connect, face: Face
) -> None:
    client = connect()
    made = stored(client, 2)
    window = client.lookup(made.hashes, ALL_KV)
    other = Client.join(client.session_token, options=OPTIONS)
    end_session(other)
    assert miss_of(client, made.hashes) == ""
    assert client.counters()["sessions"] == 2
    with pytest.raises(AnchorStoreError, match="has ended"):
        window.verify()
    window.release()
    other.close()


def end_session(joined: Client) -> None:
    """Sends a Detach, which a joined client's close() never does."""
    from anchorstore.client.effects import Call, Enter

    session = joined._session

    def steps() -> Any:
        yield Enter(session.until(None))
        assert session.attachment is not None
        body = store.DetachRequest(session_id=session.attachment.session_id).SerializeToString()
        yield Call(Method.DETACH, (body,), session.until(None))

    joined._run(steps())


class SlowDaemon:
    """Answers each Lookup with its own boundary; the second one only when it is told to."""

    def __init__(self) -> None:
        self.may_answer, self.lookups = threading.Event(), 0
        self.released: list[int] = []

    def attach(self, request: Any) -> store.AttachResponse:
        grants = [
            store.LayoutGrant(block_bytes=layout.block_bytes(), slot_bytes=2**15)
            for layout in (KV, ANCHOR)
        ]
        return store.AttachResponse(
            session_id=b"s" * 16,
            boot_id=b"b" * 16,
            root_digest=b"r" * 32,
            layouts=grants,
            max_pages=64,
            read_ttl_ms=10_000,
        )

    def lookup(self, request: Any) -> store.LookupResponse:
        self.lookups += 1
        number = self.lookups
        self.released += request.release_leases
        if number == 2:
            assert self.may_answer.wait(20.0)
        reply = store.LookupResponse(
            boundary_pages=number, resume_pages=number, lease_id=100 + number
        )
        reply.columns.add()
        return reply


def test_reply_after_its_deadline_is_not_taken_for_the_next_one(
    tmp_path: pathlib.Path, face: Face
) -> None:
    slow = SlowDaemon()
    answers = {Method.ATTACH: slow.attach, Method.LOOKUP: slow.lookup}
    with CannedDaemon(tmp_path / "s.sock", answers) as daemon:
        client = face.connect(
            f"unix://{tmp_path / 's.sock'}",
            namespace=namespace(),
            layouts=LAYOUTS,
            options=dataclasses.replace(HASTY, release_linger_seconds=60.0),  # for lookups alone
        )
        seen = []
        for deadline in (WAIT_SECONDS, SHORT_SECONDS):
            with client.lookup(bytes(32), ALL_KV, deadline_seconds=deadline) as window:
                seen.append((window.miss, window.boundary_pages))
        assert seen == [("", 1), ("deadline", 0)]
        slow.may_answer.set()

        def third() -> bool:
            with client.lookup(bytes(32), ALL_KV) as window:
                seen.append((window.miss, window.boundary_pages))
                return bool(window.hit)

        eventually(third)
        assert seen[-1] == ("", 3)
        assert miss_of(client, bytes(32)) == ""
        assert {101, 102} <= set(slow.released)  # the late reply's lease, too
        client.close(deadline_seconds=0.01)
        assert daemon.requests


def test_many_threads_share_a_client(daemon: Daemon) -> None:
    client = Client.connect(daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS)
    made = [stored(client, 3, seed) for seed in range(4)]
    failures: list[str] = []

    def work(number: int) -> None:
        out = np.empty((3, KV.block_bytes()), np.uint8)
        for turn in range(40):
            wanted = made[(number + turn) % 4]
            with client.lookup(wanted.hashes, ALL_KV) as window:
                window.blocks(0).copy_into(out)
            if not (out == wanted.kv).all():
                failures.append(f"thread {number}, turn {turn}")
            fresh = pages(client, 1, seed=1000 + 100 * number + turn)
            if client.put(None, 0, fresh.hashes, fresh.blocks()).sealed != 2:
                failures.append(f"put of thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert failures == []
