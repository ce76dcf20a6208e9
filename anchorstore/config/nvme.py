"""Configuration of the nvme tier: which devices, what is written to them, how hard they are driven.

Every key states its meaning and when to change it (anchorstore/config/fields.py).  Pure.
"""

from __future__ import annotations

import dataclasses
import json

from anchorstore.config import values
from anchorstore.config.eviction import (
    ADMISSIONS,
    high_watermark_setting,
    low_watermark_setting,
    policy_setting,
    share_setting,
    ttl_setting,
)
from anchorstore.config.fields import setting
from anchorstore.units import GIB, MIB

DEVICES_MAX = 64
SEGMENT_STEPS = ((64 * GIB, 256 * MIB), (4 * GIB, 64 * MIB), (0, 4 * MIB))
"""Segments of a tier whose smallest device has at least so many bytes: few steps, because a device
whose segments change starts empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceConfig:
    """A directory, file or block device, and the bytes to take there."""

    path: str
    capacity_bytes: int

    def __str__(self) -> str:
        return f"{self.path}:{json.loads(_SIZE.show(self.capacity_bytes))}"


_PATH = values.path(empty_means="")
_SIZE = values.size("8MiB", "16TiB")


def _parse_device(entry: object) -> DeviceConfig:
    if not isinstance(entry, str):
        raise ValueError(f'is {entry!r}, must be "PATH:SIZE", e.g. "/mnt/nvme0:1TiB"')
    path, colon, size = entry.rpartition(":")
    if not colon or not path:
        raise ValueError(f'is {entry!r}, must be PATH:SIZE, e.g. "/mnt/nvme0:1TiB"')
    if not path.startswith("/"):
        raise ValueError(f"is {entry!r}: its path must be absolute, so that every start finds it")
    try:
        return DeviceConfig(_PATH.parse(path), _SIZE.parse(size))
    except ValueError as error:
        raise ValueError(f"of {path}: {error}") from error


DEVICES = values.entries("devices", "PATH:SIZE each", _parse_device, "/mnt/nvme0:1TiB", DEVICES_MAX)


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeConfig:
    """The second tier: files and block devices below the pool.  None by default."""

    devices: tuple[DeviceConfig, ...] = setting(
        DEVICES,
        [],
        "Where blocks are kept beyond memory, and over restarts.  A directory gets a file "
        "anchorstore.nvme; a file or block device is used itself.  Each belongs to one daemon.  "
        "Together at most 16TiB.",
        "On every host with fast local disks: `--nvme /mnt/nvme0:1TiB`.",
    )
    segment_bytes: int | None = setting(
        values.size_or_auto("1MiB", "64GiB"),
        "auto",
        "Region of a device that holds one domain's blocks of one size.  auto = by the smallest "
        "device: 4MiB, from 4GiB on 64MiB, from 64GiB on 256MiB.  A device whose segments change "
        "starts empty.",
        "Larger where a block (an exact checkpoint) is larger than that.",
    )
    write: str = setting(
        values.choice("behind", "demote"),
        "behind",
        "behind: every sealed block is written soon, so that a restart finds it.  demote: only "
        "what memory would give up next.",
        '"demote" to spare the devices where restarts may begin cold.',
    )
    waiting_blocks: int = setting(
        values.count(1, 2**24),
        65_536,
        "Sealed blocks that wait to be written behind; more are written only once memory would "
        "give them up.",
        "Seldom.",
    )
    engine: str = setting(
        values.choice("auto", "io_uring", "aio", "threads"),
        "auto",
        "How reads and writes reach the kernel.  auto is io_uring; where the kernel does not allow "
        "one of these the next is taken, which the log tells.",
        "Where one is under suspicion.",
    )
    depth: int = setting(
        values.count(1, 128),
        8,
        "Reads at a device at the same time, and writes (half as many beside reads); each takes up "
        "to 2 MiB of the daemon's memory.",
        "More for devices that need a deep queue; `python -m benchmarks.nvme` measures it.",
    )
    queue_blocks: int = setting(
        values.count(1, 2**20),
        65_536,
        "Blocks that wait at a device or move, each way; a lookup whose blocks do not fit is "
        "answered by what memory holds.",
        "More where single lookups need more blocks from one device.",
    )
    deadline_seconds: float = setting(
        values.duration("10ms", "1m"),
        "2s",
        "A read or write that a device has not begun by then is given up; a device that does not "
        "answer for as long gets no more until it does.",
        "Longer for slow or shared devices.",
    )
    read_bandwidth_bytes: int = setting(
        values.size("0B"),
        "0B",
        "Most that is read from one device a second; 0B = no limit.",
        "Where others use the device too.",
    )
    write_bandwidth_bytes: int = setting(
        values.size("0B"),
        "0B",
        "Most that is written to one device a second; 0B = no limit.",
        "To spread a device's wear, or where others use it too.",
    )
    anchor_share: float = share_setting(0.5, "anchor blocks", "As tiers.dram.anchor_share.")
    kv_share: float = share_setting(0.75, "kv blocks", "As tiers.dram.kv_share.")
    state_share: float = share_setting(0.5, "exact checkpoints", "As tiers.dram.state_share.")
    high_watermark: float = high_watermark_setting(0.98, "Seldom.")
    low_watermark: float = low_watermark_setting(0.95)
    policy: str = policy_setting()
    ttl_seconds: float = ttl_setting()
    admission: str = setting(
        values.choice(*ADMISSIONS),
        "always",
        "What is worth a place: everything, pages used twice (what more than one request wanted), "
        "or pages of at least admission_least and at most admission_most bytes.",
        '"second-sight" where most prefixes are never asked for again, to spare the devices.',
    )
    admission_least_bytes: int = setting(
        values.size("0B", "16TiB"),
        "0B",
        'Least that a page\'s blocks take together where admission is "size".',
        "Together with tiers.nvme.admission.",
    )
    admission_most_bytes: int = setting(
        values.size("0B", "16TiB"),
        "16TiB",
        'Most that a page\'s blocks take together where admission is "size".',
        "Together with tiers.nvme.admission.",
    )

    @property
    def capacity_bytes(self) -> int:
        """Of all devices together."""
        return sum(device.capacity_bytes for device in self.devices)

    @property
    def tier_segment_bytes(self) -> int:
        """Bytes of a segment, "auto" worked out."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        smallest = min((device.capacity_bytes for device in self.devices), default=0)
        return next(size for least, size in SEGMENT_STEPS if smallest >= least)
