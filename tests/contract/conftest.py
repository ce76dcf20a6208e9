"""The tiers that the contract is held against: dram; hbm on the shipped fake and on a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.tiers.device_slab import EngineSlab, OwnSlab, Slab
from anchorstore.tiers.hbm import HbmOptions, HbmTier
from anchorstore.transport.cuda import CudaDevice
from anchorstore.transport.cuda_driver import DriverDevice
from anchorstore.transport.device_memory import OpenSlab
from tests.contract.rigs import (
    BOOT,
    DOMAIN,
    HALF_BYTES,
    SEGMENT_BYTES,
    SEGMENTS,
    DramRig,
    HbmRig,
    Reader,
    Rig,
)

SLAB_BYTES = SEGMENTS * SEGMENT_BYTES
OPTIONS = HbmOptions(lanes=2, half_bytes=HALF_BYTES)


def tier_on(slab: Slab) -> HbmTier:
    def lost(reason: str) -> None:
        raise AssertionError(reason)

    return HbmTier(slab, SEGMENT_BYTES, BOOT, DOMAIN, OPTIONS, print, lost)


def left_in(gpu: FakeGpu, *processes: FakeCuda) -> list[str]:
    """What a closed tier must not leave behind, as sentences."""
    left = list(gpu.misuses)
    left += [f"{len(process.registered)} pinned" for process in processes if process.registered]
    left += [f"{len(process.streams)} streams" for process in processes if process.streams]
    left += [f"{found.opened} have it open" for found in gpu.by_handle.values() if found.opened]
    return left


def daemons_slab_on_fake() -> HbmRig:
    """The daemon's own slab, and a client that opens it."""
    gpu = FakeGpu()
    daemon, client = FakeCuda(gpu), FakeCuda(gpu, ordinal=3)
    tier = tier_on(OwnSlab(daemon, SLAB_BYTES))
    opened = OpenSlab(client, tier.export_for(DOMAIN))

    def ended() -> list[str]:
        opened.close()
        return left_in(gpu, daemon, client)

    return HbmRig(tier, lambda: Reader(client, opened.address), ended)


def engines_slab_on_fake() -> HbmRig:
    """A slab in the midst of an allocation of the engine's, which reads it at its own address."""
    gpu = FakeGpu()
    daemon, engine = FakeCuda(gpu), FakeCuda(gpu)
    owned = OwnSlab(engine, SLAB_BYTES + 8192)
    whole = owned.export()
    part = type(whole)(whole.bus_id, whole.handle, 4096, SLAB_BYTES)
    tier = tier_on(EngineSlab(daemon, part))
    reader = Reader(engine, owned.address + 4096)
    return HbmRig(tier, lambda: reader, lambda: left_in(gpu, daemon, engine))


def daemons_slab_on_device() -> HbmRig:
    """A slab on a real device; a process cannot open its own, so it is read where it is."""
    device: CudaDevice = DriverDevice(0)
    slab = OwnSlab(device, SLAB_BYTES)

    def ended() -> list[str]:
        device.release()
        return []

    return HbmRig(tier_on(slab), lambda: Reader(device, slab.address), ended)


RIGS = [
    pytest.param(DramRig, id="dram"),
    pytest.param(daemons_slab_on_fake, id="hbm-fake"),
    pytest.param(engines_slab_on_fake, id="hbm-engine-fake"),
    pytest.param(daemons_slab_on_device, id="hbm-device", marks=pytest.mark.gpu),
]


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig = request.param()
    yield made
    made.close()
