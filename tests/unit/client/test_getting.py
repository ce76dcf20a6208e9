"""Goal: a get that asks has one deadline for all it asks, and no refusal of the hints is an error
of the get.  Method: the steps under a driver that lets time pass and says no.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.client import ClientOptions, NamespaceSpec
from anchorstore.client.effects import Call, Effect, Enter, Map
from anchorstore.client.face import new_session
from anchorstore.client.getting import get
from anchorstore.clock import ManualClock
from anchorstore.errors import (
    AnchorStoreError,
    BootChanged,
    CapacityFull,
    DeadlineExceeded,
    InvalidRequest,
    UnknownSession,
)
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store
from tests.unit.client.scripted import BLOCK_BYTES, Script, attach, state_layout

DEADLINE_SECONDS, HALF_SECONDS = 1.0, 0.5


class Slow(Script):
    """Refuses the hints after half of the deadline."""

    error: AnchorStoreError = DeadlineExceeded("no mapping in time")

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Map):
            self.seen.append(effect)
            clock = self.session.clock
            assert isinstance(clock, ManualClock)
            clock.advance(HALF_SECONDS)
            raise self.error
        return super().perform(effect)


def attached() -> Slow:
    session = new_session(
        "unix:///run/none.sock",
        NamespaceSpec("model", b"w" * 32),
        [state_layout()],
        ClientOptions(retry_seconds=5.0),
        ManualClock(100.0),
    )
    script = Slow(session, {Method.ATTACH: attach(), Method.LOOKUP: missed})
    script.run(session.connect(session.until(None)))
    script.seen.clear()
    return script


def missed(request: store.LookupRequest, call: Call) -> store.LookupResponse:
    return store.LookupResponse(miss=store.MISS_REASON_NOT_STORED)


def one_get(script: Slow) -> int:
    out = bytearray(2 * BLOCK_BYTES)
    return script.run(get(script.session, bytes(64), 0, out, 0, 255, DEADLINE_SECONDS))


def test_get_has_one_deadline_for_hints_and_lookup() -> None:
    script = attached()
    start = script.session.clock.now()
    assert one_get(script) == 0
    waits = [effect for effect in script.seen if isinstance(effect, Enter | Map | Call)]
    assert [type(effect) for effect in waits].count(Map) == 1 and waits[-1].until
    assert {round(effect.until - start, 6) for effect in waits} == {DEADLINE_SECONDS}


@pytest.mark.parametrize(
    "error",
    [
        UnknownSession("ended"),
        CapacityFull("connections"),
        BootChanged("restarted"),
        InvalidRequest("hints: damaged"),
    ],
)
def test_get_without_hints_asks_the_daemon_and_for_hints_only_after_a_pause(
    error: AnchorStoreError,
) -> None:
    script = attached()
    script.error = error
    for _ in range(3):
        assert one_get(script) == 0
    assert script.calls() == [Method.LOOKUP] * 3
    assert sum(isinstance(effect, Map) for effect in script.seen) == 1
    clock = script.session.clock
    assert isinstance(clock, ManualClock)
    clock.advance(5.0)
    assert one_get(script) == 0
    assert sum(isinstance(effect, Map) for effect in script.seen) == 2


def test_get_after_half_of_its_deadline_was_spent_twice_asks_nothing_more() -> None:
    script = attached()
    session = script.session
    steps = get(session, bytes(64), 0, bytearray(2 * BLOCK_BYTES), 0, 255, HALF_SECONDS)
    assert script.run(steps) == 0
    assert script.calls() == []
    assert session.counters.snapshot()["misses"] == {"deadline": 1}
