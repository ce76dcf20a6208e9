"""What this device, driver and kernel really do: asked, not assumed; printed as JSON.

Every question is a function that returns a value worth recording; what goes wrong in it is
recorded in its place.  Run by report.py, each question in a process of its own: an answer may cost
the context.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from anchorstore.tiers.base import Moves
from anchorstore.tiers.device_slab import OwnSlab
from anchorstore.tiers.hbm import HbmOptions, HbmTier, daemon_tier, engine_tier
from anchorstore.tiers.heads import SealedMemory
from anchorstore.transport.cuda import CudaDevice, CudaError
from anchorstore.transport.cuda_driver import DriverDevice
from anchorstore.transport.segment import SegmentShape
from tests.gpu.other import Other, copy_out, from_json, to_json

MIB = 1 << 20
SECONDS = 20.0
ATTRIBUTES = {"host_register": 99, "read_only_host_register": 113, "unified_addressing": 41}


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def about_device(device: DriverDevice) -> dict[str, Any]:
    """Names and numbers."""
    return {
        "name": device.name,
        "bus_id": device.bus_id,
        "driver": device.driver.version,
        "free_bytes": device.free_bytes(),
        **{name: device.attribute(number) for name, number in ATTRIBUTES.items()},
    }


def host_register(device: CudaDevice, size: int = 64 * MIB) -> dict[str, Any]:
    """Which mappings of a sealed segment the device accepts, and whether it reads them right.

    `client_*` is what an engine has: a read-only mapping of memory sealed against writers.
    """
    sealed = SealedMemory("probe", size)
    sealed.memory[:] = np.arange(size // 8, dtype=np.uint64).view(np.uint8)
    client = mmap.mmap(sealed.descriptor, size, prot=mmap.PROT_READ)
    cases = {
        "daemon": (int(sealed.memory.ctypes.data), False),
        "client": (_address(client), False),
        "client_read_only_flag": (_address(client), True),
    }
    found = {
        name: _registered(device, address, size, read_only, sealed.memory)
        for name, (address, read_only) in cases.items()
    }
    sealed.close()
    return found


def _registered(
    device: CudaDevice, address: int, size: int, read_only: bool, expected: np.ndarray
) -> dict[str, Any]:
    started = time.monotonic()
    try:
        device.register(address, size, read_only=read_only)
    except CudaError as error:
        return {"accepted": False, "error": str(error)}
    seconds = time.monotonic() - started
    place, stream = device.allocate(size), device.make_stream()
    rates = []
    for _ in range(3):
        started = time.monotonic()
        device.to_device(place, address, size, stream)
        device.finish(stream, SECONDS)
        rates.append(size / max(time.monotonic() - started, 1e-9) / 1e9)
    right = bool(np.array_equal(copy_out(device, place, size), expected))
    device.drop_stream(stream)
    device.free(place)
    device.unregister(address)
    return {
        "accepted": True,
        "register_seconds": seconds,
        "right": right,
        "to_device_gb_per_second": max(rates),
    }


def _moves(shape: SegmentShape, slots: int, size: int, source: np.ndarray, mark: int) -> Moves:
    rows = np.arange(slots)
    blocks = source.reshape(slots, size)
    return Moves(
        memories=np.zeros(slots, np.uint32),
        memory_offsets=(rows * size).astype(np.uint64),
        segments=np.zeros(slots, np.uint32),
        slots=rows.astype(np.uint32),
        offsets=np.array([shape.offset(row) for row in range(slots)], np.uint64),
        block_bytes=np.full(slots, size, np.uint64),
        generations=np.full(slots, mark, np.uint32),
        checksums=np.array([xxhash.xxh3_64_intdigest(block) for block in blocks], np.uint64),
        path_hashes=np.zeros((slots, 4), np.uint64),
        layout_keys=np.zeros(slots, np.uint64),
        lineages=np.zeros(slots, np.uint8),
    )


class _Order:
    """Segment 0 in slots of one size."""

    index, segment_id, first_generation, fresh_memory = 0, 1, 0, False

    def __init__(self, shape: SegmentShape) -> None:
        self.slot_bytes, self.slots = shape.slot_bytes, shape.slots


def tier_rates(device: CudaDevice, total_bytes: int = 256 * MIB) -> dict[str, Any]:
    """GB/s of writes and reads through one lane, checksums included, by block size."""
    sizes = (64 * 1024, MIB, 8 * MIB)
    return {f"{size // 1024}KiB": _rates(device, total_bytes, size) for size in sizes}


def _rates(device: CudaDevice, total_bytes: int, size: int) -> dict[str, float]:
    tier = _tier(device, 2 * total_bytes)
    shape = SegmentShape(2 * total_bytes, size)
    tier.format(_Order(shape))
    slots = total_bytes // size
    source = np.random.default_rng(1).integers(0, 256, slots * size, dtype=np.uint8)
    target = np.zeros_like(source)
    rates: dict[str, float] = {}
    for mark in (1, 3):  # the second round touches no page for the first time
        moves = _moves(shape, slots, size, source, mark)
        started = time.monotonic()
        written = tier.write(moves, lambda _: source).result()
        rates["write"] = source.size / max(time.monotonic() - started, 1e-9) / 1e9
        moves = _moves(shape, slots, size, source, mark + 1)
        started = time.monotonic()
        read = tier.read(moves, lambda _: target).result()
        rates["read"] = source.size / max(time.monotonic() - started, 1e-9) / 1e9
        assert written.all() and read.all() and np.array_equal(source, target)
    tier.close()
    return rates


def _tier(device: CudaDevice, segment_bytes: int) -> HbmTier:
    return daemon_tier(
        *(device, segment_bytes, segment_bytes, bytes(16), "probe", HbmOptions()),
        warn=lambda text: print(text, file=sys.stderr),
        lost=lambda text: print(text, file=sys.stderr),
    )


def open_elsewhere(device: CudaDevice) -> dict[str, Any]:
    """How long another process takes to open a slab, and whether it may do so again."""
    slab = OwnSlab(device, 1024 * MIB)
    exported = slab.export()
    with Other() as other:
        started = time.monotonic()
        other.ask("open", export=to_json(exported))
        seconds = time.monotonic() - started
        other.ask("close")
        other.ask("open", export=to_json(exported))
        other.ask("close")
    return {"open_seconds_with_start": seconds, "opens_again": True}


def engine_dies(device: CudaDevice) -> dict[str, Any]:
    """What a daemon meets that has an engine's slab open when the engine is killed."""
    with Other() as other:
        exported = from_json(other.ask("own", size_bytes=64 * MIB))
        tier = engine_tier(
            *(device, exported, 32 * MIB, bytes(16), "probe", HbmOptions()),
            warn=lambda text: print(text, file=sys.stderr),
            lost=lambda text: print(text, file=sys.stderr),
        )
        shape = SegmentShape(32 * MIB, MIB)
        tier.format(_Order(shape))
        source = np.random.default_rng(2).integers(0, 256, 4 * MIB, dtype=np.uint8)
        before = tier.write(_moves(shape, 4, MIB, source, 1), lambda _: source).result()
        other.kill()
        target = np.zeros_like(source)
        after = tier.read(_moves(shape, 4, MIB, source, 2), lambda _: target).result()
        again = tier.write(_moves(shape, 4, MIB, source, 3), lambda _: source).result()
        tier.close()
    return {
        "written_before": bool(before.all()),
        "read_after": bool(after.all()),
        "written_after": bool(again.all()),
        "offline_reason": tier.offline_reason,
    }


QUESTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "device": about_device,
    "host_register": host_register,
    "tier_rates": tier_rates,
    "open_elsewhere": open_elsewhere,
    "engine_dies": engine_dies,
}


def main() -> None:
    print(json.dumps(QUESTIONS[sys.argv[1]](DriverDevice(0))))


if __name__ == "__main__":
    main()
