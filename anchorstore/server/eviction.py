"""Eviction ahead of need: begun by what takes room, done piece by piece in the background.

::

    a seal, a promotion, a round of keep_house --wake--> evict_step --some gone--> again, in turn

Whoever needs room and finds none evicts for himself, in one go, while everybody waits: the steps
here are what that is spared by.
"""

from __future__ import annotations

from collections.abc import Callable

from anchorstore.clock import Clock
from anchorstore.server.background import Background
from anchorstore.server.core.store import Store


class Eviction:
    """Not for use from other threads than the event loop's.

    Args:
        step_blocks: blocks or pages in one go, about.
        forget_gone: takes out the hints of what the core has let go.
    """

    def __init__(
        self,
        core: Store,
        clock: Clock,
        background: Background,
        step_blocks: int,
        forget_gone: Callable[[], None],
    ) -> None:
        self._core, self._clock, self._background = core, clock, background
        self._step_blocks, self._forget_gone = step_blocks, forget_gone
        self._is_awake = False

    def wake(self) -> None:
        """Some room may have been taken."""
        if not self._is_awake:
            self._is_awake = True
            self._background.post("eviction", self._step)

    def _step(self) -> None:
        self._is_awake = False
        if self._core.evict_step(self._clock.now(), self._step_blocks):
            self._background.post("eviction", self._forget_gone)
            self.wake()
