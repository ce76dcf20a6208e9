"""Goal: every engine moves the same blocks, within the limits, and ends when told.
Method: one suite that all engines run, on real files; then the scheduler alone, by hand.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib

import numpy as np
import numpy.typing as npt
import pytest

from anchorstore.clock import ManualClock
from anchorstore.tiers.nvme.aio import KernelAio
from anchorstore.tiers.nvme.device import ENGINES, Options
from anchorstore.tiers.nvme.engines import Engine, Moved, advanced, conclude, guarded
from anchorstore.tiers.nvme.format import UNIT_BYTES, xxh3
from anchorstore.tiers.nvme.health import Health, State
from anchorstore.tiers.nvme.jobs import (
    RUN_BLOCKS_MAX,
    RUN_BYTES_MAX,
    Job,
    ReadJob,
    Scratch,
)
from anchorstore.tiers.nvme.kernel_queue import Call, KernelQueue
from anchorstore.tiers.nvme.plans import ReadPlan, Status, WritePlan, chosen
from anchorstore.tiers.nvme.queue_engine import Lane, QueueEngine
from anchorstore.tiers.nvme.scheduler import QUIET_SECONDS, Bucket, Limits, Scheduler
from anchorstore.tiers.nvme.seam import (
    FILE_NAME,
    DirectFile,
    FileSeam,
    Log,
    address_of,
    open_direct,
)
from tests.unit.tiers.nvme.bench import Blocks, Memory, open_device, statuses, write
from tests.unit.tiers.nvme.queues import ALLOWED, QUEUES


@pytest.fixture(params=["threads", *ALLOWED])
def options(request: pytest.FixtureRequest) -> Options:
    limits = Limits(depth=4, deadline_seconds=30.0)
    return Options(engine=request.param, limits=limits, flush_seconds=0.001)


@pytest.mark.parametrize("block_bytes", [128, 3968, 4096, 8064, 131072 + 640])
def test_engine_moves_blocks_of_any_size(
    tmp_path: pathlib.Path, options: Options, block_bytes: int
) -> None:
    device = open_device(tmp_path, options=options)
    assert device.engine == options.engine
    for stride, seed in ((1, 1), (2, 2)):
        blocks = Blocks.made(device, 9, block_bytes, stride=stride, seed=seed)
        write(device, blocks)
        assert statuses(device, blocks) == [Status.OK] * 9
    assert device.close()


def test_engine_moves_plans_side_by_side(tmp_path: pathlib.Path, options: Options) -> None:
    device = open_device(tmp_path, options=options)
    many = [Blocks.made(device, 20, 3968, seed=at, first_unit=64 * at, stride=2) for at in range(8)]
    done = [device.write(blocks.plan, blocks.memory.of) for blocks in many]
    assert all(future.result(30).ok.all() for future in done)
    read = [device.read(blocks.reading(), blocks.memory.of) for blocks in many]
    for blocks, future in zip(many, read, strict=True):
        assert future.result(30).ok.all()
        assert blocks.read_back(blocks.reading()) == blocks.bytes_
    assert device.close()


def test_engine_beyond_the_end_of_the_file_loses_those_blocks_alone(
    tmp_path: pathlib.Path, options: Options
) -> None:
    device = open_device(tmp_path, options=options)
    blocks = Blocks.made(device, 6, 3968)
    write(device, blocks)
    device.flush().result(10)
    os.truncate(tmp_path / FILE_NAME, device.data_offset + 4 * UNIT_BYTES)
    assert statuses(device, blocks) == [1, 1, 1, 1, Status.FAILED, Status.FAILED]
    assert device.health.read_errors == 2
    assert device.close()


def test_engine_with_a_memory_that_is_not_there_says_so(
    tmp_path: pathlib.Path, options: Options
) -> None:
    device = open_device(tmp_path, options=options)
    blocks = Blocks.made(device, 2, 3968)

    def absent(index: int) -> npt.NDArray[np.uint8]:
        raise LookupError(index)

    with pytest.raises(LookupError):
        device.write(blocks.plan, absent).result(10)
    write(device, blocks)
    assert device.close()


def test_engine_under_a_bandwidth_limit_still_moves_all(
    tmp_path: pathlib.Path, options: Options
) -> None:
    limits = Limits(depth=4, read_bytes_per_second=20e6, write_bytes_per_second=20e6)
    device = open_device(tmp_path, options=dataclasses.replace(options, limits=limits))
    blocks = Blocks.made(device, 100, 8064, stride=2)  # 1.2 MB each way, in runs of one
    write(device, blocks)
    assert statuses(device, blocks) == [Status.OK] * 100
    assert device.close()


class Counting:
    """A kernel's queue, and how many calls of each kind it had at the same time."""

    def __init__(self, queue: KernelQueue) -> None:
        self._queue, self.wake = queue, queue.wake
        self.listen, self.enter, self.close = queue.listen, queue.enter, queue.close
        self._made: dict[bytes, tuple[int, bool]] = {}  # tag, and whether a write
        self._out: dict[int, bool] = {}
        self.most = {False: 0, True: 0}

    def operation(
        self, call: Call, descriptor: int, address: int, length: int, offset: int, tag: int
    ) -> bytes:
        made = self._queue.operation(call, descriptor, address, length, offset, tag)
        self._made[made] = tag, call == Call.WRITEV
        return made

    def push(self, operation: bytes) -> None:
        tag, is_write = self._made[operation]
        self._out[tag] = is_write
        count = sum(kind == is_write for kind in self._out.values())
        self.most[is_write] = max(self.most[is_write], count)
        self._queue.push(operation)

    def completions(self) -> list[tuple[int, int]]:
        found = self._queue.completions()
        for tag, _ in found:
            self._out.pop(tag, None)  # the one that wakes is not among them
        return found


