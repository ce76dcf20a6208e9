"""The daemon's one background loop: ends what has run out, evicts ahead of need."""

from __future__ import annotations

import asyncio

from anchorstore.server.service import Service

SECONDS_MIN = 0.002  # between two rounds, so that a wrong deadline cannot spin


async def keep_house(service: Service, pause_seconds: float, evict_step_blocks: int) -> None:
    """Runs for ever; a round at least every `pause_seconds`, sooner where a right runs out."""
    core, clock = service.core, service.clock
    while True:
        now = clock.now()
        core.expire(now)
        service.forget_ended()
        evicted = core.evict_step(now, evict_step_blocks)
        service.seals.forget_gone()
        deadline = core.next_deadline()
        pause = pause_seconds if deadline is None else min(pause_seconds, deadline - clock.now())
        await asyncio.sleep(0 if evicted else max(pause, SECONDS_MIN))
