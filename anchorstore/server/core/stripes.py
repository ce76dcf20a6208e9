"""Which device of the nvme tier the next blocks go to: small and pure.

::

    room      device 0: 60 blocks   device 1: 20   device 2: 0      what each may take now
    parts     of 8 blocks: 6        2              0                in proportion
    deal      0 0 1 0 0 0 1 0                                       block by block, in turns

The room is what the shell says that a device may have on its way, less what is: a device that is
slow keeps its blocks on their way for longer, has less room, and gets less; one that takes nothing
has none.  Neighbours of a path lie on different devices, so that one window is read from all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, Positions


class Stripes:
    """The devices, as ranges of segments that follow one another.

    Attributes:
        room: blocks that each device may take now.
        is_even: whether nobody has said so: then each may take any number.
    """

    def __init__(self, device_segments: Sequence[int]) -> None:
        assert device_segments and min(device_segments) > 0, device_segments
        self._ends = np.cumsum(device_segments)  # ids of segments count from 1
        self._owed = np.zeros(len(device_segments))
        self.segments = tuple(device_segments)
        self.limit(None)

    def __len__(self) -> int:
        return len(self.segments)

    def limit(self, room: Sequence[int] | None) -> None:
        """What each device may take from now on; None for no limit."""
        self.is_even = room is None
        self.room = np.array(room if room is not None else [0] * len(self), np.int64)
        assert len(self.room) == len(self) and self.room.min() >= 0, self.room

    def has_room(self, device: int) -> bool:
        """Whether the device may take a block now."""
        return self.is_even or bool(self.room[device] > 0)

    @property
    def is_short(self) -> bool:
        """Whether some devices may take no block now."""
        return not self.is_even and not self.room.all()

    def total(self, wanted: int) -> int:
        """How many of so many blocks the devices may take together."""
        return wanted if self.is_even else min(wanted, int(self.room.sum()))

    def take(self, device: int, blocks: int) -> None:
        """So many blocks go to the device."""
        if not self.is_even:
            self.room[device] -= blocks

    def device_of(self, segment_id: int) -> int:
        """The device that a segment lies on."""
        return int(np.searchsorted(self._ends, segment_id - 1, "right"))

    def devices_of(self, segment_ids: U32) -> Positions:
        """The same for segments [n]."""
        found: Positions = np.searchsorted(self._ends, segment_ids.astype(np.int64) - 1, "right")
        return found

    def parts(self, count: int, among: Sequence[int]) -> list[tuple[int, int]]:
        """(device, blocks) for `count` blocks: in proportion to the room, never beyond it.  What
        does not divide is owed, so that single blocks take turns too."""
        devices = np.array([device for device in among if self.has_room(device)], np.intp)
        if not len(devices) or count <= 0:
            return []
        room = np.full(len(devices), count) if self.is_even else self.room[devices]
        if room.sum() <= count:
            return list(zip(devices.tolist(), room.tolist(), strict=True))
        shares = count * room / room.sum()
        owed = np.clip(self._owed[devices], -1.0, 1.0)
        parts = np.minimum(np.floor(shares), room).astype(np.int64)
        while (missing := count - int(parts.sum())) > 0:
            due = np.where(parts < room, shares + owed - parts, -np.inf)
            parts[np.argsort(-due, kind="stable")[:missing]] += 1
            parts = np.minimum(parts, room)
        self._owed[devices] = owed + shares - parts
        return [pair for pair in zip(devices.tolist(), parts.tolist(), strict=True) if pair[1]]

    def dealt(self, segment_ids: U32) -> npt.NDArray[np.intp]:
        """An order of slots [n] in these segments in which the devices take turns, each as often as
        it has slots; slots of one device stay in their order."""
        devices = self.devices_of(segment_ids)
        counts = np.bincount(devices, minlength=len(self))
        by_device = np.argsort(devices, kind="stable")
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(devices)) - np.repeat(starts, counts)
        at = (rank + 0.5) / np.repeat(counts, counts)
        return by_device[np.argsort(at, kind="stable")]
