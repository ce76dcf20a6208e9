"""Reads of the nvme tier, in turns: who asks for much does not keep others from their device.

::

    plan of a namespace --cut by device, then into pieces--> lines, one a namespace (core/turns.py)
                                                                  |   a device at a time has so many
    the plan's future <------ all pieces have ended -------- NvmeTier.read   bytes on their way

A piece waits here no longer than a device may take to begin one: then it is late, and its blocks
stay where they are.  Each device has its own lines, so that one that is stuck holds up nobody
else's reads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.turns import Turns
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.base import Tier
from anchorstore.tiers.nvme.jobs import MemoryOf
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status, chosen
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.units import MIB

WINDOW_BYTES = 32 * MIB  # on their way at a device
WINDOW_BYTES_MIN = MIB // 4  # where a limit on bandwidth bounds it
PIECES_A_WINDOW = 8
PIECES_TOGETHER = PIECES_A_WINDOW // 2  # so that the device has work while one read is ended

Positions = npt.NDArray[np.intp]


@dataclasses.dataclass(eq=False, slots=True)
class _Whole:
    """A plan.  `left` counts its blocks without an end; `timer` ends those that have not begun."""

    plan: ReadPlan
    memory_of: MemoryOf
    future: asyncio.Future[Done]
    status: npt.NDArray[np.uint8]
    left: int
    timer: asyncio.TimerHandle | None = None

    def end(self, rows: Positions, status: npt.NDArray[np.uint8] | Status) -> None:
        """These of its blocks have ended so."""
        self.status[rows] = status
        self.left -= len(rows)
        if not self.left:
            if self.timer is not None:
                self.timer.cancel()
            if not self.future.cancelled():  # by a daemon that ends
                self.future.set_result(Done(self.status))


@dataclasses.dataclass(eq=False, slots=True)
class _Piece:
    """Some blocks of a plan, all on one device."""

    whole: _Whole
    device: int
    rows: Positions
    bytes: int


class Reads:
    """As many blocks wait here for a device, and for as long, as in the device's own queue.  Not
    for use from other threads than the event loop's."""

    def __init__(self, nvme: NvmeTier, tier: Tier, supervisor: Supervisor) -> None:
        self._nvme, self._tier, self._supervisor = nvme, tier, supervisor
        limits = [device.limits for device in nvme.devices]
        self._deadline_seconds = max(limit.deadline_seconds for limit in limits)
        self._windows = [_window_bytes(limit) for limit in limits]
        self._piece_bytes = [window // PIECES_A_WINDOW for window in self._windows]
        self._lines = [
            Turns[_Piece](limit.queue_blocks, quantum)
            for limit, quantum in zip(limits, self._piece_bytes, strict=True)
        ]
        self._bytes_out = [0 for _ in nvme.devices]

    @property
    def waiting(self) -> int:
        """Blocks that wait for their turn."""
        return sum(map(len, self._lines))

    def read(
        self, owner: int, plan: ReadPlan, memory_of: MemoryOf | None = None
    ) -> asyncio.Future[Done]:
        """As NvmeTier.read, into the pool or elsewhere, when it is the namespace's turn.  Where a
        device's line has no room for its part, all of it is refused."""
        loop = asyncio.get_running_loop()
        status, memory_of = np.zeros(len(plan), np.uint8), memory_of or self._tier.memory
        whole = _Whole(plan, memory_of, loop.create_future(), status, len(plan))
        devices = self._nvme.devices_of(plan.unit)
        counts = np.bincount(devices, minlength=len(self._lines)).tolist()
        if any(n > line.room(owner) for n, line in zip(counts, self._lines, strict=True)):
            whole.end(np.arange(len(plan)), Status.REFUSED)
            return whole.future
        for piece in _pieces(whole, devices, self._piece_bytes):
            self._lines[piece.device].put(owner, piece, piece.bytes, len(piece.rows))
        for device in np.flatnonzero(counts).tolist():
            self._begin(device)
        if whole.left:
            whole.timer = loop.call_later(self._deadline_seconds, self._late, whole)
        return whole.future

    def _begin(self, device: int) -> None:
        """As many pieces as the device may have on their way; those of one plan go together."""
        taken: dict[_Whole, list[_Piece]] = {}
        while self._bytes_out[device] < self._windows[device]:
            piece = self._lines[device].next()
            if piece is None:
                break
            self._bytes_out[device] += piece.bytes
            taken.setdefault(piece.whole, []).append(piece)
        for pieces in taken.values():
            for at in range(0, len(pieces), PIECES_TOGETHER):
                self._read(_joined(pieces[at : at + PIECES_TOGETHER]))

    def _read(self, piece: _Piece) -> None:
        plan = chosen(piece.whole.plan, piece.rows)
        assert isinstance(plan, ReadPlan)
        reading = asyncio.wrap_future(self._nvme.read(plan, piece.whole.memory_of))
        reading.add_done_callback(functools.partial(self._ended, piece))

    def _ended(self, piece: _Piece, reading: asyncio.Future[Done]) -> None:
        """An error here is a bug: the supervisor is told."""
        try:
            self._bytes_out[piece.device] -= piece.bytes
            piece.whole.end(piece.rows, reading.result().status)
            self._begin(piece.device)
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._supervisor.fail("reads", error)

    def _late(self, whole: _Whole) -> None:
        """What has not begun by now is given up; what has is waited for."""
        for line in self._lines:
            for piece in line.drop(lambda piece: piece.whole is whole):
                whole.end(piece.rows, Status.LATE)


def _window_bytes(limits: Limits) -> int:
    """What a device may have on its way: not what it would be too late for, where so many bytes a
    second are the limit."""
    if not limits.read_bytes_per_second:
        return WINDOW_BYTES
    in_time = int(limits.read_bytes_per_second * limits.deadline_seconds / 2)
    return max(WINDOW_BYTES_MIN, min(WINDOW_BYTES, in_time))


def _joined(pieces: Sequence[_Piece]) -> _Piece:
    """Pieces of one plan as one."""
    if len(pieces) == 1:
        return pieces[0]
    rows = np.concatenate([piece.rows for piece in pieces])
    size = sum(piece.bytes for piece in pieces)
    return _Piece(pieces[0].whole, pieces[0].device, rows, size)


def _pieces(whole: _Whole, devices: Positions, piece_bytes: Sequence[int]) -> Iterator[_Piece]:
    """The plan's blocks by device, in the plan's order, so many bytes or one block at a time."""
    for device in np.unique(devices).tolist():
        rows = np.flatnonzero(devices == device)
        ends = np.cumsum(whole.plan.block_bytes[rows].astype(np.int64))
        number = (ends - 1) // piece_bytes[device]
        for part in np.split(rows, np.flatnonzero(np.diff(number)) + 1):
            size = int(whole.plan.block_bytes[part].sum())
            yield _Piece(whole, device, part, size)
