"""Work that may wait a moment, piece by piece: between two pieces the loop serves who has called.

::

    sockets   | call |        | call | call |                | call |
    pieces           | piece |              | piece |               | piece |

What comes at once, ends of reads for instance, would otherwise run in one go, and a look-up that
memory could answer would wait for all of it.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from anchorstore.server.supervisor import Supervisor

Piece = Callable[[], None]


class Background:
    """Pieces in the order in which they were posted.  Not for use from other threads than the event
    loop's.  An error in one is a bug: the supervisor is told."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._pieces: collections.deque[tuple[str, Piece]] = collections.deque()

    def post(self, name: str, piece: Piece) -> None:
        """Has `piece` called, soon."""
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._turn)
        self._pieces.append((name, piece))

    def _turn(self) -> None:
        name, piece = self._pieces[0]
        try:
            piece()
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._supervisor.fail(name, error)
        self._pieces.popleft()
        if self._pieces:
            asyncio.get_running_loop().call_soon(self._turn)
