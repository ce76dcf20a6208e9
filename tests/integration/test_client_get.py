"""Goal: get() returns the sealed bytes or says that it has none, by way of the hints and without
them, whatever happens meanwhile.  Method: both faces on both carriers for the contract; then, on
the Unix socket, a kill switch, a removal, a stopped and a restarted daemon, a pool that evicts all
the time, another domain.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xxhash

from anchorstore.client import AsyncClient, Client, NeedAll
from anchorstore.errors import InvalidRequest
from anchorstore.layout import KvLayout
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
    stored,
)
from tests.integration.faces import Face

LARGE = {"tiers.dram.capacity": "128MiB", "tiers.dram.segment": "8MiB"}
SMALL = {"tiers.dram.capacity": "8MiB", "tiers.dram.segment": "1MiB"}


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


@pytest.fixture
def large_daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings=LARGE) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client.connect(
        daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
    ) as made:
        yield made


def room(count: int, layout: int = 0) -> np.ndarray:
    return np.full(count * LAYOUTS[layout].block_bytes(), 7, np.uint8)


def got(client: Any, made: Pages, layout: int = 0) -> int:
    """Pages that get() copies; those must be right."""
    out = room(len(made), layout)
    copied: int = client.get(made.hashes, layout, out, deadline_seconds=WAIT_SECONDS)
    size = LAYOUTS[layout].block_bytes()
    assert out[: copied * size].tobytes() == made.blocks()[layout][:copied].tobytes()
    return copied


def directly(client: Any) -> int:
    return int(client.counters()["direct_hits"])


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_get_copies_what_is_there_and_counts_it(daemon: Daemon, kind: str, carrier: str) -> None:
    face = Face(kind)
    address = daemon.address if carrier == "unix" else daemon.tcp_address
    with face.connect(address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS) as client:
        made = stored(client, 6)
        for _ in range(3):
            assert got(client, made) == 6
            assert got(client, made, layout=1) == 6
        part = room(2, 1)
        assert client.get(made.hashes, 1, part, first_page=4) == 2
        assert part.tobytes() == made.anchor[4:].tobytes()
        longer = dataclasses.replace(made, hashes=made.hashes + os.urandom(64))
        before = client.counters()
        assert got(client, longer) == 6
        after = client.counters()
        assert after["lookups"] == before["lookups"] + 1  # for what the hints do not know
        assert (after["direct_pages"] - before["direct_pages"]) == (6 if carrier == "unix" else 0)
        assert got(client, dataclasses.replace(made, hashes=os.urandom(64))) == 0
        assert client.get(b"", 0, room(0)) == 0
        assert directly(client) >= (6 if carrier == "unix" else 0)
        assert (carrier == "unix") == bool(directly(client))
    face.close()


def test_get_of_a_wrong_size_layout_or_page_names_it(client: Client) -> None:
    made = stored(client, 2)
    wrong: list[tuple[Any, str]] = [
        ((made.hashes, 0, room(3)), "bytes"),
        ((made.hashes, 2, room(2)), "layout 2"),
        ((made.hashes, -1, room(2)), "layout -1"),
        ((made.hashes, 1.0, room(2)), "layout 1.0"),
        ((made.hashes, "a", room(2)), "layout 'a'"),
        ((made.hashes[:-1], 0, room(2)), "32"),
        ((made.hashes, 0, bytes(room(2))), "read-only"),
    ]
    for arguments, named in wrong:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=named):
                client.get(*arguments)
            assert client.get(made.hashes, 0, room(2)) == 2  # warm the second time
    with pytest.raises(InvalidRequest, match="first page 3 of 2"):
        client.get(made.hashes, 0, room(2), first_page=3)
    with pytest.raises(InvalidRequest, match="max_lineage is 256"):
        client.get(made.hashes, 0, room(2), max_lineage=256)
    limit = client.max_pages
    assert limit is not None
    with pytest.raises(InvalidRequest, match=f"limit {limit}"):
        client.get(bytes(32 * (limit + 1)), 0, room(0), first_page=limit + 1)
    for hashes in (bytearray(made.hashes), np.frombuffer(made.hashes, np.uint8)):
        for _ in range(2):
            assert client.get(hashes, 0, room(2)) == 2  # type: ignore[arg-type]


def test_get_with_a_lineage_bound_skips_deeper_blocks(client: Client) -> None:
    exact = stored(client, 2)
    deep = stored(client, 2, seed=1)
    again = dataclasses.replace(deep, hashes=os.urandom(64))
    outcome = client.put(None, 0, again.hashes, {0: deep.kv}, lineage=3)
    assert outcome.sealed == 2
    for _ in range(2):
        assert got(client, exact) == got(client, again) == 2
        assert client.get(again.hashes, 0, room(2), max_lineage=2) == 0
        assert client.get(again.hashes, 0, room(2), max_lineage=3) == 2


def operator(daemon: Daemon, *words: str) -> None:
    command = [sys.executable, "-m", "anchorstore", *words, "--address", daemon.address]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_get_after_the_kill_switch_and_after_a_removal_finds_nothing(
    daemon: Daemon, client: Client
) -> None:
    made = stored(client, 4)
    root = client.root_digest
    assert root is not None
    assert got(client, made) == got(client, made) == 4
    before = directly(client)
    operator(daemon, "namespace", "disable", root.hex())
    for _ in range(2):
        assert got(client, made) == 0
        assert client.get(b"", 0, room(0)) == 0  # asks nobody, so it proves nothing
    operator(daemon, "namespace", "enable", root.hex())
    assert got(client, made) == got(client, made) == 4
    assert directly(client) == before + 1
    with client.lookup(made.hashes, [NeedAll(0)]) as window:
        assert window.resume_pages == 4
        operator(daemon, "remove", root.hex(), "--yes")
        assert got(client, made) == 0  # though the lease keeps the bytes
    assert got(client, made) == 0


def test_get_from_a_stopped_daemon_needs_none(daemon: Daemon, client: Client) -> None:
    made = stored(client, 4)
    assert got(client, made) == 4
    daemon.freeze()
    try:
        for _ in range(5):
            assert got(client, made) == 4
        missing = np.empty(KV.block_bytes(), np.uint8)
        assert client.get(os.urandom(32), 0, missing, deadline_seconds=0.2) == 0
    finally:
        daemon.thaw()
    eventually(lambda: client.lookup(made.hashes, [NeedAll(0)]).hit)


def test_get_after_a_restart_finds_only_what_the_new_daemon_has(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path / "one") as daemon:
        client = Client.connect(
            daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
        )
        made = stored(client, 3)
        assert got(client, made) == got(client, made) == 3
        daemon.kill()
        daemon.start()
        eventually(lambda: client.lookup(made.hashes, [NeedAll(0)]).miss == "not_stored")
        assert got(client, made) == 0
        again = stored(client, 3, seed=4)
        assert got(client, again) == got(client, again) == 3
        client.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_client_that_only_gets_notices_the_end_and_finds_the_next_daemon(
    tmp_path: pathlib.Path, end: str
) -> None:
    with Daemon(tmp_path / "one") as daemon:
        space = namespace()
        client = Client.connect(daemon.address, namespace=space, layouts=LAYOUTS, options=OPTIONS)
        made = stored(client, 3)
        assert got(client, made) == got(client, made) == 3
        daemon.kill() if end == "kill" else daemon.stop()
        eventually(lambda: got(client, made) == 0)
        daemon.start()
        with Client.connect(
            daemon.address, namespace=space, layouts=LAYOUTS, options=OPTIONS
        ) as other:
            again = stored(other, 3, seed=4)
        eventually(lambda: got(client, again) == 3)
        assert got(client, made) == 0 and client.counters()["sessions"] == 2
        client.close()


def test_get_after_its_session_was_ended_by_another_attaches_anew(client: Client) -> None:
    made = stored(client, 2)
    token = client.session_token
    assert token is not None
    joined = Client.join(token, options=OPTIONS)
    assert got(client, made) == 2
    joined._session.is_bound = True
    joined._run(_detach(joined))
    for _ in range(3):
        assert got(client, made) == 2
    joined.close()


def _detach(client: Client) -> Any:
    attachment = client._session.attachment
    assert attachment is not None
    body = (store.DetachRequest(session_id=attachment.session_id).SerializeToString(),)
    return client._session.call(Method.DETACH, lambda _: body, client._session.until(None))


def test_get_of_another_namespaces_pages_finds_none(daemon: Daemon, client: Client) -> None:
    made = stored(client, 3)
    with Client.connect(
        daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
    ) as other:
        own = stored(other, 3, seed=1)
        for _ in range(2):
            assert got(other, own) == 3  # which maps the segment that both use
            assert got(other, made) == 0


def test_get_of_replaced_and_then_removed_blocks_finds_none(large_daemon: Daemon) -> None:
    daemon = large_daemon
    client = Client.connect(daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS)
    count, out = 3000, np.empty(ANCHOR.block_bytes(), np.uint8)
    hashes = os.urandom(32 * count)
    rows = np.zeros((count, ANCHOR.block_bytes()), np.uint8)
    for lineage in (3, 0):
        for first in range(0, count, 500):
            part = hashes[32 * first : 32 * (first + 500)]
            before = hashes[32 * first - 32 : 32 * first] if first else None
            client.put(before, first, part, {1: rows[first : first + 500]}, lineage=lineage)
    root = client.root_digest
    assert root is not None
    assert client.get(hashes[:32], 1, out) == 1
    operator(daemon, "remove", root.hex(), "--yes")
    direct = client._session.direct
    assert direct is not None
    for page in range(count):
        assert direct.copy(hashes[32 * page : 32 * page + 32], 1, 255, out) == 0, page
    client.close()


async def test_cancelled_get_leaves_the_callers_memory_alone(large_daemon: Daemon) -> None:
    large = KvLayout(layers=8, heads=8, head_dim=128, dtype="bfloat16", head_start=0, head_stop=8)
    async with await AsyncClient.connect(
        large_daemon.address, namespace=namespace(), layouts=[large], options=OPTIONS
    ) as client:
        count, size = 4, large.block_bytes()
        hashes = os.urandom(32 * count)
        rows = np.full((count, size), 5, np.uint8)
        for page in range(count):
            before = hashes[32 * page - 32 : 32 * page] if page else None
            part = hashes[32 * page : 32 * page + 32]
            await client.put(before, page, part, {0: rows[page : page + 1]})
        out = np.zeros(count * size, np.uint8)
        assert await client.get(hashes, 0, out) == count
        for _ in range(20):
            task = asyncio.ensure_future(client.get(hashes, 0, out))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            out[:] = 9
            await asyncio.sleep(0.01)
            assert (out == 9).all()


def test_blocks_read_directly_stay_while_others_go(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, settings=SMALL) as daemon:
        client = Client.connect(
            daemon.address, namespace=namespace(), layouts=[ANCHOR], options=OPTIONS
        )
        kept = np.arange(4 * ANCHOR.block_bytes()).astype(np.uint8).reshape(4, -1)
        hashes = os.urandom(128)
        assert client.put(None, 0, hashes, {0: kept}).sealed == 4
        out = np.empty(kept.size, np.uint8)
        assert client.get(hashes, 0, out) == 4
        for seed in range(400):
            other = np.full((4, ANCHOR.block_bytes()), seed % 256, np.uint8)
            client.put(None, 0, os.urandom(128), {0: other})
            if seed % 10 == 0:
                assert client.get(hashes, 0, out) == 4, seed
                client.flush()
        assert out.tobytes() == kept.tobytes()
        assert directly(client) >= 40
        client.close()


def filled(path_hash: bytes, size: int) -> np.ndarray:
    """Bytes that the page's hash decides."""
    return np.frombuffer(xxhash.xxh3_128_digest(path_hash) * (size // 16), np.uint8)


def test_get_while_the_pool_turns_over_never_returns_other_bytes(tmp_path: pathlib.Path) -> None:
    size, ring = ANCHOR.block_bytes(), [os.urandom(32) for _ in range(2000)]
    wrong: list[bytes] = []
    done = threading.Event()

    def write(client: Client) -> None:
        position = 0
        while not done.is_set():
            path_hash = ring[position % len(ring)]
            client.put(None, 0, path_hash, {0: filled(path_hash, size).reshape(1, -1)})
            position += 1

    def read(client: Client, seed: int) -> None:
        source, out = np.random.default_rng(seed), np.empty(size, np.uint8)
        while not done.is_set():
            path_hash = ring[int(source.integers(len(ring)))]
            if client.get(path_hash, 0, out) and out.tobytes() != filled(path_hash, size).tobytes():
                wrong.append(path_hash)

    with Daemon(tmp_path, settings=SMALL) as daemon:
        shared = namespace()
        clients = [
            Client.connect(daemon.address, namespace=shared, layouts=[ANCHOR], options=OPTIONS)
            for _ in range(4)
        ]
        threads = [threading.Thread(target=write, args=(clients[n],)) for n in (0, 1)]
        threads += [threading.Thread(target=read, args=(clients[n], n)) for n in (2, 3)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: min(directly(client) for client in clients[2:]) > 300)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert all(client.counters()["misses"] for client in clients[2:])  # the pool did turn over
        for client in clients:
            client.close()


def test_get_of_a_daemon_without_direct_reads_asks_each_time(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, settings={"tiers.dram.direct_reads": "false"}) as daemon:
        client = Client.connect(
            daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
        )
        made = stored(client, 2)
        for _ in range(3):
            assert got(client, made) == 2
        assert directly(client) == 0 and client.counters()["lookups"] == 3
        client.close()
