"""What a device does next: reads before writes, plan by plan in turn, within its limits.

::

    submit ---> reads  [job][job][job]  --+            take one run of the first job,
                writes [job][job]       --+--> take()  then that job goes to the back
                                               ^
                bandwidth: a bucket each way   writes hold at most half of the depth

A job's future is done when no byte of it can move any more: a run that has begun is always waited
for, since the memory that it fills or drains must not be used for anything else.  What has not
begun at its deadline is LATE.  A run that has been out for longer than that makes the device
*stalled*: it is given no more work until it answers.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Callable

from anchorstore.clock import Clock
from anchorstore.tiers.nvme.jobs import Job, Run
from anchorstore.tiers.nvme.plans import Done, Status

WATCH_SECONDS = 0.05  # how late a passed deadline may be seen where nothing else happens


class Bucket:
    """Bytes a second; a grant may go into debt, which the next one waits for.  0 = no limit."""

    def __init__(self, bytes_per_second: float, burst_seconds: float = 0.05) -> None:
        self._rate = bytes_per_second
        self._burst = bytes_per_second * burst_seconds
        self._level, self._seen = self._burst, 0.0

    def wait_seconds(self, now: float) -> float:
        """0 where bytes may go now."""
        if not self._rate:
            return 0.0
        self._level = min(self._burst, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return max(0.0, -self._level / self._rate)

    def spend(self, size: int) -> None:
        """Counts bytes that go."""
        if self._rate:
            self._level -= size


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one device's queue.

    Attributes:
        depth: runs at the same time.
        queue_blocks: blocks that wait or move, each way.
        deadline_seconds: from submit to the start of a run, and for a run itself.
        read_bytes_per_second, write_bytes_per_second: 0 = no limit.
    """

    depth: int = 8
    queue_blocks: int = 16_384
    deadline_seconds: float = 2.0
    read_bytes_per_second: float = 0.0
    write_bytes_per_second: float = 0.0


class _Lane:
    """One direction."""

    def __init__(self, depth: int, bytes_per_second: float) -> None:
        self.jobs: collections.deque[Job] = collections.deque()
        self.bucket = Bucket(bytes_per_second)
        self.depth = depth
        self.blocks = 0
        self.runs_out = 0
        self.earliest = math.inf  # no job's deadline is before it


class Scheduler:
    """Thread-safe; engines call `take` and `ended`."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.RLock()  # its conditions know its owner without a try
        self._work = threading.Condition(self._lock)  # for those who take
        self._waiting = threading.Condition(self._lock)  # for the watcher
        self.reads = _Lane(limits.depth, limits.read_bytes_per_second)
        self.writes = _Lane(max(1, limits.depth // 2), limits.write_bytes_per_second)
        self._out: dict[Run, float] = {}
        self._is_closed = False
        self.late_blocks = 0
        self.on_work: Callable[[], object] | None = None  # for an engine that does not wait here

    def lane(self, job: Job) -> _Lane:
        """The lane of a job."""
        return self.writes if job.is_write else self.reads

    def submit(self, job: Job) -> None:
        """Queues a job of at least one block, or ends it at once with REFUSED."""
        with self._lock:
            lane = self.lane(job)
            is_full = lane.blocks + len(job) > self._limits.queue_blocks
            if not (self._is_closed or is_full or self._stalled()):
                job.deadline = self._clock.now() + self._limits.deadline_seconds
                lane.blocks += len(job)
                lane.jobs.append(job)
                lane.earliest = min(lane.earliest, job.deadline)
                self._work.notify()
                self._waiting.notify()
                if self.on_work is not None:
                    self.on_work()
                return
        job.status[:] = Status.REFUSED
        job.future.set_result(Done(job.status))

    def is_stalled(self) -> bool:
        """Whether a run has been out for longer than the deadline."""
        with self._lock:
            return self._stalled()

    def _stalled(self) -> bool:
        oldest = next(iter(self._out.values()), None)  # in the order of their start
        if oldest is None:
            return False
        return self._clock.now() - oldest > self._limits.deadline_seconds

    def take(self, wait: bool) -> Run | None:
        """The next run; None where there is none to be begun now, or, waiting, at the end."""
        while True:
            ended: list[Job] = []
            with self._lock:
                self._expire(ended)
                run, pause = self._next()
                if run is None and wait and not ended and not self._is_closed:
                    self._work.wait(pause)
                is_over = run is not None or not wait or self._is_closed
            self._finish(ended)
            if is_over:
                return run

    def _next(self) -> tuple[Run | None, float | None]:
        """A run, or how long to wait for one."""
        pauses = []
        for lane in (self.reads, self.writes):
            if not lane.jobs or lane.runs_out >= lane.depth:
                continue
            pause = lane.bucket.wait_seconds(self._clock.now())
            if pause:
                pauses.append(pause)
                continue
            job = lane.jobs.popleft()
            run = job.runs.popleft()
            if job.runs:
                lane.jobs.append(job)
            lane.bucket.spend(run.size)
            lane.runs_out += 1
            self._out[run] = self._clock.now()
            if self.reads.jobs or self.writes.jobs:
                self._work.notify()  # whoever wakes takes one run and wakes the next
            return run, None
        return None, min(pauses, default=None)

    def ended(self, run: Run) -> None:
        """The kernel is done with a run, whose blocks have their status."""
        self._end(run, [])

    def again(self, run: Run) -> None:
        """A run of several blocks failed: each is tried on its own."""
        self._end(run, [run.job.single(at) for at in range(run.start, run.stop)])

    def _end(self, run: Run, again: list[Run]) -> None:
        job = run.job
        with self._lock:
            lane = self.lane(job)
            del self._out[run]
            lane.runs_out -= 1
            if again:
                if not job.runs:
                    lane.jobs.append(job)
                    lane.earliest = min(lane.earliest, job.deadline)
                job.runs.extend(again)
            else:
                self._count(job, run.stop - run.start)
            is_done = not job.blocks_left
            self._work.notify()
        if is_done:
            self._finish([job])

    def _count(self, job: Job, blocks: int) -> None:
        self.lane(job).blocks -= blocks
        job.blocks_left -= blocks

    def _expire(self, ended: list[Job]) -> None:
        now = self._clock.now()
        for lane in (self.reads, self.writes):
            if not self._is_closed and now < lane.earliest:
                continue
            for job in [job for job in lane.jobs if self._is_closed or job.deadline <= now]:
                lane.jobs.remove(job)
                verdict = Status.REFUSED if self._is_closed else Status.LATE
                while job.runs:
                    run = job.runs.popleft()
                    job.status[run.start : run.stop] = verdict
                    self.late_blocks += run.stop - run.start
                    self._count(job, run.stop - run.start)
                if not job.blocks_left:
                    ended.append(job)
            lane.earliest = min((job.deadline for job in lane.jobs), default=math.inf)

    def expire(self) -> None:
        """Ends what has passed its deadline without having begun."""
        ended: list[Job] = []
        with self._lock:
            self._expire(ended)
        self._finish(ended)

    def watch(self) -> None:
        """Runs in a thread of its own: the workers may all be stuck."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                self._waiting.wait(WATCH_SECONDS if self.reads.jobs or self.writes.jobs else None)
            self.expire()

    @staticmethod
    def _finish(jobs: list[Job]) -> None:
        for job in jobs:
            if job.error is None:
                job.future.set_result(Done(job.status))
            else:
                job.future.set_exception(job.error)

    def close(self) -> None:
        """Refuses what waits; what is out is still waited for by whoever took it."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
            self._waiting.notify_all()
        self.expire()
