"""Goal: devices are opened as configured, found by place and domain, lent and let go of; what
cannot be had is refused by its key.
Method: the shipped fake as the daemon's platform, another process of it as the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from anchorstore.config.hbm import DEVICES, HbmConfig
from anchorstore.errors import CapacityFull, ConfigError, Forbidden, InvalidRequest
from anchorstore.server.attached import Attached
from anchorstore.server.codec import slab_message
from anchorstore.server.core.types import Gone
from anchorstore.server.devices import Devices
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu, FakePlatform
from anchorstore.tiers.device_slab import OwnSlab
from anchorstore.tiers.dram import DramTier
from anchorstore.transport import cuda
from anchorstore.transport.cuda_driver import DriverPlatform
from anchorstore.transport.segment import DEVICE_IDS_FROM, PLACE, Places
from anchorstore.wire.v1 import store_pb2 as pb

MIB = 2**20
SESSION = bytes(range(16))
PLACE_0, PLACE_1 = "0000:01:00.0", "0000:41:00.0"


def configured(*devices: str, **changes: Any) -> HbmConfig:
    values = {"devices": DEVICES.parse(list(devices)), "sightings": 1, "pinned_bytes": 64 * 1024}
    return dataclasses.replace(HbmConfig(), **(values | changes))


class World:
    """Two devices, and what is told of them."""

    def __init__(self) -> None:
        self.gpus = [FakeGpu(bus_id=PLACE_0), FakeGpu(bus_id=PLACE_1)]
        self.engine = FakeCuda(self.gpus[0], ordinal=3)
        self.dram = DramTier(2, 2 * MIB, bytes(16), "never", print)
        self.told: list[str] = []
        self.made: list[Devices] = []

    def make(self, config: HbmConfig) -> Devices:
        def fail(name: str, error: BaseException) -> None:
            self.told.append(f"{name}: {error!r}")

        loop = asyncio.get_running_loop()
        platform = FakePlatform(*self.gpus)
        parts = (self.dram, bytes(16), loop, self.told.append, fail)
        made = Devices(config, platform, *parts)
        self.made.append(made)
        return made

    def opened(self, *devices: str, **changes: Any) -> Devices:
        made = self.make(configured(*devices, **changes))
        made.open()
        return made

    def offer(self, size_bytes: int = 4 * MIB) -> pb.LendRequest:
        """Memory of the engine's, to be lent."""
        slab = OwnSlab(self.engine, size_bytes)
        return pb.LendRequest(session_id=SESSION, slab=slab_message(slab.export()))

    async def close(self) -> None:
        for made in self.made:
            await made.close()
        self.dram.close()
        assert [gpu.misuses for gpu in self.gpus] == [[], []]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


def session(domain: str = "default", device: str = PLACE_0) -> Attached:
    return Attached(1, domain, (4096,), device)


def places(count: int) -> Places:
    found = np.zeros(count, PLACE)
    found["segment"], found["slot"], found["generation"] = 5, range(count), 2
    return found


async def test_devices_are_found_by_their_place_and_domain_alone(world: World) -> None:
    devices = world.opened("cuda:0:8MiB", "cuda:1:16MiB")
    found = [devices.of(place, "default") for place in (PLACE_0, PLACE_1)]
    assert [hot and hot.hbm.device_name for hot in found] == [
        "cuda:0 at 0000:01:00.0",
        "cuda:1 at 0000:41:00.0",
    ]
    assert devices.of(PLACE_0, "others") is None and devices.of("0000:99:00.0", "default") is None
    assert [status.capacity_bytes for status in devices.status()] == [8 * MIB, 16 * MIB]


async def test_ids_of_segments_are_one_devices_alone(world: World) -> None:
    devices = world.opened("cuda:0:8MiB", "cuda:1:8MiB")
    ids = []
    for place in (PLACE_0, PLACE_1):
        hot = devices.of(place, "default")
        assert hot is not None
        work = hot.mirror.see(places(1), 4096)
        assert work is not None
        ids += [order.segment_id for order in work.formats]
    assert ids == [DEVICE_IDS_FROM, DEVICE_IDS_FROM + 1]


async def test_block_that_left_memory_is_forgotten_on_every_device(world: World) -> None:
    devices = world.opened("cuda:0:8MiB", "cuda:1:8MiB")
    hots = [devices.of(place, "default") for place in (PLACE_0, PLACE_1)]
    for hot in hots:
        assert hot is not None
        work = hot.mirror.see(places(3), 4096)
        assert work is not None
        hot.mirror.finish(work.ticket, np.ones(3, np.bool_))
        assert hot.mirror.holds(places(3)).all()
    devices.forget([Gone("default", 5, np.array([0, 2], np.uint32))])
    for hot in hots:
        assert hot is not None
        assert hot.mirror.holds(places(3)).tolist() == [False, True, False]
    counted = devices.copies()
    assert (counted["copies_made"], counted["copies_dropped"]) == (6, 4)


