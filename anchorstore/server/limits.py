"""Limits that the carriers share."""

from __future__ import annotations

import dataclasses
import threading


@dataclasses.dataclass(frozen=True, slots=True)
class TcpLimits:
    """How long the daemon waits for a remote peer.

    Attributes:
        handshake_seconds: from the connection to its first authenticated call.
        frame_seconds: from a frame's first byte to its last, its payload included.
        idle_write_seconds: for the peer to take any byte of an answer.
        keepalive_seconds: of silence before the peer's host is probed.
    """

    handshake_seconds: float
    frame_seconds: float
    idle_write_seconds: float
    keepalive_seconds: float


class ConnectionBudget:
    """Connections open at once, all carriers together.  Safe from any thread."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self._open = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Counts one in; False where there is no room."""
        with self._lock:
            if self._open >= self.connections_max:
                return False
            self._open += 1
            return True

    def give(self) -> None:
        """Counts one out."""
        with self._lock:
            assert self._open > 0, "a connection was counted out twice"
            self._open -= 1
