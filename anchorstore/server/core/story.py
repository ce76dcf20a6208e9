"""What happened lately, kept for the story of a broken invariant.

Everything that the core does is noted in a ring of 256 events; a broken invariant stops the daemon
with that history, because a cache may always forget but must never lie.
"""

from __future__ import annotations

import collections
from typing import Any

EVENTS_KEPT = 256


class Story:
    """The last events, and the end that they may come to."""

    def __init__(self) -> None:
        self._events: collections.deque[tuple[Any, ...]] = collections.deque(maxlen=EVENTS_KEPT)

    def note(self, *event: Any) -> None:
        """Keeps an event."""
        self._events.append(event)

    def story(self) -> str:
        """The last events, oldest first."""
        return "\n".join(" ".join(map(str, event)) for event in self._events)

    def ensure(self, holds: bool, what: str) -> None:
        """Stops with the history where an invariant does not hold."""
        if not holds:
            raise AssertionError(f"{what}\nlast events:\n{self.story()}")
