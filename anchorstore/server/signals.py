"""SIGTERM and SIGINT as events, and work that is given up for an event."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def close(self) -> None:
        """Gives the signals back."""
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)


async def first_of(*events: asyncio.Event) -> None:
    """Returns once one of `events` is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def unless(work: Coroutine[Any, Any, None], *events: asyncio.Event) -> None:
    """Runs `work`, but gives it up as soon as one of `events` is set; its errors come through."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(first_of(*events))
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stop.cancel()
        task.cancel()
        await asyncio.wait({task})
