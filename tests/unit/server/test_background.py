"""Goal: background work goes piece by piece, in order, and between two pieces calls are served; an
error in one is told.
Method: a real event loop; a call is what the loop is given after the pieces were posted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from anchorstore.clock import ManualClock
from anchorstore.server.background import Background
from anchorstore.server.eviction import Eviction
from anchorstore.server.supervisor import Supervisor


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


async def test_pieces_come_in_order_and_calls_between_them() -> None:
    background = Background(ManualClock(), Supervisor(lambda name, error: None))
    order: list[str] = []
    loop = asyncio.get_running_loop()

    def piece(number: int) -> None:
        order.append(f"piece {number}")
        loop.call_soon(order.append, "call")
        if number == 0:
            background.post("test", lambda: piece(3))

    for number in range(3):
        background.post("test", lambda number=number: piece(number))  # type: ignore[misc]
    assert not order, "nothing at once"
    await settled()
    assert order == [word for number in range(4) for word in (f"piece {number}", "call")]


async def test_pieces_have_a_part_of_the_time_that_calls_took() -> None:
    clock, order = ManualClock(), list[str]()
    background = Background(clock, Supervisor(lambda name, error: None))
    loop = asyncio.get_running_loop()

    def piece() -> None:
        order.append("piece")
        clock.advance(1.0)
        loop.call_soon(call)

    def call() -> None:
        order.append("call")
        clock.advance(4 * 3.0)

    loop.call_soon(call)
    for _ in range(9):
        background.post("test", piece)
    await settled()
    turns = [len(turn) for turn in "".join(word[0] for word in order).split("c") if turn]
    assert turns[0] == 3, "a quarter of the 12 seconds before it"
    assert sum(turns) == 9 and max(turns) > 3, "and of the three calls that came after these"


async def test_error_in_a_piece_is_told_and_the_next_one_comes() -> None:
    told: list[str] = []
    background = Background(
        ManualClock(), Supervisor(lambda name, error: told.append(f"{name}: {error}"))
    )

    def slip() -> None:
        raise KeyError("a slip")

    after: list[int] = []
    background.post("promotion", slip)
    background.post("promotion", lambda: after.append(1))
    await settled()
    assert told == ["promotion: 'a slip'"] and after == [1]


class Core:
    """Has so much to evict."""

    def __init__(self, left: int) -> None:
        self.left, self.steps = left, []  # type: ignore[var-annotated]

    def evict_step(self, now: float, limit_blocks: int) -> int:
        gone = min(self.left, limit_blocks)
        self.left -= gone
        self.steps.append(gone)
        return gone


async def test_eviction_goes_on_until_nothing_is_left_and_others_have_their_turn() -> None:
    background = Background(ManualClock(), Supervisor(lambda name, error: None))
    core: Any = Core(40)
    forgotten: list[int] = []
    eviction = Eviction(core, ManualClock(), background, 16, lambda: forgotten.append(core.left))
    eviction.wake()
    eviction.wake()
    background.post("other", lambda: core.steps.append("other"))
    await settled()
    assert core.steps == [16, "other", 16, 8, 0] and forgotten == [24, 8, 0]
    eviction.wake()
    await settled()
    assert core.steps[-1] == 0 and len(core.steps) == 6
