"""Goal: on the same host blocks are read in place, read-only, and mappings go with their readers.
Method: look at this process's own mappings and at what the kernel allows on them.
"""

from __future__ import annotations

import gc
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.client import Client, NeedAll
from anchorstore.errors import LeaseError, TornBlock
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import KV, LAYOUTS, OPTIONS, namespace, pages, stored

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
