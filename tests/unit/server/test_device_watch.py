"""Goal: the core learns which segments take nothing and which are gone, and when that has passed.
Method: the watch over devices of a set health, a clock by hand, a core that only notes.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import pytest

from anchorstore.clock import ManualClock
from anchorstore.server import device_watch
from anchorstore.server.device_watch import DeviceWatch
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.scheduler import Limits


class Core:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def close_segments(self, segments: Iterable[int]) -> None:
        self.told.append(("close", list(segments)))

    def reopen_segments(self, segments: Iterable[int]) -> None:
        self.told.append(("reopen", list(segments)))

    def lose_segments(self, segments: Iterable[int]) -> int:
        self.told.append(("lose", list(segments)))
        return 0

    def take(self) -> list[tuple[str, list[int]]]:
        told, self.told = self.told, []
        return told


def device(base_unit: int, segments: int) -> Any:
    said: list[str] = []
    health = types.SimpleNamespace(
        state=State.HEALTHY, tell_lost=lambda: None, said=said, say=said.append
    )
    queue = types.SimpleNamespace(is_stuck=False)
    queue.is_stalled = lambda: queue.is_stuck
    return types.SimpleNamespace(
        base_unit=base_unit, segments=segments, health=health, queue=queue, limits=Limits()
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def devices() -> list[Any]:
    """Segments of 16 units: 1 to 2 on the first, 3 to 602 on the second."""
    return [device(16, 2), device(48, 600)]


@pytest.fixture
def watch(core: Core, devices: list[Any], clock: ManualClock) -> DeviceWatch:
    tier = types.SimpleNamespace(devices=devices, segment_bytes=16 * 4096)
    return DeviceWatch(core, tier, clock)  # type: ignore[arg-type]


def test_look_at_healthy_devices_tells_nothing(watch: DeviceWatch, core: Core) -> None:
    watch.look()
    assert core.take() == []


def test_read_only_device_is_closed_tried_and_reopened(
    watch: DeviceWatch, core: Core, devices: list[Any], clock: ManualClock
) -> None:
    devices[0].health.state = State.READ_ONLY
    watch.look()
    watch.look()
    assert core.take() == [("close", [1, 2])]
    clock.advance(device_watch.CLOSED_SECONDS)
    watch.look()
    assert core.take() == [("reopen", [1, 2])]  # for a moment
    clock.advance(device_watch.ATTEMPT_SECONDS)
    watch.look()
    assert core.take() == [("close", [1, 2])]
    devices[0].health.state = State.HEALTHY
    watch.look()
    watch.look()
    assert core.take() == [("reopen", [1, 2])]


def test_offline_device_is_lost_after_a_while_in_steps(
    watch: DeviceWatch, core: Core, devices: list[Any], clock: ManualClock
) -> None:
    devices[1].health.state = State.OFFLINE
    watch.look()
    assert [word for word, _ in core.take()] == ["close"]
    clock.advance(device_watch.LOST_SECONDS)
    for _ in range(5):
        watch.look()
    lost = [segments for word, segments in core.take() if word == "lose"]
    assert [len(part) for part in lost] == [256, 256, 88]
    assert [number for part in lost for number in part] == list(range(3, 603))


def test_device_that_is_back_in_time_loses_nothing(
    watch: DeviceWatch, core: Core, devices: list[Any], clock: ManualClock
) -> None:
    for state in (State.OFFLINE, State.HEALTHY, State.OFFLINE):
        devices[0].health.state = state
        watch.look()
        clock.advance(device_watch.LOST_SECONDS - 1.0)
    watch.look()
    assert "lose" not in [word for word, _ in core.take()]


def test_device_that_does_not_answer_is_closed_until_it_does(
    watch: DeviceWatch, core: Core, devices: list[Any], clock: ManualClock
) -> None:
    devices[0].queue.is_stuck = True
    watch.look()
    clock.advance(2 * device_watch.CLOSED_SECONDS)
    watch.look()
    assert core.take() == [("close", [1, 2])], "no attempt: it has work that it does not end"
    devices[0].queue.is_stuck = False
    watch.look()
    assert core.take() == [], "it may be stuck again at once"
    clock.advance(device_watch.CALM_SECONDS)
    watch.look()
    assert core.take() == [("reopen", [1, 2])]


def test_device_that_does_not_answer_is_told_of_once_and_so_is_its_return(
    watch: DeviceWatch, devices: list[Any], clock: ManualClock
) -> None:
    said = devices[0].health.said
    for is_stuck in (True, False, True):  # a moment's answer is none
        devices[0].queue.is_stuck = is_stuck
        watch.look()
        watch.look()
        clock.advance(device_watch.CALM_SECONDS / 2)
    assert len(said) == 1 and said[0].startswith("has not answered for 2 s")
    devices[0].queue.is_stuck = False
    clock.advance(device_watch.CALM_SECONDS)
    watch.look()
    assert said[1:] == ["has answered for 10 s: it is used again"]
    assert not devices[1].health.said


def test_device_that_does_not_answer_for_long_is_lost(
    watch: DeviceWatch, core: Core, devices: list[Any], clock: ManualClock
) -> None:
    devices[0].queue.is_stuck = True
    watch.look()
    clock.advance(device_watch.LOST_SECONDS - 1.0)
    watch.look()
    assert "lose" not in [word for word, _ in core.take()]
    clock.advance(1.0)
    watch.look()
    assert ("lose", [1, 2]) in core.take()
