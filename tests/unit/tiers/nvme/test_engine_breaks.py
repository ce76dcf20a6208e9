"""Goal: an engine that breaks says so and lets go of all that the kernel has not got.
Method: a real file and kernel behind a queue that raises at a chosen call.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

import pytest

from anchorstore.tiers.nvme.device import ENGINES, NvmeDevice, Options
from anchorstore.tiers.nvme.engines import Engine
from anchorstore.tiers.nvme.health import Health, State
from anchorstore.tiers.nvme.kernel_queue import KernelQueue
from anchorstore.tiers.nvme.plans import Status
from anchorstore.tiers.nvme.queue_engine import QueueEngine
from anchorstore.tiers.nvme.scheduler import Limits, Scheduler
from anchorstore.tiers.nvme.seam import FileSeam
from tests.unit.tiers.nvme.bench import Blocks, open_device, write
from tests.unit.tiers.nvme.queues import ALLOWED, QUEUES


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


class Breaking:
    """A kernel's queue that raises when it is given the operation number `last`."""

    def __init__(self, queue: KernelQueue) -> None:
        self._queue, self.wake = queue, queue.wake
        self.listen, self.operation, self.push = queue.listen, queue.operation, queue.push
        self.completions, self.close = queue.completions, queue.close
        self.last, self.given = 2**32, 0

    def enter(self, wait_for: int) -> None:
        if not wait_for:
            self.given += 1
            if self.given == self.last:
                raise KeyError("a slip")
        self._queue.enter(wait_for)


def broken_device(
    path: pathlib.Path, name: str, depth: int, log: list[str]
) -> tuple[NvmeDevice, Breaking]:
    """With 64 blocks in slots that are not neighbours."""
    queues: list[Breaking] = []

    def engine(file: FileSeam, scheduler: Scheduler, health: Health, depth: int) -> Engine:
        queues.append(Breaking(QUEUES[name](2 * depth + 1)))
        return QueueEngine(name, queues[0], file.descriptor, scheduler, health, depth)

    options = Options(engine=name, limits=Limits(depth=depth, deadline_seconds=30.0))
    device = open_device(path, options=options, log=log, engines=dict(ENGINES) | {name: engine})
    return device, queues[0]


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("last", [1, 2, 3, 40])
def test_engine_that_breaks_ends_every_plan_that_the_kernel_has_nothing_of(
    tmp_path: pathlib.Path, name: str, last: int
) -> None:
    log: list[str] = []
    device, queue = broken_device(tmp_path, name, 1, log)
    blocks = Blocks.made(device, 64, 8064, stride=2)
    write(device, blocks)
    queue.last = queue.given + last
    plans = [device.read(blocks.reading(), blocks.memory.of) for _ in range(2)]
    found = [future.result(10).status.tolist() for future in plans]
    assert {code for codes in found for code in codes} <= {Status.OK, Status.REFUSED}
    assert sum(codes.count(Status.OK) for codes in found) < last
    assert device.health.state == State.OFFLINE
    assert "serves no more: its engine broke: KeyError('a slip')" in log[-1]
    late = device.read(blocks.reading(), blocks.memory.of).result(10)
    assert late.status.tolist() == [Status.REFUSED] * 64
    assert device.close(), "the kernel has nothing"


@pytest.mark.parametrize("name", ALLOWED)
def test_engine_that_breaks_keeps_what_is_at_the_kernel(tmp_path: pathlib.Path, name: str) -> None:
    device, queue = broken_device(tmp_path, name, 4, [])
    blocks = Blocks.made(device, 64, 8064, stride=2)
    write(device, blocks)
    queue.last = queue.given + 3
    held = device.read(blocks.reading(), blocks.memory.of)
    eventually(lambda: device.health.state == State.OFFLINE)
    assert not device.close(1.0)
    assert not held.done(), "its bytes may move yet"
    assert device.queue.reads.blocks == 2, "no others: those are refused"
