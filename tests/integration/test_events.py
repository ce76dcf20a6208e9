"""Engines that tell of their own caches, over a real socket.

Goal: what no engine holds any more leaves memory first, pins hold, and both end with the engine
that said so, kill -9 included; hostile batches are refused and harm nobody; a client's publisher
never holds its engine up, whatever the daemon does.  Method: a daemon with a pool of a few segments
over a small device, plain frames for what a polite client would not send.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from anchorstore.client import Client, NeedAll
from anchorstore.client import events as client_events
from anchorstore.errors import InvalidRequest, UnknownSession
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.client_world import ANCHOR, KV, OPTIONS, eventually, namespace, stored
from tests.integration.harness import Engine, Running, Wire, running
from tests.integration.tiered import counter, put, tiered, until

STORED, REMOVED, PINNED = 1, 2, 4
PUT_PAGES = 6


def tell(engine: Engine, kind: int, hashes: bytes, **fields: object) -> pb.EventsResponse:
    """One kind of event for each page."""
    kinds = bytes([kind]) * (len(hashes) // 32)
    answer: pb.EventsResponse = engine.call(
        Method.EVENTS, pb.EventsRequest, kinds=kinds, path_hashes=hashes, **fields
    )
    return answer


def gauge(here: Running, name: str) -> int:
    """A number of the daemon's status."""
    return int(here.do(lambda: here.daemon.core.status(0.0).counters[name]))


@pytest.fixture
def here(tmp_path: pathlib.Path) -> Iterator[Running]:
    """A daemon that mirrors its engines, two tiers."""
    with running(tiered(tmp_path)) as daemon:
        yield daemon


def where(here: Running, hashes: bytes) -> list[set[str]]:
    """The tiers that hold something of each page."""

    def look() -> dict[bytes, set[str]]:
        found: dict[bytes, set[str]] = {}
        core = here.daemon.core
        for space in core.status(0.0).namespaces:
            for page in core.list_pages(space.root_digest, 0, 10_000).pages:
                found[page.path_hash] = {tier for block in page.blocks for tier in block.tiers}
        return found

    held = here.do(look)
    return [held.get(hashes[at : at + 32], set()) for at in range(0, len(hashes), 32)]


def test_removed_pages_leave_memory_before_held_ones(here: Running) -> None:
    engine, other = Engine(here.socket), Engine(here.socket)
    runs = [put(here, 100 * seed) for seed in range(1, 7)]
    written = 2 * PUT_PAGES * len(runs)
    until(lambda: counter(here, "nvme_blocks_written") == written, "written behind")
    assert tell(engine, STORED, b"".join(runs)).is_new
    tell(other, STORED, runs[4])
    tell(engine, REMOVED, runs[3] + runs[4])
    before = here.do(lambda: here.daemon.core.counters["pages_demoted"])
    assert before == 0 and counter(here, "pages_let_go") == PUT_PAGES, "one is held by the other"

    def squeeze() -> None:
        core = here.daemon.core
        dram = core._state.dram
        dram.high_watermark = dram.low_watermark = 1e-6
        core.evict_step(0.0, PUT_PAGES)
        dram.high_watermark = dram.low_watermark = 1.0

    here.do(squeeze)
    demoted = [run for run in runs for tiers in [where(here, run)] if {"nvme"} in tiers]
    assert demoted == [runs[3]], "used later than the first three, but nobody holds it"
    engine.close()
    other.close()