@pytest.mark.parametrize("name", ALLOWED)
def test_queue_engine_keeps_to_the_depth_though_it_has_more_ready(
    tmp_path: pathlib.Path, name: str
) -> None:
    queues: list[Counting] = []

    def counted(file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> Engine:
        queues.append(Counting(QUEUES[name](2 * depth + 1)))
        return QueueEngine(name, queues[0], file.descriptor, scheduler, health, depth)

    options = Options(engine=name, limits=Limits(depth=4, deadline_seconds=30.0))
    device = open_device(tmp_path, options=options, engines=dict(ENGINES) | {name: counted})
    first, second = (
        Blocks.made(device, 64, 8064, stride=2, first_unit=at, seed=at) for at in (0, 512)
    )
    write(device, first)
    done = [
        device.read(first.reading(), first.memory.of),
        device.write(second.plan, second.memory.of),
        device.read(first.reading(), first.memory.of),
    ]
    assert all(future.result(30).ok.all() for future in done)
    assert queues[0].most == {False: 4, True: 4}
    assert statuses(device, second) == [Status.OK] * 64
    assert device.close()


def refused(*_: object) -> Engine:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_engine_that_the_kernel_refuses_means_the_next_and_a_line(tmp_path: pathlib.Path) -> None:
    log: list[str] = []
    engines = dict(ENGINES) | {"io_uring": refused, "aio": refused}
    device = open_device(tmp_path, options=Options(engine="io_uring"), log=log, engines=engines)
    assert device.engine == "threads"
    assert "no io_uring here" in log[0] and "aio instead" in log[0]
    assert "no aio here" in log[1] and "threads instead" in log[1]
    device.close()


def test_aio_is_not_used_on_a_file_without_o_direct(tmp_path: pathlib.Path) -> None:
    def buffered(path: pathlib.Path, log: Log) -> DirectFile:
        file = open_direct(path, log)
        file.is_direct = False
        return file

    log: list[str] = []
    device = open_device(tmp_path, options=Options(engine="aio"), log=log, open_file=buffered)
    assert device.engine == "threads" and "no aio here" in log[0] and "O_DIRECT" in log[0]
    device.close()


def test_engine_thread_that_breaks_ends_the_device_in_the_open() -> None:
    subject, clock = scheduler()
    log: list[str] = []
    health = Health("device", 30.0, clock, log.append)
    waiting = job_of([0])
    subject.submit(waiting)

    def work() -> None:
        raise KeyError("a slip")

    guarded(work, subject, health)
    assert health.state == State.OFFLINE and "its engine broke: KeyError" in log[0]
    assert waiting.future.result(0).status.tolist() == [Status.REFUSED]


def test_advanced_drops_what_was_moved() -> None:
    buffers = [memoryview(part) for part in (b"abcd", b"ef", b"ghi")]
    assert advanced(buffers, 0) == buffers
    assert advanced(buffers, 4) == [b"ef", b"ghi"]
    assert advanced(buffers, 5) == [b"f", b"ghi"]
    assert advanced(buffers, 9) == []


@pytest.mark.parametrize(
    ("block_bytes", "slot_pages", "is_close", "last_pages"),
    [(8192, 3, False, 2), (8192, 3, True, 3), (12192, 4, False, 3), (12192, 4, True, 4)],
)
def test_lane_after_a_short_call_goes_on_where_the_threads_would(
    block_bytes: int, slot_pages: int, is_close: bool, last_pages: int
) -> None:
    units = [at * slot_pages for at in range(4)]
    job = job_of(units, block_bytes=block_bytes, is_close=is_close)
    [run] = job.runs
    assert run.size == (units[-1] + last_pages) * UNIT_BYTES
    lane = Lane(Noted(), 7, 0)
    lane.begin(run)
    buffers = job.buffers(run, lane.scratch)
    for moved in (1, 4096, 8192, 8193, 16384, 28671, run.size - 1):
        lane.begin(run)
        lane.advance(moved // 2)
        lane.advance(moved - moved // 2)
        left = lane.vectors[2 * lane.first : 2 * lane.stop].tolist()
        wanted = [(address_of(part), len(part)) for part in advanced(buffers, moved)]
        assert list(zip(left[::2], left[1::2], strict=True)) == wanted
        assert (lane.offset, lane.left) == (run.offset + moved, run.size - moved)
        assert lane.operation == vectored(lane, len(wanted), lane.offset)


@pytest.mark.parametrize("is_close", [False, True])
def test_lane_of_one_whole_block_goes_on_in_its_middle(is_close: bool) -> None:
    job = job_of([3], block_bytes=8192, is_close=is_close)
    [run] = job.runs
    lane = Lane(Noted(), 7, 0)
    whole = [(address_of(part), len(part)) for part in job.buffers(run, lane.scratch)]
    for _ in range(2):  # a lane is used again
        lane.begin(run)
        in_one_piece = Noted().operation(Call.READ, 7, *whole[0], run.offset, 0)
        assert lane.operation == (vectored(lane, 2, run.offset) if is_close else in_one_piece)
        lane.advance(100)
        assert lane.operation == vectored(lane, len(whole), run.offset + 100)
        (address, size), *_ = whole
        assert lane.vectors[:2].tolist() == [address + 100, size - 100]


class Noted(KernelAio):
    """A queue without a kernel: only its operations are looked at."""

    def __init__(self) -> None:
        pass


def vectored(lane: Lane, count: int, offset: int) -> bytes:
    where = address_of(memoryview(lane.vectors)) + 16 * lane.first
    return Noted().operation(Call.READV, 7, where, count, offset, 0)


# -- the scheduler alone


def job_of(
    units: list[int], *, is_write: bool = False, block_bytes: int = 3968, is_close: bool = False
) -> Job:
    count = len(units)
    zeros = np.zeros(count, np.uint64)
    hashes = np.zeros((count, 4), np.uint64)
    plan = ReadPlan(
        segment_index=zeros.astype(np.uint32),
        offset=zeros,
        block_bytes=np.full(count, block_bytes, np.uint64),
        unit=np.array(units, np.uint32),
        generation=zeros.astype(np.uint32),
        path_hash=hashes,
        layout_key=zeros,
        lineage=zeros.astype(np.uint8),
        checksum=zeros,
    )
    job = ReadJob(plan, Memory().of, 0, 0, 0, is_close=is_close)
    job.is_write = is_write
    return job


def scheduler(**limits: float) -> tuple[Scheduler, ManualClock]:
    clock = ManualClock()
    return Scheduler(Limits(**limits), clock), clock  # type: ignore[arg-type]


def spans(job: Job) -> list[tuple[int, int]]:
    return [(run.start, run.stop) for run in job.runs]


def test_runs_join_neighbours_in_the_file() -> None:
    assert spans(job_of([7, 8, 9, 3, 4, 9])) == [(0, 3), (3, 5), (5, 6)]
    assert spans(job_of([5])) == [(0, 1)]
    many = job_of(list(range(3 * RUN_BLOCKS_MAX)))
    assert spans(many) == [(at, at + RUN_BLOCKS_MAX) for at in (0, 64, 128)]
    large = job_of([0, 129, 258, 387], block_bytes=512 * 1024)
    assert spans(large) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert all(run.size <= RUN_BYTES_MAX for run in large.runs)


def test_scheduler_takes_reads_first_and_plans_in_turn() -> None:
    subject, _ = scheduler(depth=8)
    first, second, third = job_of([0, 2, 4]), job_of([10, 12]), job_of([20], is_write=True)
    for job in (third, first, second):
        subject.submit(job)
    taken = [run for _ in range(4) for run in subject.take(2, wait=False)]
    assert [run.job for run in taken] == [first, second, first, second, first, third]


def test_scheduler_lets_writes_hold_half_of_the_depth_unless_nothing_is_read() -> None:
    subject, clock = scheduler(depth=4)
    read = job_of([20])
    subject.submit(read)
    subject.submit(job_of([0, 2, 4, 6, 8], is_write=True))
    reading, *writing = subject.take(9, wait=False)
    assert reading.job is read and len(writing) == 2
    subject.ended([reading])
    assert not subject.take(1, wait=False), "one was read a moment ago"
    clock.advance(QUIET_SECONDS)
    assert len(subject.take(9, wait=False)) == 2
    subject.ended(writing[:1])
    assert len(subject.take(9, wait=False)) == 1


def test_scheduler_has_others_begin_in_the_place_of_what_has_landed() -> None:
    subject, clock = scheduler(depth=1, deadline_seconds=2.0)
    job = job_of([0, 2, 4])
    subject.submit(job)
    [first] = subject.take(9, wait=False)
    clock.advance(1.5)
    assert not subject.take(1, wait=False)
    subject.land([first])
    [second] = subject.take(9, wait=False)
    clock.advance(1.0)
    assert not subject.is_stalled(), "the first has landed, the second was begun 1 s ago"
    subject.ended([first])
    assert not subject.take(1, wait=False), "its place was given away once"
    subject.expire()
    job.status[:2] = Status.OK
    assert not job.future.done()
    subject.ended([second])
    assert job.future.result(0).status.tolist() == [Status.OK, Status.OK, Status.LATE]


def test_scheduler_gives_an_engine_more_to_have_ready() -> None:
    subject, _ = scheduler(depth=1)
    subject.ahead = 2
    job = job_of([0, 2, 4, 6])
    subject.submit(job)
    first, *_ = subject.take(9, wait=False)
    assert not subject.take(1, wait=False) and spans(job) == [(3, 4)]
    subject.land([first])
    assert len(subject.take(9, wait=False)) == 1 and subject.depth(False) == 1


def test_run_that_is_ready_does_not_make_a_device_stalled() -> None:
    """A slow but steady device: each call lands in time, and the next waits for it longer."""
    subject, clock = scheduler(depth=1, deadline_seconds=2.0)
    subject.ahead = 1
    subject.submit(job_of([0, 2, 4]))
    first, second = subject.take(2, wait=False)
    subject.handed_over(first)
    clock.advance(1.9)
    assert not subject.is_stalled()
    subject.land([first])
    subject.handed_over(second)
    clock.advance(1.9)
    assert not subject.is_stalled(), "3.8 s since it was taken, 1.9 s since the kernel got it"
    clock.advance(0.2)
    assert subject.is_stalled()


@pytest.mark.parametrize("name", ALLOWED)
def test_lane_that_cannot_be_made_fails_its_plan_and_no_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = Options(engine=name, limits=Limits(depth=4, deadline_seconds=30.0))
    device = open_device(tmp_path, options=options)
    blocks = Blocks.made(device, 2, 3968)

    def short(*_: object) -> Lane:
        raise MemoryError("no room for a lane")

    with monkeypatch.context() as patched:
        patched.setattr(QueueEngine, "_new_lane", short)
        with pytest.raises(MemoryError):
            device.write(blocks.plan, blocks.memory.of).result(10)
    write(device, blocks)
    assert statuses(device, blocks) == [Status.OK] * 2 and device.close()


def test_scheduler_closed_waits_for_what_is_out() -> None:
    subject, _ = scheduler(depth=1)
    job = job_of([0, 2])
    subject.submit(job)
    [first] = subject.take(2, wait=False)
    subject.close()
    assert not subject.take(1, wait=False) and not job.future.done()
    job.status[0] = Status.OK
    subject.land([first])
    subject.ended([first])
    assert job.future.result(0).status.tolist() == [Status.OK, Status.REFUSED]


def test_block_with_wrong_bytes_is_lost_though_its_closer_look_comes_too_late() -> None:
    subject, clock = scheduler(deadline_seconds=2.0)
    job = job_of([0, 1, 2])  # checksums of 0: none of them is right
    health = Health("device", 30.0, clock, lambda text: None)
    subject.submit(job)
    [run] = subject.take(1, wait=False)
    job.blocks(run)[1].memory[:] = bytes(3968)
    job._opened[1] = job._opened[1]._replace(checksum=xxh3(bytes(3968)))
    conclude(subject, health, [Moved(run, Scratch(), 0)])
    assert spans(job) == [(0, 1), (2, 3)] and all(run.is_close for run in job.runs)
    clock.advance(2.0)
    subject.expire()
    assert job.future.result(0).status.tolist() == [Status.TORN, Status.OK, Status.TORN]


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_block_that_the_kernel_put_off_is_not_lost(code: int) -> None:
    subject, clock = scheduler()
    log: list[str] = []
    health = Health("device", 30.0, clock, log.append)
    job = job_of([0, 1])
    subject.submit(job)
    conclude(subject, health, [Moved(subject.take(1, wait=False)[0], Scratch(), code)])
    assert spans(job) == [(0, 1), (1, 2)], "one by one"
    runs = subject.take(2, wait=False)
    conclude(subject, health, [Moved(runs[0], Scratch(), code), Moved(runs[1], Scratch(), 5)])
    done = job.future.result(0)
    assert done.status.tolist() == [Status.REFUSED, Status.FAILED]
    assert done.lost.tolist() == [False, True] and health.read_errors == 1 and len(log) == 1


def test_lost_blocks_are_told_of_in_one_line_a_minute() -> None:
    clock, said = ManualClock(), list[str]()
    health = Health("device", 30.0, clock, said.append)
    for seconds in (0, 1, 1, 58, 59):
        clock.advance(seconds)
        health.lost(4096, "torn")
    words = "since the last such line, the last at byte 4096: torn"
    assert said == [f"nvme: device: blocks lost: {count} {words}" for count in (1, 3)]
    health.tell_lost()
    assert len(said) == 2, "the minute is not over"
    clock.advance(60)
    for _ in range(2):
        health.tell_lost()
    assert said[2:] == [f"nvme: device: blocks lost: 1 {words}"], "nothing more is lost since"


def test_scheduler_with_a_full_queue_refuses_at_once() -> None:
    subject, _ = scheduler(queue_blocks=3)
    kept, refused = job_of([0, 2]), job_of([4, 6])
    subject.submit(kept)
    subject.submit(refused)
    assert refused.future.result(0).status.tolist() == [Status.REFUSED] * 2
    assert not kept.future.done()
    subject.submit(job_of([4, 6], is_write=True))  # the other lane


def test_scheduler_past_the_deadline_ends_what_has_not_begun() -> None:
    subject, clock = scheduler(deadline_seconds=2.0)
    job, whole = job_of([0, 2, 4]), job_of([6])
    subject.submit(job)
    subject.submit(whole)
    [run] = subject.take(1, wait=False)
    assert run.job is job
    clock.advance(2.0)
    subject.expire()
    assert whole.future.result(0).status.tolist() == [Status.LATE]
    assert not job.future.done() and not subject.take(1, wait=False)
    job.status[0] = Status.OK
    subject.ended([run])
    assert job.future.result(0).status.tolist() == [1, Status.LATE, Status.LATE]


def test_scheduler_with_a_run_out_too_long_is_stalled_until_it_ends() -> None:
    subject, clock = scheduler(deadline_seconds=2.0)
    subject.submit(job_of([0]))
    [run] = subject.take(1, wait=False)
    clock.advance(2.1)
    assert subject.is_stalled()
    refused = job_of([1])
    subject.submit(refused)
    assert refused.future.result(0).status.tolist() == [Status.REFUSED]
    subject.ended([run])
    assert not subject.is_stalled()


def test_scheduler_tries_a_failed_run_again_block_by_block() -> None:
    subject, _ = scheduler()
    job = job_of([0, 1, 2])
    subject.submit(job)
    [run] = subject.take(1, wait=False)
    assert (run.start, run.stop) == (0, 3)
    subject.again(run, job.singles(run))
    assert spans(job) == [(0, 1), (1, 2), (2, 3)] and not any(run.is_close for run in job.runs)
    for _ in range(3):
        [single] = subject.take(1, wait=False)
        assert not job.future.done()
        subject.ended([single])
    assert job.future.done()


def test_scheduler_closed_refuses_what_waits() -> None:
    subject, _ = scheduler()
    waiting, late = job_of([0]), job_of([1])
    subject.submit(waiting)
    subject.close()
    subject.submit(late)
    assert waiting.future.result(0).status.tolist() == [Status.REFUSED]
    assert late.future.result(0).status.tolist() == [Status.REFUSED]
    assert not subject.take(1, wait=True)


def test_bucket_lets_a_burst_pass_then_keeps_the_rate() -> None:
    bucket = Bucket(1000.0, burst_seconds=0.1)
    assert bucket.wait_seconds(0.0) == 0.0
    bucket.spend(600)  # 500 in debt
    assert bucket.wait_seconds(0.0) == pytest.approx(0.5)
    assert bucket.wait_seconds(0.4) == pytest.approx(0.1)
    assert bucket.wait_seconds(0.5) == pytest.approx(0.0)
    assert bucket.wait_seconds(9.0) == 0.0
    bucket.spend(100)
    assert bucket.wait_seconds(9.0) == 0.0, "no more than the burst is saved up"
    bucket.spend(100)
    assert bucket.wait_seconds(9.0) == pytest.approx(0.1)
    unbounded = Bucket(0.0)
    unbounded.spend(10**12)
    assert unbounded.wait_seconds(0.0) == 0.0


def test_chosen_blocks_of_a_plan_keep_their_columns() -> None:
    columns = {
        field.name: np.arange(3) if "hash" not in field.name else np.zeros((3, 4))
        for field in dataclasses.fields(WritePlan)
    }
    whole = WritePlan(**columns)  # type: ignore[arg-type]
    part = chosen(whole, np.array([True, False, True]))
    assert isinstance(part, WritePlan) and part.unit.tolist() == [0, 2]
    assert chosen(whole, np.array([0, 2])).unit.tolist() == [0, 2]
    assert chosen(whole, np.ones(3, np.bool_)) is whole and chosen(whole, np.arange(3)) is whole
    assert part.path_hash.shape == (2, 4)
