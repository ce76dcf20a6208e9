"""Work that may wait a moment, piece by piece: between two pieces the loop serves who has called.

::

    sockets   | call |        | call | call |                | call |
    pieces           | piece |              | piece | piece |        | piece |

What comes at once, ends of reads for instance, would otherwise run in one go, and a look-up that
memory could answer would wait for all of it.  Nor do calls starve the pieces: those have a part of
the time that they have waited for their turn.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from anchorstore.clock import Clock
from anchorstore.server.supervisor import Supervisor

WAITED_PART = 0.25
"""Of the time since a turn was due, that it may take where one piece is not more already."""

Piece = Callable[[], None]


class Background:
    """Pieces in the order in which they were posted.  Not for use from other threads than the event
    loop's.  An error in one is a bug: the supervisor is told."""

    def __init__(self, clock: Clock, supervisor: Supervisor) -> None:
        self._clock, self._supervisor = clock, supervisor
        self._pieces: collections.deque[tuple[str, Piece]] = collections.deque()
        self._due_at = 0.0

    def post(self, name: str, piece: Piece) -> None:
        """Has `piece` called, soon."""
        self._pieces.append((name, piece))
        if len(self._pieces) == 1:
            self._come_back()

    def _come_back(self) -> None:
        self._due_at = self._clock.now()
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        began = self._clock.now()
        until = began + WAITED_PART * (began - self._due_at)
        while True:
            self._call(*self._pieces[0])
            self._pieces.popleft()  # now: a piece that posts another finds itself before it
            if not self._pieces:
                return
            if self._clock.now() >= until:
                self._come_back()
                return

    def _call(self, name: str, piece: Piece) -> None:
        try:
            piece()
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._supervisor.fail(name, error)
