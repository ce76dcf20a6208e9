"""Goal: what is written behind goes to every device at its own speed: one that is slow, stuck or
refuses holds up none of the others.
Method: the movement over a real core with two devices whose writes end when the test says so.
"""

from __future__ import annotations

import asyncio
import collections
import types
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from anchorstore.clock import ManualClock
from anchorstore.server.core.store_config import UNIT_BYTES
from anchorstore.server.device_watch import CALM_SECONDS
from anchorstore.server.movement import RETRY_SECONDS, Movement
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.plans import Done, Status, WritePlan
from anchorstore.tiers.nvme.scheduler import Limits
from tests.unit.core.small import KV, Engine
from tests.unit.core.tiered import COLD_SEGMENT_BYTES, Tiered

SEGMENTS = 16  # of a device
SEGMENT_UNITS = COLD_SEGMENT_BYTES // UNIT_BYTES


class Devices:
    """Two devices as the movement sees them; a write ends by `end`."""

    def __init__(self) -> None:
        self.segment_bytes = COLD_SEGMENT_BYTES
        self.devices: list[Any] = []
        for number in range(2):
            queue = types.SimpleNamespace(is_stuck=False)
            queue.is_stalled = lambda queue=queue: queue.is_stuck
            health = types.SimpleNamespace(
                state=State.HEALTHY, tell_lost=lambda: None, say=lambda text: None
            )
            self.devices.append(
                types.SimpleNamespace(
                    health=health,
                    queue=queue,
                    limits=Limits(),
                    base_unit=(1 + number * SEGMENTS) * SEGMENT_UNITS,
                    segments=SEGMENTS,
                )
            )
        self.flying: list[collections.deque[tuple[int, Future[Done]]]] = [
            collections.deque(),
            collections.deque(),
        ]
        self.written = [0, 0]
        self.noted = 0

    def write(self, plan: WritePlan, memory_of: object) -> Future[Done]:
        [device] = {int(unit) // SEGMENT_UNITS > SEGMENTS for unit in plan.unit}
        future: Future[Done] = Future()
        self.flying[device].append((len(plan), future))
        return future

    def end(self, device: int, status: Status = Status.OK) -> None:
        """All that is on its way to the device ends so."""
        while self.flying[device]:
            blocks, future = self.flying[device].popleft()
            self.written[device] += blocks if status == Status.OK else 0
            future.set_result(Done(np.full(blocks, status, np.uint8)))

    def namespace_number(self, note: object) -> int:
        return 0

    def kind_number(self, layout: object) -> int:
        return 0

    def note_blocks(self, entries: Any) -> None:
        self.noted += len(entries)

    def note_gone(self, units: Any) -> None:
        """Nothing is asked of the journal here."""


class World:
    """A movement that runs, and what it moves."""

    def __init__(self) -> None:
        shape = {"segments": 2 * SEGMENTS, "devices": (SEGMENTS, SEGMENTS), "queue_blocks": 4096}
        self.small = Tiered(segments=128, nvme=shape)
        self.engine: Engine = self.small.session(layouts=[KV])
        self.nvme, self.clock = Devices(), ManualClock()
        tier = types.SimpleNamespace(segments=128, segment_bytes=5 * 4096, memory=None)
        self.supervisor = Supervisor(lambda name, error: None)
        parts: Any = (self.nvme, self.small.store, tier, self.clock, self.supervisor)
        self.movement = Movement(*parts)
        self.puts = 0

    def is_paused(self) -> bool:
        return self.small.store._state.movement.is_paused

    def put(self, pages: int) -> None:
        self.puts += 1
        self.engine.put(self.engine.path(pages, f"put {self.puts}"))
        self.movement.wake()


@pytest.fixture
def world() -> World:
    return World()


async def turns() -> None:
    """Lets everything that can happen now happen."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_device_that_is_slow_holds_up_none_of_the_others(world: World) -> None:
    running = asyncio.ensure_future(world.movement.run())
    for _ in range(20):
        world.put(6)
        await turns()
        world.nvme.end(1)
        await turns()
    slow = sum(blocks for blocks, _ in world.nvme.flying[0])
    assert 0 < slow == world.movement.outlets[0].blocks
    assert world.nvme.written[1] >= 64 - slow, "the other one has taken all that it has room for"
    assert world.nvme.noted == world.nvme.written[1]
    world.nvme.end(0)
    await turns()
    assert world.movement.outlets[0].blocks == sum(blocks for blocks, _ in world.nvme.flying[0])
    running.cancel()
    assert world.small.store.check() == []


async def test_device_that_refuses_rests_alone(world: World) -> None:
    running = asyncio.ensure_future(world.movement.run())
    world.put(8)
    await turns()
    world.nvme.end(0, Status.FAILED)
    world.nvme.end(1)
    await turns()
    world.nvme.end(1)
    assert world.movement.outlets[0].rests(world.clock.now())
    assert not world.is_paused()
    world.put(4)
    await turns()
    assert not world.nvme.flying[0] and world.nvme.flying[1]
    world.clock.advance(RETRY_SECONDS)
    world.nvme.end(1)
    world.put(4)
    await turns()
    assert world.nvme.flying[0], "it is tried again"
    running.cancel()


async def test_memory_waits_for_nobody_while_no_device_takes_anything(world: World) -> None:
    running = asyncio.ensure_future(world.movement.run())
    for device in world.nvme.devices:
        device.queue.is_stuck = True
    world.put(4)
    await turns()
    assert world.is_paused() and world.movement.in_flight == 0
    for device in world.nvme.devices:
        device.queue.is_stuck = False
    world.clock.advance(CALM_SECONDS)
    world.movement.wake()
    await turns()
    assert not world.is_paused() and world.movement.in_flight == 4
    running.cancel()


async def test_device_with_a_limit_has_no_more_on_its_way_than_it_writes_in_time(
    world: World,
) -> None:
    limited = Limits(write_bytes_per_second=4 * 4096, deadline_seconds=2.0)
    for device in world.nvme.devices:
        device.limits = limited
    running = asyncio.ensure_future(world.movement.run())
    for _ in range(8):
        world.put(6)
        await turns()
    assert [outlet.blocks for outlet in world.movement.outlets] == [4, 4]
    running.cancel()
