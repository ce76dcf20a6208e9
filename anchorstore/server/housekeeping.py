"""The daemon's background work: ends what has run out, evicts ahead of need; tunes the order of
eviction once, where that can be tuned."""

from __future__ import annotations

import asyncio

from anchorstore.server.core.policies import FlopAware
from anchorstore.server.core.store import Store
from anchorstore.server.core.tuning import tune
from anchorstore.server.service import Service

SECONDS_MIN = 0.002  # between two rounds, so that a wrong deadline cannot spin


async def keep_house(service: Service, pause_seconds: float) -> None:
    """Runs for ever; a round at least every `pause_seconds`, sooner where a right runs out."""
    core, clock = service.core, service.clock
    while True:
        core.expire(clock.now())
        service.forget_ended()
        service.seals.forget_gone()
        service.eviction.wake()
        deadline = core.next_deadline()
        pause = pause_seconds if deadline is None else min(pause_seconds, deadline - clock.now())
        await asyncio.sleep(max(pause, SECONDS_MIN))


async def tune_once(core: Store, policy: FlopAware, pause_seconds: float) -> FlopAware:
    """Waits until there are requests enough, and follows what would have served them best.
    Choosing takes a second or more, in a thread."""
    while True:
        window = core.take_window()
        if window is not None:
            break
        await asyncio.sleep(pause_seconds)
    _, capacity_bytes = core.last_tier
    tuned = await asyncio.to_thread(tune, window, capacity_bytes, policy.balance_pages)
    core.follow(tuned)
    return tuned
