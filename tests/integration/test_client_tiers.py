"""Goal: both faces, near and far, wait for blocks below memory as long as they say, and no longer.
Method: a daemon process that is restarted, so that all it holds is in nvme; the client's verbs.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.client import NeedAll, NeedWindow
from anchorstore.errors import InvalidRequest
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import KV, LAYOUTS, OPTIONS, eventually, namespace, stored
from tests.integration.faces import Face

COUNT = 6
NEEDS = [NeedAll(0), NeedWindow(1, ratio=0.05, max_rows=16, rows_per_page=4)]
Connect = Callable[..., Any]


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    (tmp_path / "device").mkdir()
    settings = {
        "tiers.nvme.devices": f"{tmp_path / 'device'}:64MiB",
        "tiers.dram.segment": "256KiB",
        "node.drain": "10s",
    }
    with Daemon(tmp_path / "daemon", settings=settings) as running:
        yield running


@pytest.fixture(params=["unix", "tcp"])
def connect(request: pytest.FixtureRequest, daemon: Daemon, face: Face) -> Iterator[Connect]:
    made: list[Any] = []

    def connect_one(space: Any) -> Any:
        address = daemon.address if request.param == "unix" else daemon.tcp_address
        client = face.connect(address, namespace=space, layouts=LAYOUTS, options=OPTIONS)
        made.append(client)
        return client

    yield connect_one
    for client in made:
        client.close()


def below_memory(connect: Connect, daemon: Daemon) -> tuple[Any, Any]:
    """A client, and what is stored in its namespace: in nvme alone, the daemon being another."""
    space = namespace()
    first = connect(space)
    made = stored(first, COUNT)
    first.close()
    assert daemon.stop() == 0
    daemon.start()
    return connect(space), made


def test_lookup_below_memory_waits_as_long_as_it_says(connect: Connect, daemon: Daemon) -> None:
    client, made = below_memory(connect, daemon)
    with client.lookup(made.hashes, NEEDS) as window:
        assert not window.hit and window.miss == "cold" and window.loading_boundary_pages == 0
    with client.lookup(made.hashes, NEEDS, wait_seconds=10.0) as window:
        assert window.hit and window.boundary_pages == COUNT
        blocks = window.blocks(0)
        out = np.empty((len(blocks), blocks.block_bytes), np.uint8)
        blocks.copy_into(out)
        assert np.array_equal(out, made.kv)
    with client.lookup(made.hashes, NEEDS) as window:
        assert window.hit and window.boundary_pages == COUNT
    assert client.counters()["misses"] == {"cold": 1}


def test_prefetch_then_get_needs_no_wait(connect: Connect, daemon: Daemon) -> None:
    client, made = below_memory(connect, daemon)
    with client.lookup(made.hashes, [NeedAll(0)], prefetch=True) as window:
        assert window.loading_boundary_pages in (0, COUNT)
    out = np.empty((COUNT, KV.block_bytes()), np.uint8)
    eventually(lambda: client.get(made.hashes, 0, out) == COUNT)
    assert np.array_equal(out, made.kv)


def test_get_below_memory_waits_as_long_as_it_says(connect: Connect, daemon: Daemon) -> None:
    client, made = below_memory(connect, daemon)
    out = np.empty((COUNT, KV.block_bytes()), np.uint8)
    assert client.get(made.hashes, 0, out) == 0
    assert client.get(made.hashes, 0, out, wait_seconds=10.0) == COUNT
    assert np.array_equal(out, made.kv)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 90_000.0])
def test_lookup_with_a_senseless_wait_is_refused_unasked(
    face: Face, seconds: float, tmp_path: pathlib.Path
) -> None:
    nobody = f"unix://{tmp_path / 'nobody'}"
    client = face.connect(nobody, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS)
    with pytest.raises(InvalidRequest, match="wait_seconds"):
        client.lookup(bytes(32), NEEDS, wait_seconds=seconds)
    client.close()
