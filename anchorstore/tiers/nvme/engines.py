"""How runs reach the kernel: threads that each wait for one call.

An engine takes runs from the scheduler until that is closed; what the kernel answered goes to
`conclude`, which is the same for every engine.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from anchorstore.tiers.nvme.health import Health, State
from anchorstore.tiers.nvme.jobs import Run, Scratch
from anchorstore.tiers.nvme.plans import Status
from anchorstore.tiers.nvme.scheduler import Scheduler
from anchorstore.tiers.nvme.seam import FileSeam


class Engine(Protocol):
    """Works a scheduler off."""

    name: str

    def close(self, timeout_seconds: float) -> bool:
        """After the scheduler's close: waits for what is out; False where it is still out."""


def guarded(work: Callable[[], None], scheduler: Scheduler, health: Health) -> None:
    """An engine's thread: one that breaks ends the device, in the open, and never just stops.

    What is out at the kernel then stays out: nobody can say when it has landed.
    """
    try:
        work()
    except Exception as error:  # noqa: BLE001 - said to health, whatever it is
        health.begin("engine", f"its engine broke: {error!r}", State.OFFLINE)
        scheduler.close()


EngineFactory = Callable[[FileSeam, Scheduler, Health, int], Engine]
"""File, scheduler, health and depth; OSError where the kernel does not allow it."""


TRANSIENT = (errno.EINTR, errno.EAGAIN)
"""Answers of the kernel that say nothing of the device or the block: it was just not done."""

DAMAGE = (Status.TORN, Status.FOREIGN)
"""What a closer look at one slot finds where its bytes are nobody's; a block that has taken the
slot since is no damage."""


class Landed(Protocol):
    """A run that the kernel is done with; `code` is 0, or an error number."""

    @property
    def run(self) -> Run: ...
    @property
    def scratch(self) -> Scratch: ...
    @property
    def code(self) -> int: ...


class Moved(NamedTuple):
    """See Landed."""

    run: Run
    scratch: Scratch
    code: int


def conclude(scheduler: Scheduler, health: Health, runs: Sequence[Landed]) -> None:
    """Judges runs and ends them.  One that has failed is tried again block by block; a block that
    the kernel put off twice is not lost, and blocks whose bytes are wrong are looked at closely."""
    ended = []
    for landed in runs:
        run, code = landed.run, landed.code
        job = run.job
        if code and len(run) > 1:
            scheduler.again(run, job.singles(run))
            continue
        if code in TRANSIENT:
            job.settle(run, Status.REFUSED)
        elif code:
            health.failed(job.is_write, code)
            job.settle(run, Status.FAILED)
            if not job.is_write:
                health.lost(run.offset, os.strerror(code))
        else:
            health.worked(job.is_write)
            try:
                if doubts := job.judge(run, landed.scratch):
                    scheduler.again(run, doubts)
                    continue
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
                job.error = error
            if (
                run.is_close
                and not job.is_write
                and (verdict := Status(job.status[run.start])) in DAMAGE
            ):
                health.lost(run.offset, verdict.name.lower())
        ended.append(run)
    scheduler.ended(ended)


def advanced(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers after `count` bytes."""
    left = []
    for buffer in buffers:
        size = len(buffer)
        if count >= size:
            count -= size
            continue
        left.append(buffer[count:] if count else buffer)
        count = 0
    return left


def move(file: FileSeam, run: Run, scratch: Scratch) -> int:
    """Moves all bytes of a run; 0, or the error number that ended it."""
    job = run.job
    job.fill(run, scratch)
    buffers, offset, left = job.buffers(run, scratch), run.offset, run.size
    call = file.pwritev if job.is_write else file.preadv
    try:
        while (count := call(buffers, offset)) != left:
            if not count:  # the file ends here
                return errno.ENOSPC if job.is_write else errno.EIO
            offset, left = offset + count, left - count
            buffers = advanced(buffers, count)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class ThreadEngine:
    """`depth` threads, each in one preadv or pwritev at a time."""

    name = "threads"

    def __init__(self, file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> None:
        self._file, self._scheduler, self._health = file, scheduler, health
        self._threads = [
            threading.Thread(
                target=guarded,
                args=(self._work, scheduler, health),
                name=f"nvme-{index}",
                daemon=True,
            )
            for index in range(depth)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        scratch = Scratch()
        while runs := self._scheduler.take(1, wait=True):
            run = runs[0]
            try:
                code = move(self._file, run, scratch)
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the job
                run.job.error = error
                self._scheduler.ended(runs)
                continue
            conclude(self._scheduler, self._health, [Moved(run, scratch, code)])

    def close(self, timeout_seconds: float) -> bool:
        """See Engine."""
        for thread in self._threads:
            thread.join(timeout_seconds)
        return not any(thread.is_alive() for thread in self._threads)
