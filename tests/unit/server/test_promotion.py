"""Goal: whoever waits for a promotion looks again before anybody can take away what has come.
Method: a core that notes what it is asked, a read that ends when the test says so, and a piece of
other work that is due at the same moment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import types
from typing import Any

import numpy as np

from anchorstore.clock import ManualClock
from anchorstore.server.background import Background
from anchorstore.server.core.work import PromoteWork, Promotion
from anchorstore.server.promotion import Ended, Promotions
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.nvme.plans import Done, Status
from anchorstore.transport.segment import RECORD


def work_of(blocks: int) -> PromoteWork:
    columns: dict[str, Any] = {
        field.name: np.zeros(blocks, np.uint32) for field in dataclasses.fields(PromoteWork)
    }
    columns |= {"ticket": 7, "namespace_id": 1, "domain": "default", "formats": []}
    return PromoteWork(**columns | {"path_hash": np.zeros((blocks, 4), np.uint64)})


async def test_who_waits_is_told_before_other_work_has_its_turn() -> None:
    order: list[str] = []
    clock = ManualClock()
    background = Background(clock, Supervisor(lambda name, error: order.append(repr(error))))
    reading: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def finish(ticket: int, ok: Any, lost: Any, now: float) -> Any:
        order.append(f"unpinned {ok.tolist()}")
        background.post("eviction", lambda: order.append("evicted"))
        return ok

    parts: Any = (
        types.SimpleNamespace(read=lambda owner, plan: reading),
        types.SimpleNamespace(finish_promote=finish),
        types.SimpleNamespace(records=lambda segment: np.zeros(8, RECORD)),
        clock,
        background,
        types.SimpleNamespace(insert=lambda *placed: order.append("hinted")),
        lambda: None,
        lambda: order.append("room taken"),
    )
    promotions = Promotions(*parts)
    promotions.begin(Promotion(1, work_of(2), (7,), 2))
    told: list[tuple[int, bool]] = []

    def end_of(name: str) -> Ended:
        def ended(ticket: int, has_news: bool) -> None:
            order.append(name)
            told.append((ticket, has_news))

        return ended

    for name in ("first", "second"):
        promotions.listen([7], end_of(name))
    await asyncio.sleep(0)
    reading.set_result(Done(np.array([Status.OK, Status.LATE], np.uint8)))
    for _ in range(6):
        await asyncio.sleep(0)
    assert order == [
        *("room taken", "unpinned [True, False]", "hinted"),
        *("first", "second", "evicted"),
    ]
    assert told == [(7, True), (7, True)]
