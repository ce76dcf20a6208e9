"""Goal: a daemon's process and engines' processes meet on a device: what is read there is what was
sealed, under churn, over a restart, by both faces; and who has no device loses nothing.
Method: `anchorstore serve` by testing.serve, whose device is a folder that this process opens, too.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.cli.main import main
from anchorstore.client import Client, ClientOptions, NamespaceSpec, NeedAll
from anchorstore.errors import AnchorStoreError
from anchorstore.testing.daemon import Daemon
from anchorstore.testing.fake_cuda import FakeCuda
from anchorstore.testing.shared_cuda import SharedFakeGpu
from anchorstore.transport.cuda_driver import device_count
from anchorstore.transport.device_memory import DeviceBytes
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
from tests.integration.faces import Face

COUNT = 6
NEEDS = [NeedAll(0), NeedAll(1)]
SETTINGS = {
    "tiers.hbm.devices": "cuda:0:8MiB",
    "tiers.hbm.sightings": "1",
    "tiers.dram.capacity": "12MiB",
    "tiers.dram.segment": "512KiB",
}


@pytest.fixture
def gpu(tmp_path: pathlib.Path) -> SharedFakeGpu:
    folder = tmp_path / "gpu"
    folder.mkdir()
    return SharedFakeGpu(folder)


@pytest.fixture
def daemon(tmp_path: pathlib.Path, gpu: SharedFakeGpu) -> Iterator[Daemon]:
    with Daemon(tmp_path / "daemon", settings=SETTINGS, fake_cuda=gpu.folder) as running:
        yield running


def options(device: FakeCuda) -> ClientOptions:
    return ClientOptions(deadline_seconds=20.0, retry_seconds=0.05, device=device)


def status(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["status", "--json", "--socket", daemon.socket_path]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def from_the_device(client: Any) -> int:
    """Blocks that were copied within the device so far."""
    found: int = client.counters()["blocks_on_device"]
    return found


class Reader:
    """Device memory of an engine for one path's kv blocks."""

    def __init__(self, device: FakeCuda, count: int = COUNT) -> None:
        self.device, self.size = device, count * KV.block_bytes()
        self.memory = DeviceBytes(device.allocate(self.size), self.size)
        self.stream = device.make_stream()

    def read(self, window: Any) -> np.ndarray:
        """The window's kv blocks, as they lie on the device after the copy."""
        window.blocks(0).copy_to_device(self.memory)
        found = np.zeros(self.size, np.uint8)
        self.device.to_host(found.ctypes.data, self.memory.address, self.size, self.stream)
        self.device.finish(self.stream, 5.0)
        return found.reshape(-1, KV.block_bytes())


def test_engine_reads_in_another_process_what_the_daemon_copied(
    daemon: Daemon, gpu: SharedFakeGpu, face: Face
) -> None:
    device = FakeCuda(gpu, ordinal=1)
    client = face.connect(
        daemon.address, namespace=namespace(), layouts=LAYOUTS, options=options(device)
    )
    made, reader = stored(client, COUNT), Reader(device)

    def all_there() -> bool:
        with client.lookup(made.hashes, NEEDS) as window:
            before = from_the_device(client)
            assert np.array_equal(reader.read(window), made.kv)
            return from_the_device(client) == before + COUNT

    eventually(all_there)
    client.close()
    assert not gpu.misuses


def test_restarted_daemon_has_a_new_slab_and_old_windows_are_void(
    daemon: Daemon, gpu: SharedFakeGpu
) -> None:
    device = FakeCuda(gpu, ordinal=1)
    space, reader = namespace(), Reader(device)
    client = Client.connect(
        daemon.address, namespace=space, layouts=LAYOUTS, options=options(device)
    )
    made = stored(client, COUNT)

    def on_device() -> bool:
        before = from_the_device(client)
        with client.lookup(made.hashes, NEEDS) as window:
            return window.hit and bool(
                np.array_equal(reader.read(window), made.kv)
                and from_the_device(client) == before + COUNT
            )

    eventually(on_device)
    window = client.lookup(made.hashes, NEEDS)
    daemon.restart()
    eventually(lambda: client.put(None, 0, made.hashes, made.blocks()).sealed > 0)
    with pytest.raises(AnchorStoreError):
        reader.read(window)
    eventually(on_device)
    assert client.counters()["sessions"] == 2
    client.close()


