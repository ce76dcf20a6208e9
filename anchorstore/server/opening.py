"""The tiers beside dram at the daemon's start: devices opened, journals read, the index restored.

::

    tiers.nvme.devices --open, lock, replay--> NvmeTier --entries--> Store.restore
                         a thread of its own       |                     |
                                                   +<-- units of what could not be restored
    tiers.hbm.devices ---open, allocate, export--> Devices              (empty at every start)

Nothing is read but journals: a block is proven when it is first asked for.  What only hbm needs is
imported where it is configured: a daemon without it stays as light as it was.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from structlog.typing import FilteringBoundLogger

from anchorstore.clock import Clock
from anchorstore.config import Config, HbmConfig, NvmeConfig
from anchorstore.layout import Component
from anchorstore.server.assembly import policy_of
from anchorstore.server.core.admission import ADMISSIONS, Admission, Always, Size
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import NvmeShape
from anchorstore.server.core.work import KnownNamespace
from anchorstore.tiers.base import Tier
from anchorstore.tiers.nvme.device import BEST_ENGINE, Options
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.seam import FileSeam, Log, OpenFile, open_direct
from anchorstore.tiers.nvme.tier import DevicePlace, NvmeTier
from anchorstore.units import format_bytes

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices
    from anchorstore.transport.cuda import CudaPlatform

Tell = Callable[[str], None]
MakePlatform = Callable[[], "CudaPlatform"]


def device_options(nvme: NvmeConfig) -> Options:
    """How each device is used."""
    return Options(
        engine=BEST_ENGINE if nvme.engine == "auto" else nvme.engine,
        limits=Limits(
            depth=nvme.depth,
            queue_blocks=nvme.queue_blocks,
            deadline_seconds=nvme.deadline_seconds,
            read_bytes_per_second=nvme.read_bandwidth_bytes,
            write_bytes_per_second=nvme.write_bandwidth_bytes,
        ),
    )


def open_tier(
    nvme: NvmeConfig, warn: Log, tell: Tell, open_file: OpenFile = open_direct
) -> NvmeTier:
    """Opens every device and reads its journal; blocks.  ConfigError names what is wrong with one.

    `tell` hears which device is being opened.
    """
    count = len(nvme.devices)
    opened = 0

    def open_next(path: pathlib.Path, log: Log) -> FileSeam:
        nonlocal opened
        opened += 1
        tell(f"nvme {opened} of {count}: {path}")
        return open_file(path, log)

    places = [DevicePlace(pathlib.Path(it.path), it.capacity_bytes) for it in nvme.devices]
    tier = NvmeTier.open(
        places,
        nvme.tier_segment_bytes,
        log=warn,
        options=device_options(nvme),
        open_file=open_next,
    )
    if tier.segments == 1:
        size = format_bytes(tier.segment_bytes)
        warn(
            f"nvme: one segment of {size} in all: whichever comes first, anchors or kv, leaves "
            "none to the other, and nothing can be resumed from there.  Give it more, or smaller "
            "segments (tiers.nvme.segment)"
        )
    return tier


def admission_of(nvme: NvmeConfig) -> Admission | None:
    """What is worth a place in the tier; None for everything."""
    if nvme.admission == Size.name:
        return Size(nvme.admission_least_bytes, nvme.admission_most_bytes)
    return None if nvme.admission == Always.name else ADMISSIONS[nvme.admission]()


def nvme_shape(config: Config, tier: NvmeTier) -> NvmeShape:
    """The core's part of an opened tier."""
    nvme, spaces = config.tiers.nvme, config.namespaces
    return NvmeShape(
        segments=tier.segments,
        segment_bytes=tier.segment_bytes,
        devices=tuple(device.segments for device in tier.devices),
        component_share={
            Component.ANCHOR: nvme.anchor_share,
            Component.KV: nvme.kv_share,
            Component.STATE: nvme.state_share,
        },
        high_watermark=nvme.high_watermark,
        low_watermark=nvme.low_watermark,
        ahead=nvme.write == "behind",
        queue_blocks=nvme.waiting_blocks,
        default_quota_bytes=spaces.nvme_quota_bytes,
        quotas=spaces.nvme_quotas(),
        reserves=spaces.nvme_reserves(),
        policy=policy_of(nvme.policy, nvme.ttl_seconds),
        admission=admission_of(nvme),
    )


def restore(core: Store, tier: NvmeTier, clock: Clock, log: FilteringBoundLogger) -> None:
    """Hands what the journals name to an empty core; before its first session."""
    started = clock.now()
    found = tier.recover()
    spaces = [
        KnownNamespace(note.namespace, note.max_lineage, note.enabled) for note in found.namespaces
    ]
    by_use = found.entries[np.argsort(found.recency)]
    restored = core.restore(spaces, found.kinds, by_use, clock.now())
    if len(restored.lost_units):
        tier.note_gone(restored.lost_units)
    dropped = {reason: count for reason, count in found.dropped.items() if count}
    for reason, count in restored.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    log.info(
        "nvme restored",
        pages=restored.pages,
        blocks=restored.blocks,
        dropped=dropped,
        namespaces_off=sum(not space.enabled for space in spaces),
        seconds=round(clock.now() - started, 3),
    )


def tell_devices(tier: NvmeTier, log: FilteringBoundLogger) -> None:
    """Logs what was opened, a line a device."""
    for device in tier.devices:
        log.info(
            "nvme device",
            path=device.name,
            capacity=format_bytes(device.segments * device.segment_bytes),
            segments=device.segments,
            segment=format_bytes(device.segment_bytes),
            engine=device.engine,
            state=device.health.state.name.lower(),
        )


def cuda_platform() -> CudaPlatform:
    """The devices that the driver shows to this process."""
    from anchorstore.transport.cuda_driver import DriverPlatform

    return DriverPlatform()


def make_devices(
    hbm: HbmConfig,
    platform: CudaPlatform,
    dram: Tier,
    boot_id: bytes,
    warn: Tell,
    fail: Callable[[str, BaseException], None],
) -> Devices:
    """The hbm tier, not opened yet.  On the event loop."""
    from anchorstore.server.devices import Devices

    loop = asyncio.get_running_loop()
    return Devices(hbm, platform, dram, boot_id, loop, warn, fail)


def tell_cuda_devices(devices: Devices, log: FilteringBoundLogger) -> None:
    """Logs what was opened, a line a device."""
    for status in devices.status():
        log.info(
            "hbm device",
            device=status.device,
            domain=status.domain,
            capacity=format_bytes(status.capacity_bytes),
            segments=status.segments,
        )
