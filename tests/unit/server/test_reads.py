"""Goal: reads of the nvme tier take turns by namespace; a device that is stuck, or a namespace that
asks for much, delays nobody else beyond his deadline; every plan ends, each block once.
Method: two devices whose reads end when the test says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import types
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from anchorstore.server import reads
from anchorstore.server.reads import Reads
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.units import MIB

QUEUE_BLOCKS = 400
PIECE_BYTES = reads.WINDOW_BYTES // reads.PIECES_A_WINDOW
SECOND = 1000  # units from here on are the second device's


class Devices:
    """What is read: (plan, future) in the order in which it was begun."""

    def __init__(self, deadline_seconds: float) -> None:
        limits = Limits(queue_blocks=QUEUE_BLOCKS, deadline_seconds=deadline_seconds)
        self.devices = [types.SimpleNamespace(limits=limits) for _ in range(2)]
        self.begun: list[tuple[ReadPlan, Future[Done]]] = []

    def devices_of(self, units: Any) -> Any:
        return (units >= SECOND).astype(np.intp)

    def read(self, plan: ReadPlan, memory_of: object) -> Future[Done]:
        future: Future[Done] = Future()
        self.begun.append((plan, future))
        return future

    def end(self, status: Status = Status.OK) -> list[int]:
        """The oldest read ends; its units."""
        plan, future = self.begun.pop(0)
        future.set_result(Done(np.full(len(plan), status, np.uint8)))
        return [int(unit) for unit in plan.unit]


def plan_of(first_unit: int, blocks: int, block_bytes: int = MIB) -> ReadPlan:
    zeros = {field.name: np.zeros(blocks, np.uint64) for field in dataclasses.fields(ReadPlan)}
    plan = ReadPlan(**zeros)  # type: ignore[arg-type]
    return dataclasses.replace(
        plan,
        unit=np.arange(first_unit, first_unit + blocks, dtype=np.uint32),
        block_bytes=np.full(blocks, block_bytes, np.uint64),
    )


def reads_of(deadline_seconds: float = 60.0) -> tuple[Reads, Devices]:
    nvme = Devices(deadline_seconds)
    used: Any = (nvme, types.SimpleNamespace(memory=None), Supervisor(lambda name, error: None))
    return Reads(*used), nvme


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_plan_ends_when_its_last_piece_has_and_every_block_counts() -> None:
    here, nvme = reads_of()
    plan = plan_of(SECOND - 30, 60)
    reading = here.read(1, plan)
    units, torn, number = [], [], 0
    while nvme.begun:
        assert not reading.done()
        number += 1
        ended = nvme.end(Status.TORN if number == 3 else Status.OK)
        torn += ended if number == 3 else []
        units += ended
        await turn()
    assert sorted(units) == plan.unit.tolist()
    done = reading.result()
    assert torn and plan.unit[done.lost].tolist() == torn and int(done.ok.sum()) == 60 - len(torn)


async def test_pieces_of_one_plan_that_begin_together_are_few_reads_with_work_left_behind() -> None:
    here, nvme = reads_of()
    here.read(1, plan_of(1, 16))
    assert [len(plan) for plan, _ in nvme.begun] == [16]
    here.read(2, plan_of(100, 60))
    assert [len(plan) for plan, _ in nvme.begun] == [16, 16]
    nvme.end()
    await turn()
    assert [len(plan) for plan, _ in nvme.begun] == [16, 16], "the device never ran dry"


async def test_little_behind_a_flood_is_read_after_what_is_on_its_way() -> None:
    here, nvme = reads_of()
    flood = [here.read(1, plan_of(1, 60)) for _ in range(6)]
    little = here.read(2, plan_of(500, 4))
    ends = 0
    while not little.done():
        nvme.end()
        ends += 1
        await turn()
    window = reads.WINDOW_BYTES // PIECE_BYTES
    assert here.waiting > 0
    assert ends <= window + 2, f"{6 * 15} pieces were asked for before it"
    assert not all(reading.done() for reading in flood)
    while nvme.begun:
        nvme.end()
        await turn()
    assert all(reading.done() for reading in flood) and here.waiting == 0


async def test_device_that_is_stuck_delays_no_read_of_the_other() -> None:
    here, nvme = reads_of()
    stuck = here.read(1, plan_of(1, 100))
    held = list(nvme.begun)
    nvme.begun.clear()
    other = here.read(1, plan_of(SECOND, 40))
    while nvme.begun:
        nvme.end()
        await turn()
    assert other.result().ok.all() and not stuck.done()
    nvme.begun = held
    while nvme.begun:
        nvme.end()
        await turn()
    assert stuck.done()


async def test_piece_that_is_not_begun_in_time_is_late_and_what_is_begun_is_waited_for() -> None:
    here, nvme = reads_of(deadline_seconds=0.01)
    reading = here.read(1, plan_of(1, 60))
    begun = sum(len(plan) for plan, _ in nvme.begun)
    assert begun == reads.WINDOW_BYTES // MIB
    late = here.read(2, plan_of(500, 4))
    assert (await late).status.tolist() == [Status.LATE] * 4
    assert not reading.done(), "its bytes are moving"
    while nvme.begun:
        nvme.end()
        await turn()
    status = reading.result().status
    assert np.bincount(status)[[Status.OK, Status.LATE]].tolist() == [begun, 60 - begun]


async def test_flood_fills_no_more_than_half_while_others_wait() -> None:
    here, nvme = reads_of()
    for _ in range(2):
        here.read(1, plan_of(1, 60))
    here.read(2, plan_of(1, 60))
    flood = [here.read(1, plan_of(1, 60)) for _ in range(6)]
    refused = [reading for reading in flood if reading.done()]
    assert refused and all((it.result().status == Status.REFUSED).all() for it in refused)
    assert not here.read(3, plan_of(1, 60)).done(), "there is room for others"
    while nvme.begun:
        nvme.end()
        await turn()


@pytest.mark.parametrize("block_bytes", [4096, MIB, 3 * MIB, 9 * MIB])
async def test_pieces_are_bounded_and_hold_every_block_once(block_bytes: int) -> None:
    here, nvme = reads_of()
    reading = here.read(1, plan_of(1, 20, block_bytes))
    seen: list[int] = []
    while nvme.begun:
        plan = nvme.begun[0][0]
        assert len(plan) == 1 or plan.block_bytes.sum() <= (
            reads.PIECES_TOGETHER * (PIECE_BYTES + block_bytes)
        )
        seen += nvme.end()
        await turn()
    assert seen == list(range(1, 21)) and reading.result().ok.all()


async def test_device_with_a_limit_has_no_more_on_its_way_than_it_reads_in_time() -> None:
    nvme = Devices(deadline_seconds=2.0)
    nvme.devices[0].limits = Limits(read_bytes_per_second=4 * MIB, deadline_seconds=2.0)
    used: Any = (nvme, types.SimpleNamespace(memory=None), Supervisor(lambda name, error: None))
    reading = Reads(*used).read(1, plan_of(1, 60))
    assert sum(len(plan) for plan, _ in nvme.begun) == 4
    while nvme.begun:
        nvme.end()
        await turn()
    assert reading.result().ok.all()


async def test_read_whose_reader_is_gone_ends_in_silence() -> None:
    told: list[str] = []
    nvme = Devices(60.0)
    supervisor = Supervisor(lambda name, error: told.append(name))
    used: Any = (nvme, types.SimpleNamespace(memory=None), supervisor)
    here = Reads(*used)
    reading = here.read(1, plan_of(1, 4))
    reading.cancel()
    nvme.end()
    await turn()
    assert not told and not supervisor.failed.is_set() and here.waiting == 0
