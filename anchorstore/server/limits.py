"""Limits that the carriers and the calls go by."""

from __future__ import annotations

import collections
import dataclasses
import threading

from anchorstore.errors import CapacityFull


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


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceLimits:
    """What a call may ask for, and how long rights and waits last.

    Attributes:
        max_lineages: deepest lineage by (domain, model), where a rule sets one: a session may ask
            for less.
    """

    pages_per_call: int
    layouts_per_session: int
    read_ttl_seconds: float
    write_ttl_seconds: float
    session_ttl_seconds: float
    lookup_wait_seconds: float
    waiting_lookups: int
    evict_step_blocks: int
    max_lineages: dict[tuple[str, str], int]


class ConnectionBudget:
    """Connections open at once, all carriers together, and those of one domain.

    ::

        accept --take()--> Place, nobody's yet --claim(domain)--> the domain's --give()--> free

    Safe from any thread.
    """

    def __init__(self, connections_max: int, domain_max: int) -> None:
        self.connections_max, self.domain_max = connections_max, domain_max
        self.open = 0
        self.open_of: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()

    def take(self) -> Place | None:
        """Counts one in; None where there is no room."""
        with self.lock:
            if self.open >= self.connections_max:
                return None
            self.open += 1
            return Place(self)


class Place:
    """One connection's place in the budget."""

    def __init__(self, budget: ConnectionBudget) -> None:
        self._budget = budget
        self._domain: str | None = None
        self._is_given = False

    def claim(self, domain: str) -> None:
        """Counts the connection to its domain; CapacityFull where that has its share."""
        budget = self._budget
        with budget.lock:
            if domain == self._domain:
                return
            count = budget.open_of[domain]
            if count >= budget.domain_max:
                raise CapacityFull(
                    f"domain {domain!r} has {count} connections, limit {budget.domain_max} a "
                    "domain (limits.connections_per_domain)"
                )
            self._leave()
            budget.open_of[domain] += 1
            self._domain = domain

    def give(self) -> None:
        """Counts the connection out."""
        with self._budget.lock:
            assert not self._is_given, "a connection was counted out twice"
            self._is_given = True
            self._leave()
            self._budget.open -= 1

    def _leave(self) -> None:
        if self._domain is not None:
            self._budget.open_of[self._domain] -= 1
            if not self._budget.open_of[self._domain]:
                del self._budget.open_of[self._domain]
            self._domain = None
