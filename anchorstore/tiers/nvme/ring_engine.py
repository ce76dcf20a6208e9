"""The io_uring engine: one thread keeps `depth` runs out at the kernel, many a system call.

::

    scheduler --take--> lanes (scratch, vectors) --push--> ring --enter--> kernel
                             ^                                                |
                             +---- conclude: footer, xxh3 <--completions------+

What has landed is judged only after other runs have taken its place, so that the kernel always has
work; there are twice as many lanes as runs may be out.  While runs are out, a submit of new work
wakes the thread by an eventfd that the ring reads.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import threading
from collections.abc import Iterator

from anchorstore.tiers.nvme.engines import Landed, conclude, guarded
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.jobs import RUN_BLOCKS_MAX, Run, Scratch, address_of
from anchorstore.tiers.nvme.ring import READ, READV, WRITEV, Ring
from anchorstore.tiers.nvme.scheduler import Scheduler
from anchorstore.tiers.nvme.seam import FileSeam

_VECTORS_MAX = 2 * RUN_BLOCKS_MAX  # whole pages and tail
_VECTOR_BYTES = 16
_WAKE_TAG = 2**32
_HOLDING = ctypes.PyDLL(None)  # libc, called without letting go of the interpreter


class Lane:
    """Room for one run at the kernel."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.scratch = Scratch()
        memory = memoryview(bytearray(_VECTORS_MAX * _VECTOR_BYTES))
        self.vectors, self.address = memory.cast("Q"), address_of(memory)
        self.run: Run | None = None
        self.first, self.stop = 0, 0  # the vectors that are still to be moved
        self.left = 0  # their bytes
        self.code = 0  # the kernel's answer, an error number
        self.offset = 0

    def begin(self, run: Run) -> None:
        """Makes the vectors of a run."""
        job = run.job
        job.fill(run, self.scratch)
        self.first, self.stop = 0, job.vectors(run, self.scratch, self.vectors)
        self.offset, self.left = run.offset, run.size
        self.run = run

    def advance(self, count: int) -> None:
        """So many bytes were moved, which are not all."""
        self.offset += count
        self.left -= count
        vectors = self.vectors
        while count >= vectors[2 * self.first + 1]:
            count -= vectors[2 * self.first + 1]
            self.first += 1
        vectors[2 * self.first] += count
        vectors[2 * self.first + 1] -= count


class RingEngine:
    """See Engine.  OSError where the kernel refuses a ring."""

    name = "io_uring"

    def __init__(self, file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> None:
        self._descriptor = file.descriptor
        self._scheduler, self._health = scheduler, health
        count = depth + max(1, depth // 2)  # reads and writes have their own bounds
        self._ring = Ring(2 * count + 1)
        self._lanes = [Lane(tag) for tag in range(2 * count)]
        self._free = list(self._lanes)
        self._wake_word = ctypes.c_uint64()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        scheduler.on_work = self._awake
        self._thread = threading.Thread(
            target=guarded, args=(self._work, scheduler, health), name="nvme-ring", daemon=True
        )
        self._thread.start()

    def _awake(self) -> None:
        """By whoever submits, the event loop perhaps: it keeps the interpreter to itself, and does
        not stand behind this engine's thread to have it back."""
        _HOLDING.eventfd_write(self._wake, ctypes.c_uint64(1))

    @property
    def _out(self) -> int:
        return len(self._lanes) - len(self._free)

    def _work(self) -> None:
        self._listen()
        while True:
            runs = self._scheduler.take(len(self._free), wait=not self._out)
            if not runs and not self._out:
                return
            self._begin(runs)
            if self._out:
                self._ring.enter(1)
                self._reap()

    def _reap(self) -> None:
        """Others take the place of the runs that have landed; then these are judged.

        Devices tend to answer many calls at a time, and are then idle until the next one comes:
        the first is handed over before anything else is done.
        """
        landing, landed = self._landed(), []
        for lanes in (list(itertools.islice(landing, 1)), list(landing)):
            if lanes:
                runs = [lane.run for lane in lanes if lane.run]
                self._begin(self._scheduler.take(len(self._free), wait=False, landed=runs))
                self._ring.enter(0)
                landed += lanes
        if landed:
            answers = [Landed(lane.run, lane.scratch, lane.code) for lane in landed if lane.run]
            conclude(self._scheduler, self._health, answers)
            for lane in landed:
                lane.run = None  # and with it the plan's memory
            self._free += landed

    def _listen(self) -> None:
        address = ctypes.addressof(self._wake_word)
        self._ring.push(READ, self._wake, address, 8, 0, _WAKE_TAG)

    def _begin(self, runs: list[Run]) -> None:
        """Pushes runs; the kernel gets them by the next `enter`."""
        for run in runs:
            lane = self._free.pop()
            try:
                lane.begin(run)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
                run.job.error = error
                self._scheduler.ended([run])
                self._free.append(lane)
                continue
            self._push(lane, run)

    def _push(self, lane: Lane, run: Run) -> None:
        operation = WRITEV if run.job.is_write else READV
        address, count = lane.address + lane.first * _VECTOR_BYTES, lane.stop - lane.first
        self._ring.push(operation, self._descriptor, address, count, lane.offset, lane.tag)

    def _landed(self) -> Iterator[Lane]:
        """Those whose runs have come to an end at the kernel."""
        for tag, result in self._ring.completions():
            if tag == _WAKE_TAG:
                self._listen()
                continue
            lane = self._lanes[tag]
            assert lane.run is not None
            if 0 < result < lane.left:
                lane.advance(result)
                self._push(lane, lane.run)
                continue
            lane.code = 0
            if result != lane.left:  # an error, or the end of the file
                lane.code = -result or (errno.ENOSPC if lane.run.job.is_write else errno.EIO)
            yield lane

    def close(self, timeout_seconds: float) -> bool:
        """See Engine."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        self._scheduler.on_work = None
        os.close(self._wake)  # the ring's read of it ends with the ring
        self._ring.close()
        return True
