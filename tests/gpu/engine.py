"""An engine on a device: a client of a daemon's process, and a prefix that it reads there.

Apart from the tests, because a machine with a device may lack what a client needs.
"""

from __future__ import annotations

import time

import numpy as np

from anchorstore.client import Client, ClientOptions, NamespaceSpec, NeedAll
from anchorstore.layout import KvLayout
from anchorstore.testing.daemon import Daemon
from anchorstore.transport.cuda import CudaDevice
from anchorstore.transport.device_memory import DeviceBytes
from tests.gpu.other import copy_out

LAYOUT = KvLayout(layers=4, heads=4, head_dim=128, dtype="bfloat16", head_start=0, head_stop=4)
PAGES = 16
SECONDS = 30.0
SETTINGS = {
    "tiers.dram.capacity": "256MiB",
    "tiers.dram.segment": "32MiB",
    "tiers.hbm.sightings": "1",
}


class Engine:
    """A client on the device, and a prefix that it has stored."""

    def __init__(self, daemon: Daemon, device: CudaDevice) -> None:
        self.device = device
        self.client = Client.connect(
            daemon.address,
            namespace=NamespaceSpec("model", bytes(32)),
            layouts=[LAYOUT],
            options=ClientOptions(deadline_seconds=20.0, device=device),
        )
        random = np.random.default_rng(5)
        self.hashes = self.client.path_hashes(random.integers(0, 50_000, 64 * PAGES))
        self.data = random.integers(0, 256, (PAGES, LAYOUT.block_bytes()), np.uint8)
        assert self.client.put(None, 0, self.hashes, {0: self.data}).sealed == PAGES
        self.memory = DeviceBytes(device.allocate(self.data.size), self.data.size)

    def read(self) -> int:
        """Reads the prefix into device memory, and compares; blocks that came from the device."""
        before = self.client.counters()["blocks_on_device"]
        with self.client.lookup(self.hashes, [NeedAll(0)]) as window:
            window.blocks(0).copy_to_device(self.memory)
        found = copy_out(self.device, self.memory.address, self.memory.size_bytes)
        assert np.array_equal(found, self.data.reshape(-1))
        after = self.client.counters()["blocks_on_device"]
        assert isinstance(before, int) and isinstance(after, int)
        return after - before

    def put_again(self) -> None:
        """Once the next daemon is there."""
        deadline = time.monotonic() + SECONDS
        while self.client.put(None, 0, self.hashes, {0: self.data}).sealed < PAGES:
            assert time.monotonic() < deadline, "never stored again"
            time.sleep(0.05)

    def until_all_is_there(self) -> None:
        deadline = time.monotonic() + SECONDS
        while self.read() < PAGES:
            assert time.monotonic() < deadline, "never all on the device"

    def close(self) -> None:
        self.client.close()
        self.device.free(self.memory.address)
