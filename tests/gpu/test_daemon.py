"""Goal: on a real device, an engine reads there what a daemon's process has copied.
Method: `anchorstore serve --hbm cuda:0:64MiB` as a process, a client of it here (engine.py); the
same steps on the shared fake device, so that a machine without a device tries them, too.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anchorstore.testing.fake_cuda import FakeCuda
from anchorstore.testing.shared_cuda import SharedFakeGpu
from anchorstore.transport.cuda import CudaDevice
from anchorstore.transport.cuda_driver import DriverDevice

engines = pytest.importorskip("tests.gpu.engine", reason="no client without its requirements")
Start = Callable[..., Any]


@pytest.fixture(params=["fake", pytest.param("device", marks=pytest.mark.gpu)])
def host(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[tuple[Start, Any]]:
    """How a daemon with such settings is started, and the device that an engine has."""
    pytest.importorskip("structlog", reason="no daemon without its requirements")
    folder = tmp_path / "gpu"
    folder.mkdir()
    is_fake = request.param == "fake"

    def start(**settings: str) -> Any:
        chosen = engines.SETTINGS | {f"tiers.hbm.{key}": value for key, value in settings.items()}
        fake = folder if is_fake else None
        return engines.Daemon(tmp_path / "daemon", settings=chosen, fake_cuda=fake)

    device: CudaDevice = FakeCuda(SharedFakeGpu(folder)) if is_fake else DriverDevice(0)
    yield start, device
    device.release()


def test_engine_reads_on_the_device_what_a_daemons_process_copied(host: tuple[Start, Any]) -> None:
    start, device = host
    with start(devices="cuda:0:64MiB") as daemon:
        engine = engines.Engine(daemon, device)
        engine.until_all_is_there()
        engine.close()


def test_engine_reads_in_memory_that_it_lends(host: tuple[Start, Any]) -> None:
    start, device = host
    with start(lent_slabs="1") as daemon:
        engine, slab = engines.Engine(daemon, device), device.allocate(64 << 20)
        assert engine.client.lend_device_memory(slab, 64 << 20) > 0
        engine.until_all_is_there()
        engine.close()


def test_daemon_that_is_killed_leaves_its_engine_to_the_next_one(host: tuple[Start, Any]) -> None:
    """Its slab goes with it, mapped here or not."""
    start, device = host
    with start(devices="cuda:0:64MiB") as daemon:
        engine = engines.Engine(daemon, device)
        engine.until_all_is_there()
        daemon.restart()
        engine.put_again()
        engine.until_all_is_there()
        engine.close()
