"""Goal: one bad slot costs one block, a bad device costs itself, and neither costs a wrong byte.
Method: the shipped faulty file under a device; time moves by hand where it matters.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
import time
from collections.abc import Callable

import numpy as np
import pytest

from anchorstore.clock import ManualClock
from anchorstore.errors import ConfigError
from anchorstore.testing.faulty_file import Call, Faults
from anchorstore.tiers.nvme.device import NvmeDevice, Options
from anchorstore.tiers.nvme.format import UNIT_BYTES
from anchorstore.tiers.nvme.health import ERRORS_IN_A_ROW_MAX, State
from anchorstore.tiers.nvme.plans import Status
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.seam import FILE_NAME
from tests.unit.tiers.nvme.bench import OPTIONS, Blocks, open_device, statuses, write

RETRY_SECONDS = 30.0


class World:
    """A device with 8 blocks of one unit each in its first slots, on a faulty file."""

    def __init__(self, path: pathlib.Path, options: Options = OPTIONS) -> None:
        self.path, self.options = path, options
        self.faults, self.clock, self.log = Faults(), ManualClock(), list[str]()
        self.device = self.open()
        self.blocks = Blocks.made(self.device, 8, 3968)
        write(self.device, self.blocks)
        self.device.flush().result(10)

    def open(self) -> NvmeDevice:
        return open_device(
            self.path,
            options=self.options,
            open_file=self.faults.open,
            clock=self.clock,
            log=self.log,
        )

    def place(self, unit: int) -> tuple[int, int]:
        """Bytes of the file that a unit takes."""
        start = self.device.data_offset + unit * UNIT_BYTES
        return start, start + UNIT_BYTES

    def fail_slot(self, call: str, code: int, unit: int) -> None:
        start, stop = self.place(unit)
        assert call in ("read", "write")
        self.faults.fail(call, code, start=start, stop=stop)  # type: ignore[arg-type]

    def state(self) -> State:
        return self.device.health.state

    def write_again(self, first_unit: int = 8) -> list[int]:
        """Statuses of writing 8 further blocks."""
        blocks = Blocks.made(self.device, 8, 3968, seed=5, first_unit=first_unit)
        done = self.device.write(blocks.plan, blocks.memory.of).result(10)
        found: list[int] = done.status.tolist()
        return found

    def recovered_units(self) -> list[int]:
        """After a close and an open without faults."""
        self.faults.release()
        assert self.device.close()
        self.device = self.open()
        found: list[int] = self.device.recover().entries["unit"].tolist()
        return found


@pytest.fixture
def world(tmp_path: pathlib.Path) -> World:
    return World(tmp_path)


def test_eio_on_one_slot_costs_that_block_alone(world: World) -> None:
    world.fail_slot("read", errno.EIO, 3)
    assert statuses(world.device, world.blocks) == [1, 1, 1, Status.FAILED, 1, 1, 1, 1]
    assert world.device.health.read_errors == 1
    assert world.state() == State.HEALTHY
    [line] = world.log
    assert "blocks lost: 1 since" in line and line.endswith(": Input/output error")
    world.device.close()


def test_eio_while_writing_one_slot_keeps_the_others(world: World) -> None:
    world.fail_slot("write", errno.EIO, 10)
    assert world.write_again() == [1, 1, Status.FAILED, 1, 1, 1, 1, 1]
    assert world.state() == State.HEALTHY
    world.device.close()


def test_errors_on_every_slot_take_the_device_offline_until_a_try_works(world: World) -> None:
    world.faults.fail("read", errno.EIO)
    for _ in range(ERRORS_IN_A_ROW_MAX // 8):
        assert statuses(world.device, world.blocks) == [Status.FAILED] * 8
    assert world.state() == State.OFFLINE
    assert statuses(world.device, world.blocks) == [Status.REFUSED] * 8
    assert world.write_again() == [Status.REFUSED] * 8
    assert ["serves no more" in line for line in world.log] == [False, True]
    world.faults.release()
    assert statuses(world.device, world.blocks) == [Status.REFUSED] * 8
    world.clock.advance(RETRY_SECONDS)
    assert statuses(world.device, world.blocks) == [1] * 8
    assert world.state() == State.HEALTHY and "works again" in world.log[2]
    world.device.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_full_or_read_only_file_system_still_serves_reads(world: World, code: int) -> None:
    data_offset, _ = world.place(0)
    world.faults.fail("write", code, start=data_offset)
    assert Status.FAILED in world.write_again()
    assert world.state() == State.READ_ONLY
    assert world.device.health.reason == os.strerror(code)
    assert world.write_again() == [Status.REFUSED] * 8
    assert statuses(world.device, world.blocks) == [1] * 8
    assert world.state() == State.READ_ONLY, "a read says nothing of writes"
    world.faults.release()
    world.clock.advance(RETRY_SECONDS)
    assert world.write_again() == [1] * 8
    assert world.state() == State.HEALTHY
    world.device.close()


def test_vanished_device_is_offline_at_once(world: World) -> None:
    world.faults.fail("read", errno.ENODEV)
    assert Status.FAILED in statuses(world.device, world.blocks)
    assert world.state() == State.OFFLINE
    assert world.write_again() == [Status.REFUSED] * 8
    world.faults.release()
    assert world.device.close()


def test_full_device_with_a_hole_left_is_full_until_a_try_works(world: World) -> None:
    _, offset = world.place(11)  # four of the eight that are written
    data_offset, _ = world.place(0)
    world.faults.fail("write", errno.ENOSPC, start=data_offset, stop=offset)
    for _ in range(3):
        world.write_again()
        assert world.state() == State.READ_ONLY, "what was out as it began says nothing"
    assert len(world.log) == 1
    world.faults.release()
    world.clock.advance(RETRY_SECONDS)
    assert world.write_again() == [1] * 8
    assert world.state() == State.HEALTHY and len(world.log) == 2
    world.device.close()


@pytest.mark.parametrize("away", ["removed", "moved", "folder moved", "replaced"])
def test_file_that_is_not_at_its_path_takes_nothing_new(world: World, away: str) -> None:
    if away == "folder moved":
        os.rename(world.path, world.path.with_name("elsewhere"))
    elif away == "moved":
        os.rename(world.path / FILE_NAME, world.path / "elsewhere")
    else:
        os.remove(world.path / FILE_NAME)
    if away == "replaced":
        (world.path / FILE_NAME).write_bytes(b"")
    assert world.write_again() == [1] * 8  # nobody has looked yet
    world.device.note_blocks(world.blocks.plan.entries(np.ones(8, np.bool_)))
    world.device.flush().result(10)
    assert world.state() == State.READ_ONLY
    assert "was removed" in world.log[0]
    world.clock.advance(10 * RETRY_SECONDS)
    assert world.write_again() == [Status.REFUSED] * 8
    assert statuses(world.device, world.blocks) == [1] * 8
    world.device.close()
    assert (world.path / FILE_NAME).exists() == (away == "replaced")


def test_short_writes_and_reads_are_continued(world: World) -> None:
    world.faults.short("write", UNIT_BYTES)
    assert world.write_again() == [1] * 8
    world.faults.clear()
    world.faults.short("read", UNIT_BYTES)
    assert statuses(world.device, world.blocks) == [1] * 8
    world.device.close()


def test_write_torn_by_the_device_is_never_served(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path)
    blocks = Blocks.made(world.device, 2, 8064, first_unit=16)
    start, _ = world.place(16)
    world.faults.tear("write", 3 * UNIT_BYTES, start=start)
    write(world.device, blocks)  # claimed; half of the second block never came
    world.faults.clear()
    assert statuses(world.device, blocks) == [1, Status.FOREIGN]
    world.device.close()


@pytest.mark.parametrize("call", ["write", "sync"])
def test_journal_that_fails_stores_nothing_new_until_it_is_written(
    tmp_path: pathlib.Path, call: Call
) -> None:
    world = World(tmp_path, dataclasses.replace(OPTIONS, retry_seconds=0.02))
    data_offset, _ = world.place(0)
    world.faults.fail(call, errno.EIO, stop=data_offset)
    world.device.note_gone(world.blocks.plan.unit[:1])
    world.device.flush().result(10)
    assert world.state() == State.READ_ONLY
    assert "journal cannot be written" in world.log[0]
    assert world.write_again() == [Status.REFUSED] * 8
    assert statuses(world.device, world.blocks) == [1] * 8
    world.faults.release()
    wait_until(lambda: world.state() == State.HEALTHY)
    assert world.write_again() == [1] * 8
    assert world.recovered_units() == list(range(1, 8)), "the note was kept and written"
    world.device.close()


def test_compaction_that_fails_is_made_up_for(tmp_path: pathlib.Path) -> None:
    options = dataclasses.replace(OPTIONS, retry_seconds=0.02, journal_bytes=64 * 1024)
    world = World(tmp_path, options)
    journal = world.device.journal
    assert journal is not None
    before = journal.counters["journal_compactions"]
    world.faults.fail("write", errno.EIO, stop=2 * UNIT_BYTES)  # the superblocks
    unit = np.array([1], np.uint32)
    while world.state() == State.HEALTHY:
        world.device.note_gone(unit)
        world.device.flush().result(10)
    assert journal.counters["journal_compactions"] == before
    world.device.note_gone(unit + np.uint32(1))
    world.faults.release()
    wait_until(lambda: world.state() == State.HEALTHY)
    assert journal.counters["journal_compactions"] == before + 1
    assert world.recovered_units() == [0, 3, 4, 5, 6, 7]
    world.device.close()


@pytest.mark.parametrize("call", ["read", "write", "sync", "resize"])
def test_open_on_a_failing_file_is_refused_and_unlocks_it(
    tmp_path: pathlib.Path, call: str
) -> None:
    faults = Faults()
    faults.fail(call, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Input/output error"):
        open_device(tmp_path, open_file=faults.open)
    open_device(tmp_path).close()


def test_stuck_device_is_stalled_and_costs_only_its_own_jobs(tmp_path: pathlib.Path) -> None:
    options = Options(limits=Limits(depth=2, deadline_seconds=5.0), flush_seconds=0.001)
    world = World(tmp_path, options)
    other = World(tmp_path_of(tmp_path, "other"), options)
    world.faults.hold("read")
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # no neighbours: eight runs
    plan = world.blocks.reading()
    plan = type(plan)(**{name: getattr(plan, name)[order] for name in plan.__slots__})
    future = world.device.read(plan, world.blocks.memory.of)
    wait_until(lambda: world.faults.held == 2)
    queued = world.device.read(world.blocks.reading(), world.blocks.memory.of)
    world.clock.advance(5.1)
    assert queued.result(10).status.tolist() == [Status.LATE] * 8, "told though all are stuck"
    assert not future.done(), "two runs may still land"
    again = world.device.read(world.blocks.reading(), world.blocks.memory.of).result(10)
    assert again.status.tolist() == [Status.REFUSED] * 8, "stalled: refused at once"
    assert statuses(other.device, other.blocks) == [1] * 8
    world.faults.release()
    status = future.result(10).status
    assert sorted(status.tolist()) == [1, 1] + [Status.LATE] * 6
    assert statuses(world.device, world.blocks) == [1] * 8, "it answers again"
    world.device.close()
    other.device.close()


def test_close_of_a_stuck_device_gives_up(world: World) -> None:
    world.faults.hold("read")
    future = world.device.read(world.blocks.reading(), world.blocks.memory.of)
    wait_until(lambda: world.faults.held == 1)
    assert not world.device.close(timeout_seconds=0.05)
    world.faults.release()
    assert future.result(10).ok.all()
    assert world.device.close()


def tmp_path_of(path: pathlib.Path, name: str) -> pathlib.Path:
    (path / name).mkdir()
    return path / name


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it never came")
