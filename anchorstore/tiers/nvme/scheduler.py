"""What a device does next: reads before writes, plan by plan in turn, within its limits.

::

    submit ---> reads  [job][job][job]  --+            take one run of the first job,
                writes [job][job]       --+--> take()  then that job goes to the back
                                               ^
                bandwidth: a bucket each way   writes hold at most half of the depth, or all of it
                                               where nothing was read for a while

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
from collections.abc import Callable, Iterable, Sequence

from anchorstore.clock import Clock
from anchorstore.tiers.nvme.jobs import Job, Run
from anchorstore.tiers.nvme.plans import Done, Status

WATCH_SECONDS = 0.05  # how late a passed deadline may be seen where nothing else happens
QUIET_SECONDS = 0.1  # without a read, until writes may have the whole depth


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
        depth: runs at the kernel at the same time, each way.
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

    def __init__(self, bytes_per_second: float) -> None:
        self.jobs: collections.deque[Job] = collections.deque()
        self.bucket = Bucket(bytes_per_second)
        self.blocks = 0
        self.runs_out = 0

    def take(self, most: int, now: float) -> list[Run]:
        """The next runs, at most so many, job by job in turn, within the bandwidth."""
        runs: list[Run] = []
        jobs, bucket = self.jobs, self.bucket
        while jobs and len(runs) < most and not bucket.wait_seconds(now):
            job = jobs.popleft()
            run = job.runs.popleft()
            if job.runs:
                jobs.append(job)
            bucket.spend(run.size)
            runs.append(run)
        self.runs_out += len(runs)
        return runs


class Scheduler:
    """Thread-safe; engines call `take` and `ended`, and `land` in between where they have others
    begin before they look at what has landed.

    Attributes:
        ahead: runs each way that an engine takes beyond the depth, to have them ready; it keeps to
            the depth itself, then, and says what it hands over.  What is ready is never LATE.
        on_work: for an engine that does not wait here.
    """

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.RLock()  # its conditions know its owner without a try
        self._work = threading.Condition(self._lock)  # for those who take
        self._waiting = threading.Condition(self._lock)  # for the watcher
        self.reads = _Lane(limits.read_bytes_per_second)
        self.writes = _Lane(limits.write_bytes_per_second)
        self._lanes = (self.reads, self.writes)  # by `is_write`
        self._read_at = -math.inf  # when a read was last begun
        self._out: dict[Run, float] = {}  # taken, and when the kernel got it: inf, not yet
        self._earliest = math.inf  # no waiting job's deadline is before it
        self._is_closed = False
        self._is_watched = False
        self.late_blocks = 0
        self.ahead = 0
        self.on_work: Callable[[], object] | None = None

    def depth(self, is_write: bool) -> int:
        """How many runs may be at the kernel now."""
        return self._depth(is_write, self._clock.now())

    def _depth(self, is_write: bool, now: float) -> int:
        if not is_write or not (self.reads.blocks or now < self._read_at + QUIET_SECONDS):
            return self._limits.depth
        return max(1, self._limits.depth // 2)

    def submit(self, job: Job) -> None:
        """Queues a job of at least one block, or ends it at once with REFUSED."""
        with self._lock:
            lane = self._lanes[job.is_write]
            is_full = lane.blocks + len(job) > self._limits.queue_blocks
            if not (self._is_closed or is_full or self._stalled()):
                job.deadline = self._clock.now() + self._limits.deadline_seconds
                lane.blocks += len(job)
                lane.jobs.append(job)
                self._earliest = min(self._earliest, job.deadline)
                self._work.notify()
                if not self._is_watched:
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
        oldest = min(self._out.values(), default=math.inf)
        return self._clock.now() - oldest > self._limits.deadline_seconds

    def take(self, most: int, *, wait: bool) -> list[Run]:
        """The next runs, at most so many; none where none can begin now, or at the end."""
        while True:
            ended: list[Job] = []
            with self._lock:
                now = self._clock.now()
                if self._is_closed or now >= self._earliest:
                    self._expire(now, ended)
                runs, pause = self._begin(now, most)
                if not runs and wait and not ended and not self._is_closed:
                    self._work.wait(pause)
                is_over = bool(runs) or not wait or self._is_closed
            if ended:
                self._finish(ended)
            if is_over:
                return runs

    def _begin(self, now: float, most: int) -> tuple[list[Run], float | None]:
        """Runs to begin now, and how long to wait where there is none."""
        runs: list[Run] = []
        pause: float | None = None
        has_more = False
        for is_write, lane in enumerate(self._lanes):
            if not lane.jobs:
                continue
            room = self._depth(bool(is_write), now) + self.ahead - lane.runs_out
            taken = lane.take(min(room, most - len(runs)), now)
            if taken and not is_write:
                self._read_at = now
            runs += taken
            if lane.jobs and len(taken) < room:
                if wait_seconds := lane.bucket.wait_seconds(now):
                    pause = wait_seconds if pause is None else min(pause, wait_seconds)
                else:
                    has_more = True
        self._out.update(dict.fromkeys(runs, math.inf if self.ahead else now))
        if runs and has_more:
            self._work.notify()  # whoever wakes takes its part and wakes the next
        return runs, pause

    def handed_over(self, run: Run) -> None:
        """The kernel has it from now on, by an engine that takes runs ahead."""
        with self._lock:
            self._out[run] = self._clock.now()

    def land(self, runs: Iterable[Run]) -> None:
        """The kernel is done with these: others may take their place."""
        with self._lock:
            for run in runs:
                self._land(run)

    def _land(self, run: Run) -> None:
        if self._out.pop(run, None) is not None:
            self._lanes[run.job.is_write].runs_out -= 1

    def ended(self, runs: Sequence[Run]) -> None:
        """Runs whose blocks have their status.  Whoever says so takes again, so nobody is woken."""
        done: list[Job] = []
        with self._lock:
            for run in runs:
                self._land(run)
                self._count(run.job, len(run))
                if not run.job.blocks_left:
                    done.append(run.job)
        self._finish(done)

    def again(self, run: Run, singles: Sequence[Run]) -> None:
        """Some blocks of a run are tried on their own; the others have their status."""
        job = run.job
        with self._lock:
            self._land(run)
            lane = self._lanes[job.is_write]
            if not job.runs:
                lane.jobs.append(job)
                self._earliest = min(self._earliest, job.deadline)
            job.runs.extend(singles)
            self._count(job, len(run) - len(singles))

    def _count(self, job: Job, blocks: int) -> None:
        self._lanes[job.is_write].blocks -= blocks
        job.blocks_left -= blocks

    def _expire(self, now: float, ended: list[Job]) -> None:
        for lane in self._lanes:
            for job in [job for job in lane.jobs if self._is_closed or job.deadline <= now]:
                lane.jobs.remove(job)
                while job.runs:
                    self._give_up(job.runs.popleft(), ended)
        waiting = (job.deadline for lane in self._lanes for job in lane.jobs)
        self._earliest = min(waiting, default=math.inf)

    def _give_up(self, run: Run, ended: list[Job]) -> None:
        run.job.give_up(run, Status.REFUSED if self._is_closed else Status.LATE)
        self.late_blocks += len(run)
        self._count(run.job, len(run))
        if not run.job.blocks_left:
            ended.append(run.job)

    def expire(self) -> None:
        """Ends what has passed its deadline without having begun."""
        ended: list[Job] = []
        with self._lock:
            self._expire(self._clock.now(), ended)
        self._finish(ended)

    def watch(self) -> None:
        """Runs in a thread of its own: the workers may all be stuck."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                self._is_watched = bool(self.reads.jobs or self.writes.jobs)
                self._waiting.wait(WATCH_SECONDS if self._is_watched else None)
            self.expire()

    @staticmethod
    def _finish(jobs: list[Job]) -> None:
        for job in jobs:
            if job.error is None:
                job.future.set_result(Done(job.status))
            else:
                job.future.set_exception(job.error)

    def abandon(self, landed: Iterable[Run]) -> None:
        """An engine has broken: refuses these, which it has not judged, and what it has taken ahead
        and the kernel has not got."""
        ended: list[Job] = []
        with self._lock:
            self._is_closed = True
            ready = [run for run, handed_over in self._out.items() if handed_over == math.inf]
            for run in [*landed, *ready]:
                self._land(run)
                self._give_up(run, ended)
        self._finish(ended)

    def close(self) -> None:
        """Refuses what waits; what is out is still waited for by whoever took it."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
            self._waiting.notify_all()
        self.expire()
