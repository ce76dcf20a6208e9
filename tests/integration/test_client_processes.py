"""Goal: a lease crosses processes, a fork is told, and a client that is killed holds nothing up.
Method: real processes, started by spawn, by fork, and killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.client import Client, NeedAll
from anchorstore.errors import HandleClosed
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import (
    KV,
    LAYOUTS,
    OPTIONS,
    eventually,
    namespace,
    pages,
    stored,
)

ALL_KV = [NeedAll(0)]
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Client]:
    address = daemon.address if request.param == "unix" else daemon.tcp_address
    with Client.connect(address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS) as made:
        yield made


def _read(token: bytes, exported: bytes, out: Any) -> None:
    """A worker: joins, reads what it was handed, says what it found."""
    with Client.join(token, options=OPTIONS) as worker, worker.open_window(exported) as window:
        found = np.empty((len(window.blocks(0)), KV.block_bytes()), np.uint8)
        window.blocks(0).copy_into(found)
        window.verify()
        out.send(found.tobytes())


def test_window_handed_to_another_process_is_read_there(client: Client) -> None:
    made = stored(client, 5)
    with client.lookup(made.hashes, ALL_KV) as window:
        here, there = SPAWN.Pipe(duplex=False)
        arguments = (client.session_token, window.export(), there)
        worker = SPAWN.Process(target=_read, args=arguments)
        worker.start()
        there.close()
        assert here.recv() == made.kv.tobytes()
        worker.join()
        here.close()
        assert worker.exitcode == 0
        window.verify()


def test_client_after_a_fork_refuses_to_call(client: Client) -> None:
    made = stored(client, 1)
    child = os.fork()
    if child == 0:
        try:
            client.lookup(made.hashes, ALL_KV)
        except HandleClosed as error:
            os._exit(0 if "Client.join" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with client.lookup(made.hashes, ALL_KV) as window:
        assert window.hit  # the parent's connection has not suffered


def _write_and_wait(address: str, spec: Any, seed: int, out: Any) -> None:
    """A writer that gets as far as its staging memory, then stands still."""
    client = Client.connect(address, namespace=spec, layouts=LAYOUTS, options=OPTIONS)
    made = pages(client, 2, seed)
    reservation = client.reserve(None, 0, made.hashes, layouts=[0])
    for page in range(2):
        reservation.buffer(page, 0)[:] = memoryview(made.kv[page])
    out.send(made.hashes)
    signal.pause()


def test_writer_killed_before_its_seal_never_becomes_a_hit(daemon: Daemon) -> None:
    spec = namespace()
    with Client.connect(daemon.address, namespace=spec, layouts=LAYOUTS, options=OPTIONS) as reader:
        here, there = SPAWN.Pipe(duplex=False)
        writer = SPAWN.Process(target=_write_and_wait, args=(daemon.address, spec, 3, there))
        writer.start()
        there.close()
        hashes = here.recv()
        writer.kill()
        writer.join()
        here.close()
        with reader.lookup(hashes, ALL_KV) as window:
            assert window.miss == "not_stored"
        made = pages(reader, 2, 3)
        assert made.hashes == hashes
        eventually(lambda: reader.put(None, 0, hashes, {0: made.kv}).declined == 0)
        with reader.lookup(hashes, ALL_KV) as window:
            assert window.boundary_pages == 2


def test_handed_over_window_of_a_daemon_that_was_restarted_is_a_miss(
    tmp_path: pathlib.Path,
) -> None:
    with (
        Daemon(tmp_path) as own,
        Client.connect(
            own.address, namespace=namespace(), layouts=LAYOUTS, options=OPTIONS
        ) as client,
    ):
        made = stored(client, 1)
        with client.lookup(made.hashes, ALL_KV) as window:
            exported = window.export()
        own.restart()
        with client.lookup(made.hashes, ALL_KV) as window:
            assert window.miss == "not_stored"
        with client.open_window(exported) as window:
            assert window.miss == "boot"