def test_copies_that_come_and_go_under_readers_are_never_anothers(
    daemon: Daemon, gpu: SharedFakeGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two engines read; more paths than the pool or the device hold push each other out."""
    space, paths, rounds = NamespaceSpec("model", b"w" * 32, salt=b"churn"), 90, 150
    wrong: list[str] = []
    on_device = []

    def engine(seed: int) -> None:
        device, dice = FakeCuda(gpu, ordinal=seed), np.random.default_rng(seed)
        client = Client.connect(
            daemon.address, namespace=space, layouts=LAYOUTS, options=options(device)
        )
        reader = Reader(device)
        for _ in range(rounds):
            number = int(paths * dice.random() ** 2)
            made = pages(client, COUNT, number)
            try:
                wrong.extend(mistakes(client, reader, made, number))
            except AnchorStoreError as error:
                wrong.append(f"path {number}: {error}")
        on_device.append(from_the_device(client))
        client.close()

    threads = [threading.Thread(target=engine, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(on_device) == 2 and all(on_device)
    counters = status(daemon, capsys)["counters"]
    assert int(counters["copies_evicted"]) > 0 and int(counters["copies_dropped"]) > 0
    assert main(["check", "--checksums", "--socket", daemon.socket_path]) == 0


def mistakes(client: Client, reader: Reader, made: Pages, number: int) -> Iterator[str]:
    """Blocks of a path that are not its own; it is put where it is not there."""
    client.put(None, 0, made.hashes, made.blocks())
    with client.lookup(made.hashes, NEEDS) as window:
        if window.hit and len(window.blocks(0)) == COUNT:
            found = reader.read(window)
            for page in np.flatnonzero((found != made.kv).any(1)).tolist():
                yield f"path {number}: page {page} is another's"


def test_daemon_without_hbm_loads_nothing_of_it(tmp_path: pathlib.Path) -> None:
    """Its memory and its answers are those of a daemon that knows of no device."""
    program = """
import asyncio, json, pathlib, sys
from anchorstore.clock import SystemClock
from anchorstore.config import LogConfig, build
from anchorstore.server.daemon import Daemon
from anchorstore.server.logs import make_logger

async def live():
    config = build({"listen.socket": sys.argv[1], "listen.http": "",
                    "tiers.dram.capacity": 4 << 20, "tiers.dram.segment": 1 << 20})
    daemon = Daemon(config, make_logger(LogConfig(), "test", sys.stderr), SystemClock())
    await daemon.start()
    await daemon.close()

asyncio.run(live())
print(json.dumps(sorted(sys.modules)))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "engine.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout))
    assert "anchorstore.server.service" in loaded
    unwanted = {
        "anchorstore.server.devices",
        "anchorstore.server.hot",
        "anchorstore.server.core.mirror",
        "anchorstore.tiers.hbm",
        "anchorstore.transport.cuda_driver",
        "torch",
    }
    assert not unwanted & loaded


def test_serve_on_a_host_without_a_device_says_which_key_asks_for_it(
    tmp_path: pathlib.Path,
) -> None:
    if device_count():
        pytest.skip("this machine has a CUDA device")
    command = [sys.executable, "-m", "anchorstore", "serve", "--dram", "16MiB"]
    command += ["--socket", str(tmp_path / "engine.sock"), "--hbm", "cuda:0:8MiB", "--http", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "tiers.hbm.devices: cuda:0:8MiB cannot be used: " in done.stderr


def test_token_of_a_session_carries_its_slab(daemon: Daemon, gpu: SharedFakeGpu) -> None:
    scheduler = Client.connect(
        daemon.address,
        namespace=namespace(),
        layouts=LAYOUTS,
        options=ClientOptions(deadline_seconds=20.0, device_place=gpu.bus_id),
    )
    made, device = stored(scheduler, COUNT), FakeCuda(gpu, ordinal=1)
    assert scheduler.session_token is not None
    worker = Client.join(scheduler.session_token, options=options(device))
    reader = Reader(device)

    def on_device() -> bool:
        before = from_the_device(worker)
        with (
            scheduler.lookup(made.hashes, NEEDS) as window,
            worker.open_window(window.export()) as theirs,
        ):
            assert np.array_equal(reader.read(theirs), made.kv)
        return from_the_device(worker) == before + COUNT

    eventually(on_device)
    worker.close()
    scheduler.close()


def test_remote_client_reads_into_its_device_by_way_of_the_host(
    daemon: Daemon, gpu: SharedFakeGpu
) -> None:
    device = FakeCuda(gpu, ordinal=1)
    client = Client.connect(
        daemon.tcp_address, namespace=namespace(), layouts=LAYOUTS, options=options(device)
    )
    made, reader = stored(client, COUNT), Reader(device)
    for _ in range(3):
        with client.lookup(made.hashes, NEEDS) as window:
            assert np.array_equal(reader.read(window), made.kv)
    assert from_the_device(client) == 0
    client.close()


def test_options_name_a_place_without_a_device() -> None:
    assert OPTIONS.place_of_device == ""
    assert ClientOptions(device_place="0000:01:00.0").place_of_device == "0000:01:00.0"
