"""The one seam to time.  The pure core takes `now` as an argument; the shell reads a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds; only differences mean anything."""

    def now(self) -> float: ...


class SystemClock:
    """The operating system's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told: for tests and simulations."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time does not run backwards: {seconds}"
        self._now += seconds
