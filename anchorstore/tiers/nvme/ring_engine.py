"""The io_uring engine: one thread keeps `depth` runs out at the kernel, many a system call.

::

    scheduler --take--> lanes (scratch, vectors) --push--> ring --enter--> kernel
                             ^                                                |
                             +---- conclude: footer, xxh3 <--completions------+

While runs are out, a submit of new work wakes the thread by an eventfd that the ring reads.  About
half the CPU of the threads at 64 KiB, little difference at 1 MiB.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import threading
from typing import Any

from anchorstore.tiers.nvme.engines import advanced, conclude, guarded
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.jobs import RUN_BLOCKS_MAX, SCRATCH_BYTES, Place, Run
from anchorstore.tiers.nvme.ring import READ, READV, WRITEV, Ring
from anchorstore.tiers.nvme.scheduler import Scheduler
from anchorstore.tiers.nvme.seam import FileSeam, aligned

_VECTORS_MAX = 2 * RUN_BLOCKS_MAX  # whole pages and tail
_WAKE_TAG = 2**32


@dataclasses.dataclass(slots=True)
class _Lane:
    """Room for one run at the kernel."""

    tag: int
    scratch: memoryview
    vectors: Any  # uint64[2 * _VECTORS_MAX]: address, length
    run: Run | None = None
    places: list[Place] = dataclasses.field(default_factory=list)
    buffers: list[Any] = dataclasses.field(default_factory=list)
    offset: int = 0


class RingEngine:
    """See Engine.  OSError where the kernel refuses a ring."""

    name = "io_uring"

    def __init__(self, file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> None:
        self._descriptor = file.descriptor
        self._scheduler, self._health = scheduler, health
        count = depth + max(1, depth // 2)  # reads and writes have their own bounds
        self._ring = Ring(count + 1)
        vectors = ctypes.c_uint64 * (2 * _VECTORS_MAX)
        self._lanes = [_Lane(at, aligned(SCRATCH_BYTES), vectors()) for at in range(count)]
        self._free = list(self._lanes)
        self._wake_word = ctypes.c_uint64()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        scheduler.on_work = lambda: os.eventfd_write(self._wake, 1)
        self._thread = threading.Thread(
            target=guarded, args=(self._work, scheduler, health), name="nvme-ring", daemon=True
        )
        self._thread.start()

    @property
    def _out(self) -> int:
        return len(self._lanes) - len(self._free)

    def _work(self) -> None:
        self._listen()
        while True:
            while self._free and (run := self._scheduler.take(wait=not self._out)) is not None:
                self._begin(self._free.pop(), run)
            if not self._out:
                return
            self._ring.enter(1)
            for tag, result in self._ring.completions():
                if tag == _WAKE_TAG:
                    self._listen()
                else:
                    self._landed(self._lanes[tag], result)

    def _listen(self) -> None:
        address = ctypes.addressof(self._wake_word)
        self._ring.push(READ, self._wake, address, 8, 0, _WAKE_TAG)

    def _begin(self, lane: _Lane, run: Run) -> None:
        lane.run = run
        try:
            lane.places = run.job.places_of(run, lane.scratch)
            lane.buffers = run.job.prepare(run, lane.places)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
            run.job.error = error
            self._scheduler.ended(run)
            lane.run = None
            self._free.append(lane)
            return
        lane.offset = run.job.offset_of(run)
        self._push(lane)

    def _push(self, lane: _Lane) -> None:
        assert lane.run is not None
        at = 0
        for buffer in lane.buffers:
            lane.vectors[at] = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            lane.vectors[at + 1] = len(buffer)
            at += 2
        operation = WRITEV if lane.run.job.is_write else READV
        address = ctypes.addressof(lane.vectors)
        self._ring.push(operation, self._descriptor, address, at // 2, lane.offset, lane.tag)

    def _landed(self, lane: _Lane, result: int) -> None:
        """One operation has ended, perhaps with less than was asked for."""
        run = lane.run
        assert run is not None
        code = -result if result < 0 else 0
        if not code:
            lane.buffers = advanced(lane.buffers, result)
            lane.offset += result
            if lane.buffers and result:
                self._push(lane)
                return
            if lane.buffers:  # the file ends here
                code = errno.ENOSPC if run.job.is_write else errno.EIO
        lane.buffers = []
        conclude(self._scheduler, self._health, run, lane.places, code)
        lane.run, lane.places = None, []
        self._free.append(lane)

    def close(self, timeout_seconds: float) -> bool:
        """See Engine."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        self._scheduler.on_work = None
        os.close(self._wake)  # the ring's read of it ends with the ring
        self._ring.close()
        return True