async def test_device_that_cannot_be_had_is_refused_by_its_key(world: World) -> None:
    for written, words in (
        ("cuda:0:512GiB", r"tiers.hbm: 512GiB cannot be had on cuda:0, .* free"),
        ("cuda:7:1GiB", r"tiers.hbm.devices: cuda:7:1GiB cannot be used: .*sees 2 devices"),
    ):
        devices = world.make(configured("cuda:1:8MiB", written))
        with pytest.raises(ConfigError, match=words):
            devices.open()
    assert world.gpus[1].used_bytes == 0, "what was opened before is given back"
    world.made.clear()


async def test_host_without_a_driver_refuses_the_tier_by_its_key(world: World) -> None:
    platform = DriverPlatform("libcuda-that-is-not-there.so.1")
    parts = (world.dram, bytes(16), asyncio.get_running_loop(), print, lambda name, error: None)
    devices = Devices(configured("cuda:0:8MiB"), platform, *parts)
    with pytest.raises(
        ConfigError, match=r"tiers.hbm.devices: cuda:0:8MiB cannot be used: libcuda"
    ):
        devices.open()


async def test_lost_device_is_told_once_and_is_found_no_more(world: World) -> None:
    devices = world.opened("cuda:0:8MiB")
    hot = devices.of(PLACE_0, "default")
    assert hot is not None
    for _ in range(2):
        hot.hbm.take_offline("fell off the bus")
    assert devices.of(PLACE_0, "default") is None
    assert world.told == [
        "hbm: cuda:0:8MiB is offline, the pool serves on: fell off the bus",
    ]
    assert devices.status()[0].offline_reason == "fell off the bus"


async def test_lent_slab_serves_its_session_and_later_ones_until_it_ends(world: World) -> None:
    devices = world.opened(lent_slabs=1)
    lender = session()
    reply = await devices.lend(world.offer(), lender)
    assert (reply.segment_bytes, reply.segments) == (2 * MIB, 2)
    assert lender.hot is not None and devices.of(PLACE_0, "default") is lender.hot
    devices.session_ended(SESSION)
    assert devices.of(PLACE_0, "default") is None and not lender.hot.hbm.is_online
    await devices.close()
    [allocation] = world.gpus[0].by_handle.values()
    assert allocation.opened == 0, "the engine may free it now"


async def test_session_that_ends_while_it_lends_leaves_nothing(world: World) -> None:
    devices = world.opened(lent_slabs=1)
    lending = devices.lend(world.offer(), session())
    devices.session_ended(SESSION)
    with pytest.raises(InvalidRequest, match="its session has ended"):
        await lending
    await devices.close()
    assert devices.status() == [] and not world.told[1:]
    assert not any(found.opened for found in world.gpus[0].by_handle.values())


@pytest.mark.parametrize(
    ("changes", "who", "error", "words"),
    [
        ({"lent_slabs": 0}, session(), Forbidden, "tiers.hbm.lent_slabs"),
        ({}, session(domain="others"), Forbidden, "of this domain lend none"),
        ({}, session(device=PLACE_1), InvalidRequest, "on 0000:01:00.0, its session on 0000:41"),
        ({}, session(device=""), InvalidRequest, "its session on no device"),
    ],
)
async def test_slab_that_may_not_be_lent_is_refused(
    world: World, changes: dict[str, Any], who: Attached, error: type[Exception], words: str
) -> None:
    devices = world.opened("cuda:1:8MiB", **({"lent_slabs": 1} | changes))
    with pytest.raises(error, match=words):
        devices.lend(world.offer(), who)
    assert who.hot is None


async def test_slabs_beyond_the_limit_or_lent_twice_are_refused(world: World) -> None:
    devices = world.opened(lent_slabs=1)
    request = world.offer()
    await devices.lend(request, session())
    with pytest.raises(InvalidRequest, match="has lent one already"):
        devices.lend(request, session())
    request.session_id = bytes(16)
    with pytest.raises(CapacityFull, match="1 are lent, limit 1"):
        devices.lend(request, session())


async def test_slab_with_a_handle_of_nobody_costs_its_lender_alone(world: World) -> None:
    devices = world.opened(lent_slabs=1)
    request = world.offer()
    request.slab.handle = bytes(cuda.HANDLE_BYTES)
    with pytest.raises(InvalidRequest, match=r"slab: cannot be opened on 0000:01"):
        await devices.lend(request, session())
    assert not world.told
    await devices.lend(world.offer(), session())
