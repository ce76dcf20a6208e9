"""Goal: on the same host blocks are read in place, read-only, and mappings go with their readers.
Method: look at this process's own mappings and at what the kernel allows on them.
"""

from __future__ import annotations

import asyncio
import gc
import pathlib
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.client import AsyncClient, Client, NeedAll
from anchorstore.errors import LeaseError, TornBlock
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import (
    KV,
    LAYOUTS,
    OPTIONS,
    Pages,
    eventually,
    namespace,
    pages,
    stored,
)

ALL_KV = [NeedAll(0)]


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    settings = {"tiers.dram.capacity": "4MiB", "tiers.dram.segment": "512KiB"}
    with Daemon(tmp_path / "daemon", settings=settings) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client.connect(
        daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
    ) as made:
        yield made


def mappings() -> dict[int, str]:
    """Address and permissions of this process's shared memfd mappings."""
    gc.collect()
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {
        int(line.split("-")[0], 16): line.split()[1]
        for line in lines
        if "memfd:" in line and line.split()[1].endswith("s")
    }


def address_of(block: memoryview) -> int:
    return int(np.frombuffer(block, np.uint8).ctypes.data)


def test_block_read_in_place_lies_in_a_read_only_mapping(client: Client) -> None:
    made = stored(client, 2)
    before = mappings()
    with client.lookup(made.hashes, ALL_KV) as window:
        assert mappings() == before, "a lookup alone maps nothing"
        block = window.blocks(0)[0]
        new = {start: mode for start, mode in mappings().items() if start not in before}
        assert list(new.values()) == ["r--s"]
        start = next(iter(new))
        assert start <= address_of(block) < start + 512 * 1024
        assert address_of(window.blocks(0)[0]) == address_of(block)
        with pytest.raises(TypeError):
            block[0] = 1


def test_mapping_is_used_again_by_the_next_window(client: Client) -> None:
    made = stored(client, 2)
    found = []
    for _ in range(2):
        with client.lookup(made.hashes, ALL_KV) as window:
            found.append(address_of(window.blocks(0)[0]))
    assert found[0] == found[1]


def test_mapping_outlives_the_client_only_while_it_is_read(daemon: Daemon) -> None:
    before = set(mappings())
    client = Client.connect(daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS)
    made = stored(client, 2)
    with client.lookup(made.hashes, ALL_KV) as window:
        kept = window.blocks(0).numpy(1)
    client.close()
    del window
    assert len(set(mappings()) - before) == 1  # the kept view's; staging is gone
    assert kept.tobytes() == made.kv[1].tobytes()
    del kept
    assert set(mappings()) == before


def test_mappings_of_an_earlier_boot_are_given_up(daemon: Daemon, client: Client) -> None:
    made = stored(client, 2)
    with client.lookup(made.hashes, ALL_KV) as window:
        window.blocks(0).load()
    del window
    assert "r--s" in mappings().values()
    daemon.restart()
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.miss == "not_stored"
    assert mappings() == {}


def test_block_given_up_while_it_is_read_is_torn(client: Client) -> None:
    made = stored(client, 4)
    window = client.lookup(made.hashes, ALL_KV)
    with client.open_window(window.export()) as reader:
        reader.blocks(0).load()
        reader.verify()
        window.release()
        client.flush()  # from here on the daemon may reuse the slots
        for seed in range(1, 40):
            fresh = pages(client, 4, seed)
            client.put(None, 0, fresh.hashes, {0: fresh.kv})
        with pytest.raises((TornBlock, LeaseError)) as caught:
            out = np.empty((4, KV.block_bytes()), np.uint8)
            reader.blocks(0).copy_into(out)
        assert caught.type is TornBlock
    assert client.counters()["torn"] == 1


def read_in_every_way(client: Client, seed: int = 0) -> Pages:
    """Has segments, staging memory and hints mapped; nothing is read any more."""
    made = stored(client, 2, seed)
    with client.lookup(made.hashes, ALL_KV) as window:
        window.blocks(0)[0].release()
    out = bytearray(made.kv.nbytes)
    assert client.get(made.hashes, 0, out) == client.get(made.hashes, 0, out) == 2
    return made


def test_idle_client_keeps_nothing_of_a_killed_daemon_but_what_is_read(
    daemon: Daemon, client: Client
) -> None:
    before = mappings()
    made = read_in_every_way(client)
    window = client.lookup(made.hashes, ALL_KV)
    block = np.frombuffer(window.blocks(0)[1], np.uint8)
    assert len(mappings()) >= len(before) + 3
    daemon.kill()
    eventually(lambda: len(mappings()) == len(before) + 1)
    assert (block == made.kv[1]).all()
    del block
    window.release()
    del window
    eventually(lambda: mappings() == before)
    daemon.start()
    eventually(lambda: client.lookup(made.hashes, ALL_KV).miss == "not_stored")
    read_in_every_way(client)


def test_client_whose_connection_broke_maps_anew_and_goes_on(client: Client) -> None:
    before = mappings()
    made = read_in_every_way(client)
    connection = client._driver._socket
    assert connection is not None
    connection.shutdown(socket.SHUT_RDWR)
    eventually(lambda: mappings() == before and not client.attached)
    out = bytearray(made.kv.nbytes)
    assert client.get(made.hashes, 0, out) == 2 and out == made.kv.tobytes()
    read_in_every_way(client, seed=1)
    assert client.counters()["connections"] == 2


def test_client_that_gave_a_hung_daemon_up_keeps_nothing_of_it(
    daemon: Daemon, client: Client
) -> None:
    before = mappings()
    made = read_in_every_way(client)
    daemon.freeze()
    for _ in range(4):
        client.lookup(made.hashes, ALL_KV, deadline_seconds=0.2).release()
    daemon.kill()
    eventually(lambda: mappings() == before)


def test_idle_client_of_an_event_loop_keeps_nothing_of_a_killed_daemon(daemon: Daemon) -> None:
    async def idle() -> None:
        client = await AsyncClient.connect(
            daemon.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
        )
        before = mappings()
        made = pages(client, 2)
        assert (await client.put(None, 0, made.hashes, made.blocks())).sealed == 4
        assert await client.get(made.hashes, 0, bytearray(made.kv.nbytes)) == 2
        assert mappings() != before
        daemon.kill()
        await asyncio.to_thread(eventually, lambda: mappings() == before)
        await client.close()

    asyncio.run(idle())
