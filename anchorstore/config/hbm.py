"""Configuration of the hbm tier: which device, for whom, and what is worth a place there.

Every key states its meaning and when to change it (anchorstore/config/fields.py).  Pure.
"""

from __future__ import annotations

import dataclasses
import json
import re

from anchorstore.config import values
from anchorstore.config.fields import setting
from anchorstore.units import GIB, MIB

ORDINAL_MAX = 255
DEVICES_MAX = 16
SEGMENTS_WANTED = 64
SEGMENT_ALIGN_BYTES = 2 * MIB
_DEVICE = re.compile(r"cuda:(\d{1,3}):(.+)")


@dataclasses.dataclass(frozen=True, slots=True)
class SlabConfig:
    """A CUDA device, by its number among those that the daemon sees, and the bytes to take."""

    ordinal: int
    capacity_bytes: int

    def __str__(self) -> str:
        return f"cuda:{self.ordinal}:{json.loads(_SIZE.show(self.capacity_bytes))}"


_SIZE = values.size("8MiB", "1TiB")


def _parse_device(entry: object) -> SlabConfig:
    match = _DEVICE.fullmatch(entry) if isinstance(entry, str) else None
    if match is None:
        raise ValueError(f'is {entry!r}, must be "cuda:N:SIZE", e.g. "cuda:0:8GiB"')
    if int(match[1]) > ORDINAL_MAX:
        raise ValueError(f"is {entry!r}: device {match[1]}, limit {ORDINAL_MAX}")
    try:
        return SlabConfig(int(match[1]), _SIZE.parse(match[2]))
    except ValueError as error:
        raise ValueError(f"of cuda:{match[1]}: {error}") from error


DEVICES = values.entries(
    "cuda devices", "cuda:N:SIZE each", _parse_device, "cuda:0:8GiB", DEVICES_MAX
)


@dataclasses.dataclass(frozen=True, slots=True)
class HbmConfig:
    """Copies of hot blocks on CUDA devices, for engines on those devices.  None by default."""

    devices: tuple[SlabConfig, ...] = setting(
        DEVICES,
        [],
        "The devices, by their number among those that the daemon sees, and the memory to take "
        "from each, once, at start.  Every block there lies in the pool, too: a lost device loses "
        "nothing.",
        "Where engines leave device memory unused: `--hbm cuda:0:8GiB`.",
    )
    segment_bytes: int | None = setting(
        values.size_or_auto("2MiB", "64GiB"),
        "auto",
        "Region that holds blocks of one size, in steps of 2MiB.  auto = the smallest device / 64, "
        "within 2MiB to 1GiB.",
        "Never below the largest block that shall lie there.",
    )
    domain: str = setting(
        values.text(),
        "default",
        "The one domain whose engines may open the memory: CUDA IPC maps it for writing.",
        "To the domain of the engines on that device.",
    )
    sightings: int = setting(
        values.count(1, 255),
        2,
        "A block is copied to the device when it is looked up for this time.",
        "1 where the device's memory is large beside the working set.",
    )
    lanes: int = setting(
        values.count(1, 16),
        2,
        "Copies to the device at the same time, each with a thread and pinned memory.",
        "Seldom.",
    )
    pinned_bytes: int = setting(
        values.size("64KiB", "1GiB"),
        "16MiB",
        "Pinned host memory of a lane, half of which travels while the other is filled.",
        "Seldom.",
    )
    deadline_seconds: float = setting(
        values.duration("100ms", "10m"),
        "10s",
        "A device that has not finished a copy by then is given up until the next start.",
        "Longer where the device may be busy for long.",
    )
    queue_jobs: int = setting(
        values.count(1, 65_536),
        64,
        "Copies that wait for a lane; lookups beyond them copy nothing.",
        "Seldom.",
    )
    lent_slabs: int = setting(
        values.count(0, 64),
        0,
        "Slabs that engines of `domain` may lend at once: device memory of their own, which the "
        "daemon fills for them while their session lives.",
        "To the number of engines that lend memory rather than have the daemon take it.",
    )

    def segment_bytes_of(self, capacity_bytes: int) -> int:
        """Bytes of a segment on a device of which so much is taken, "auto" worked out."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        wanted = min(max(capacity_bytes // SEGMENTS_WANTED, SEGMENT_ALIGN_BYTES), GIB)
        return wanted // SEGMENT_ALIGN_BYTES * SEGMENT_ALIGN_BYTES

    @property
    def tier_segment_bytes(self) -> int:
        """Bytes of a segment on every device."""
        return self.segment_bytes_of(
            min((device.capacity_bytes for device in self.devices), default=0)
        )

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do with a device."""
        return bool(self.devices or self.lent_slabs)
