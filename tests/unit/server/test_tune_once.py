"""The task that tunes a flop-aware tier.

Goal: it waits for the window, and the store follows what came out.  Method: a small store whose
window is already full, and one that fills while the task waits.
"""

from __future__ import annotations

import asyncio

from anchorstore.server.core.policies import FlopAware
from anchorstore.server.housekeeping import tune_once
from tests.unit.core.small import KV, Engine, Small

POLICY = FlopAware(alpha=1.7, balance_pages=512.0)


def ask(engine: Engine, requests: int) -> None:
    """Two prefixes too many for four slots, in turn."""
    for number in range(requests):
        path = engine.path(2, str(number % 3))
        if not engine.stored(path):
            engine.put(path)


async def test_tune_once_waits_and_follows() -> None:
    small = Small(segments=1, policy=POLICY)
    engine = small.session(layouts=[KV])
    task = asyncio.create_task(tune_once(small.store, POLICY, 0.001))
    ask(engine, 20)
    for _ in range(3):
        await asyncio.sleep(0.001)
    assert not task.done()
    ask(engine, 150)
    tuned = await task
    assert tuned.balance_pages == POLICY.balance_pages
    assert small.store.take_window() is None
    ask(engine, 10)
    assert small.store.check() == []
