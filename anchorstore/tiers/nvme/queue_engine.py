"""Asynchronous engines: one thread keeps `depth` runs out at the kernel, many a system call.

::

    scheduler --take--> lanes (scratch, vectors) --> ready --push, enter--> kernel
                                                       ^                       |
                                                       +-- one for another ----+
        free lanes <-- conclude: xxh3 <-- judged later <-- landed <------------+

As many runs as are out are ready, all made up: a device that has done what it was given stands
still until it has more, so one of them takes the place of each that lands, before anything else
happens.  What has landed is judged last.  Each goes out by a call of its own: the device begins
with the first while the others are on their way, and they land one by one; handed over together
they land together.  While runs are out, a submit of new work wakes the thread by an eventfd that
the queue listens to.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import threading

from anchorstore.tiers.nvme.aio import KernelAio
from anchorstore.tiers.nvme.engines import conclude, guarded
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.jobs import RUN_BLOCKS_MAX, Run, Scratch
from anchorstore.tiers.nvme.kernel_queue import Call, KernelQueue
from anchorstore.tiers.nvme.scheduler import Scheduler
from anchorstore.tiers.nvme.seam import FileSeam, address_of
from anchorstore.tiers.nvme.uring import Ring

_VECTORS_MAX = 2 * RUN_BLOCKS_MAX  # whole pages and tail
_VECTOR_BYTES = 16
_WAKE_TAG = 2**32
WRITES_BYTES = 256 * 1024  # so much may land before another look is worth it
_HOLDING = ctypes.PyDLL(None)  # libc, called without letting go of the interpreter


class Lane:
    """Room for one run on its way through the kernel."""

    def __init__(self, queue: KernelQueue, descriptor: int, tag: int) -> None:
        self._queue, self._descriptor, self._tag = queue, descriptor, tag
        self.scratch = Scratch()
        memory = memoryview(bytearray(_VECTORS_MAX * _VECTOR_BYTES))
        self.vectors, self._address = memory.cast("Q"), address_of(memory)
        self.run: Run  # while there is one
        self.operation = b""  # for the queue
        self.first, self.stop = 0, 0  # the vectors that are still to be moved; none: not made up
        self.left = 0  # their bytes
        self.code = 0  # the kernel's answer, an error number
        self.offset = 0

    def begin(self, run: Run) -> None:
        """Makes up what the kernel shall do."""
        job = run.job
        self.run, self.offset, self.left = run, run.offset, run.size
        self.first = self.stop = 0
        if where := job.straight(run):
            self._make_up(Call.READ, where, run.size)
            return
        job.fill(run, self.scratch)
        self.stop = job.vectors(run, self.scratch, self.vectors)
        self._make_up_vectors(job.is_write)

    def _make_up(self, call: Call, where: int, length: int) -> None:
        self.operation = self._queue.operation(
            call, self._descriptor, where, length, self.offset, self._tag
        )

    def _make_up_vectors(self, is_write: bool) -> None:
        where, count = self._address + self.first * _VECTOR_BYTES, self.stop - self.first
        self._make_up(Call.WRITEV if is_write else Call.READV, where, count)

    def advance(self, count: int) -> None:
        """So many bytes were moved, which are not all."""
        run = self.run
        if not self.stop:
            self.stop = run.job.vectors(run, self.scratch, self.vectors)
        self.offset += count
        self.left -= count
        vectors = self.vectors
        while count >= vectors[2 * self.first + 1]:
            count -= vectors[2 * self.first + 1]
            self.first += 1
        vectors[2 * self.first] += count
        vectors[2 * self.first + 1] -= count
        self._make_up_vectors(run.job.is_write)


class QueueEngine:
    """See Engine.  The queue takes 2 `depth` + 1 operations and is the engine's from now on."""

    def __init__(
        self,
        name: str,
        queue: KernelQueue,
        descriptor: int,
        scheduler: Scheduler,
        health: Health,
        depth: int,
    ) -> None:
        self.name, self._queue, self._descriptor = name, queue, descriptor
        self._scheduler, self._health, self._depth = scheduler, health, depth
        self._lanes: list[Lane] = []
        self._free: list[Lane] = []
        self._ready: tuple[collections.deque[Lane], ...] = collections.deque(), collections.deque()
        self._at_kernel = [0, 0]  # runs, by `is_write`, as those that are ready
        self._landed: list[Lane] = []  # and not judged yet
        scheduler.ahead = depth
        self._write_bytes = WRITES_BYTES  # of the last that was begun
        scheduler.on_work = self._awake
        self._thread = threading.Thread(
            target=guarded, args=(self._work, scheduler, health), name="nvme-queue", daemon=True
        )
        self._thread.start()

    def _awake(self) -> None:
        """By whoever submits, the event loop perhaps: it keeps the interpreter to itself, and does
        not stand behind this engine's thread to have it back."""
        _HOLDING.eventfd_write(self._queue.wake, ctypes.c_uint64(1))

    def _work(self) -> None:
        try:
            self._serve()
        except Exception:
            self._scheduler.abandon([lane.run for lane in self._landed])
            raise

    def _serve(self) -> None:
        self._queue.listen(_WAKE_TAG)
        while True:
            is_idle = not self._landed and not any(self._at_kernel)
            runs = self._scheduler.take(2 * self._depth, wait=is_idle)
            if is_idle and not runs:
                return
            self._begin(runs)
            if self._landed:
                self._judge()
            if any(self._at_kernel):
                self._queue.enter(self._few())
                self._land()

    def _begin(self, runs: list[Run]) -> None:
        """Makes runs up; those that the depth allows go to the kernel."""
        limits = self._scheduler.depth(False), self._scheduler.depth(True)
        for run in runs:
            try:
                if not self._free:
                    self._free.append(self._new_lane())
                lane = self._free[-1]
                lane.begin(run)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
                run.job.error = error
                self._scheduler.ended([run])
                continue
            self._free.pop()
            is_write = run.job.is_write
            self._ready[is_write].append(lane)
            if self._at_kernel[is_write] < limits[is_write]:
                self._hand_over(is_write)

    def _hand_over(self, is_write: bool) -> None:
        """Gives the kernel one that is ready."""
        lane = self._ready[is_write].popleft()
        self._queue.push(lane.operation)
        self._queue.enter(0)
        self._scheduler.handed_over(lane.run)
        self._at_kernel[is_write] += 1
        if is_write:
            self._write_bytes = lane.left

    def _new_lane(self) -> Lane:
        lane = Lane(self._queue, self._descriptor, len(self._lanes))
        self._lanes.append(lane)
        return lane

    def _few(self) -> int:
        """Landings that are worth a look: a read is waited for, and a large write; of small writes
        alone several go by."""
        reads, writes = self._at_kernel
        return 1 if reads else max(1, min(writes // 2, WRITES_BYTES // self._write_bytes))

    def _land(self) -> None:
        """Some runs have come to an end at the kernel; others take their places."""
        for tag, result in self._queue.completions():
            if tag == _WAKE_TAG:
                self._queue.listen(_WAKE_TAG)
                continue
            lane = self._lanes[tag]
            is_write = lane.run.job.is_write
            lane.code = 0
            if result != lane.left:
                if 0 < result < lane.left:
                    lane.advance(result)
                    self._queue.push(lane.operation)
                    continue
                # an error, or the end of the file
                lane.code = -result or (errno.ENOSPC if is_write else errno.EIO)
            self._at_kernel[is_write] -= 1
            self._landed.append(lane)
            if self._ready[is_write]:
                self._hand_over(is_write)
        self._scheduler.land([lane.run for lane in self._landed])

    def _judge(self) -> None:
        landed, self._landed = self._landed, []
        conclude(self._scheduler, self._health, landed)
        for lane in landed:
            del lane.run  # and with it the plan's memory
        self._free += landed

    def close(self, timeout_seconds: float) -> bool:
        """See Engine."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive() or any(self._at_kernel):  # or it broke, and bytes may move yet
            return False
        self._scheduler.on_work = None
        self._queue.close()
        return True


def ring_engine(file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> QueueEngine:
    """io_uring; OSError where the kernel does not allow it."""
    descriptor = file.descriptor
    return QueueEngine("io_uring", Ring(2 * depth + 1), descriptor, scheduler, health, depth)


def aio_engine(file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> QueueEngine:
    """Linux's older interface; OSError where the kernel does not allow it, or would wait for each
    call of the one thread."""
    descriptor = file.descriptor
    if not file.is_direct:
        raise OSError(errno.EOPNOTSUPP, "the file system has no O_DIRECT")
    return QueueEngine("aio", KernelAio(2 * depth + 1), descriptor, scheduler, health, depth)