def test_pins_and_heat_end_with_a_killed_engine(here: Running) -> None:
    hashes = put(here, 1)
    code = textwrap.dedent(
        """
        import sys, time
        from tests.integration.test_events import Engine, tell, PINNED, STORED
        engine = Engine(sys.argv[1])
        hashes = bytes.fromhex(sys.argv[2])
        tell(engine, STORED, hashes); tell(engine, PINNED, hashes)
        print("told", flush=True)
        time.sleep(600)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, here.socket, hashes.hex()],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "told\n"
        assert gauge(here, "pinned_pages") == PUT_PAGES and gauge(here, "engines") == 1
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    until(lambda: gauge(here, "pinned_pages") == gauge(here, "engines") == 0, "pins are gone")
    until(lambda: counter(here, "pages_let_go") == PUT_PAGES, "so is the heat")


@pytest.mark.parametrize(
    "fields",
    [
        {"kinds": b"\1", "path_hashes": bytes(64)},
        {"kinds": b"\1\1", "path_hashes": bytes(32)},
        {"kinds": b"\1", "path_hashes": bytes(31)},
        {"kinds": b"\0", "path_hashes": bytes(32)},
        {"kinds": b"\xff", "path_hashes": bytes(32)},
        {"kinds": b"\1" * 16_385, "path_hashes": bytes(32) * 16_385},
    ],
    ids=["more hashes", "fewer hashes", "part of one", "kind 0", "kind 255", "too many"],
)
def test_batches_that_break_a_rule_are_refused(here: Running, fields: dict[str, bytes]) -> None:
    engine = Engine(here.socket)
    with pytest.raises(InvalidRequest):
        engine.call(Method.EVENTS, pb.EventsRequest, **fields)
    assert tell(engine, STORED, b"").is_new, "and the session lives on"
    engine.close()


def test_foreign_sessions_cannot_be_told_for(here: Running) -> None:
    engine, stranger = Engine(here.socket), Wire.unix(here.socket)
    with pytest.raises(UnknownSession):
        stranger.call(Method.EVENTS, pb.EventsRequest(session_id=engine.session_id))


def test_hostile_streams_leave_every_invariant(here: Running) -> None:
    source = random.Random(5)
    hashes = put(here, 1) + put(here, 1000) + bytes(32) + b"\xff" * 32
    engines = [Engine(here.socket) for _ in range(3)]
    for step in range(200):
        engine = source.choice(engines)
        pages = [32 * source.randrange(len(hashes) // 32) for _ in range(source.randrange(64))]
        engine.call(
            Method.EVENTS,
            pb.EventsRequest,
            kinds=bytes(source.randint(1, 5) for _ in pages),
            path_hashes=b"".join(hashes[at : at + 32] for at in pages),
            cleared=not source.randrange(8),
            dropped=source.choice((0, 2**64 - 1)),
        )
        if not step % 20:
            assert here.do(here.daemon.core.check) == []
    assert counter(here, "events_unknown") > 0
    for engine in engines:
        engine.close()
    until(lambda: gauge(here, "engines") == 0, "they are gone")
    assert gauge(here, "pinned_bytes") == 0


# ---- the client's publisher ----


def connected(here: Running, deadline_seconds: float = OPTIONS.deadline_seconds) -> Client:
    options = dataclasses.replace(OPTIONS, deadline_seconds=deadline_seconds)
    return Client.connect(
        f"unix://{here.socket}", namespace=namespace(), layouts=[KV, ANCHOR], options=options
    )


def test_publisher_tells_what_it_is_told(here: Running) -> None:
    with connected(here) as client:
        made = stored(client, 4)
        events = client.events()
        assert client.events() is events
        events.stored(made.hashes)
        events.pinned(made.hashes[-32:])
        events.removed(made.hashes[:32])
        events.touched(bytes(32))
        eventually(lambda: client.counters()["events_sent"] == 7)
        assert client.counters()["events_unknown"] == 1
        assert gauge(here, "pinned_pages") == 1 and counter(here, "pages_let_go") == 1
        events.unpinned(made.hashes[-32:])
        eventually(lambda: gauge(here, "pinned_pages") == 0)
    eventually(lambda: gauge(here, "engines") == 0)


def test_publisher_of_an_absent_daemon_drops_and_goes_on(tmp_path: pathlib.Path) -> None:
    client = Client.connect(
        f"unix://{tmp_path}/nobody.sock", namespace=namespace(), layouts=[KV], options=OPTIONS
    )
    events, epoch = client.events(queue_pages=8), client.events().epoch
    for _ in range(100):
        events.stored(bytes(32))
    assert events.epoch is not epoch and client.counters()["events_dropped"] == 99
    client.close()
    events.stored(bytes(32))
    eventually(lambda: "anchorstore-events" not in [t.name for t in threading.enumerate()])


def test_publisher_begins_anew_after_a_restart(tmp_path: pathlib.Path) -> None:
    config = tiered(tmp_path)
    with running(config) as here:
        client = connected(here)
        made = stored(client, 2)
        events = client.events()
        events.stored(made.hashes)
        eventually(lambda: client.counters()["events_sent"] == 2)
        epoch = events.epoch
    with running(config) as here:
        events.removed(made.hashes)
        eventually(lambda: client.counters()["events_dropped"] == 2)
        assert events.epoch is epoch, "there is nobody to be told again"
        for _ in range(3):
            events.touched(made.hashes)
        eventually(lambda: found_again(client))
        eventually(lambda: events.epoch is not epoch)
        assert client.counters()["events_dropped"] == 8, "each counts once"
        events.stored(made.hashes)
        eventually(lambda: gauge(here, "engines") == 1)
        client.close()


def found_again(client: Client) -> bool:
    """A client finds out about a new daemon by a call."""
    client.lookup(bytes(32), [NeedAll(0, first_page=0)]).release()
    return client.attached


def test_publisher_engine_is_not_held_up_by_a_stuck_daemon(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_events, "ANSWER_SECONDS", 0.1)
    with running(tiered(tmp_path)) as here:
        client = connected(here, deadline_seconds=2.0)
        stop = threading.Event()

        async def block() -> None:
            stop.wait()

        events = client.events(queue_pages=64)
        blocked = threading.Thread(target=lambda: here.on_loop(block))
        blocked.start()
        try:
            for _ in range(1000):
                events.touched(bytes(32))
            assert int(str(client.counters()["events_dropped"])) > 0, "and we are here"
            eventually(lambda: "no events are told for" in caplog.text)
            assert "are misses" not in caplog.text, "lookups are not concerned"
        finally:
            stop.set()
            blocked.join()

        def is_told_again() -> bool:
            events.touched(bytes(32))
            return int(str(client.counters()["events_sent"])) > 0

        eventually(is_told_again)
        client.close()
