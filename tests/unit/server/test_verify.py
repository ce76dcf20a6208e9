"""Goal: the check of nvme reads every block once, no faster than it is told, tries again what a
device had no time for, and blames nothing that has moved meanwhile.
Method: a real core whose blocks lie in nvme; reads that answer as the test says; a clock by hand.
"""

from __future__ import annotations

import asyncio
import collections
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anchorstore.clock import ManualClock
from anchorstore.server import verify
from anchorstore.server.verify import NvmeCheck, Verified
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status
from tests.unit.core.small import KV, Engine
from tests.unit.core.tiered import Tiered

BLOCKS = 24
BLOCK_BYTES = 4096


class Reads:
    """Answers as `judge` says: a plan's units -> their status."""

    def __init__(self, judge: Callable[[list[int]], list[Status]]) -> None:
        self._judge = judge
        self.units: collections.Counter[int] = collections.Counter()
        self.bytes = 0

    def read(self, owner: int, plan: ReadPlan, memory_of: Any) -> asyncio.Future[Done]:
        memory = memory_of(0)
        assert len(memory) >= int((plan.offset + plan.block_bytes).max())
        self.units.update(plan.unit.tolist())
        self.bytes += int(plan.block_bytes.sum())
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        future.set_result(Done(np.array(self._judge(plan.unit.tolist()), np.uint8)))
        return future


def filled() -> tuple[Tiered, Engine]:
    """So many blocks in nvme."""
    small = Tiered(segments=8, nvme={"segments": 16})
    engine = small.session(layouts=[KV])
    for number in range(BLOCKS // 8):
        engine.put(engine.path(8, f"{number}"))
        small.write_all()
    return small, engine


def check_of(small: Tiered, reads: Reads) -> tuple[NvmeCheck, list[float]]:
    """The check, and when it slept how long."""
    clock, slept = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    device = types.SimpleNamespace(name="/mnt/a", base_unit=8, data_offset=2**20)
    nvme: Any = types.SimpleNamespace(
        devices=[device], devices_of=lambda units: np.zeros(len(units), np.intp)
    )
    used: Any = (small.store, nvme, reads, clock, sleep)
    return NvmeCheck(*used), slept


async def test_every_block_is_read_once_no_faster_than_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "STEP_BYTES", 4 * BLOCK_BYTES)
    small, _ = filled()
    reads, found = Reads(lambda units: [Status.OK] * len(units)), Verified()
    check, slept = check_of(small, reads)
    await check.run(found, bytes_per_second=BLOCK_BYTES)
    assert set(reads.units) == set(small.disk.slots) and set(reads.units.values()) == {1}
    assert (found.right, found.wrong, found.unread) == (BLOCKS, [], 0)
    assert sum(slept) == pytest.approx(BLOCKS - 4), "all but the last step is waited for"


async def test_what_a_device_has_no_time_for_is_tried_again_and_counted() -> None:
    small, _ = filled()
    seen: collections.Counter[int] = collections.Counter()

    def judge(units: list[int]) -> list[Status]:
        seen.update(units)
        late = [unit == 8 or (unit < 16 and seen[unit] < 2) for unit in units]
        return [Status.LATE if is_late else Status.OK for is_late in late]

    found = Verified()
    check, _ = check_of(small, Reads(judge))
    await check.run(found, verify.NVME_BYTES_PER_SECOND)
    assert (found.right, found.wrong, found.unread) == (BLOCKS - 1, [], 1)
    assert seen[8] == verify.TRIES and seen[10] == 2


async def test_block_that_has_gone_meanwhile_is_not_blamed() -> None:
    small, engine = filled()
    gone = engine.path(8, "0")

    def judge(units: list[int]) -> list[Status]:
        small.store.remove(engine.root, gone[:32])
        return [Status.FOREIGN if unit < 24 else Status.TORN for unit in units]

    found = Verified()
    check, _ = check_of(small, Reads(judge))
    await check.run(found, verify.NVME_BYTES_PER_SECOND)
    assert len(found.wrong) == BLOCKS - 8 and found.right == 0
    assert found.wrong[0] == "/mnt/a, slot at byte 1114112: its bytes have another checksum"


async def test_slot_that_a_later_block_took_is_counted_and_no_damage() -> None:
    small, _ = filled()

    def judge(units: list[int]) -> list[Status]:
        return [Status.OTHER if unit == 8 else Status.OK for unit in units]

    found = Verified()
    check, _ = check_of(small, Reads(judge))
    await check.run(found, verify.NVME_BYTES_PER_SECOND)
    assert (found.right, found.wrong, found.unread, found.outdated) == (BLOCKS - 1, [], 0, 1)
