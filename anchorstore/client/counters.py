"""What a client has seen, for the engine's own metrics.  A snapshot is a plain dict."""

from __future__ import annotations

import dataclasses
import threading

MISS_REASONS = (
    "not_stored",
    "incomplete",
    "lineage",
    "margin",
    "disabled",
    "cold",
    "unreachable",
    "deadline",
    "refused",
    "boot",
)
"""Why a lookup can miss: the daemon's reasons, then the client's own.

cold: there is a boundary, but its blocks are not in memory, or not yet.
unreachable: no daemon, or a session that cannot be had again.  deadline: no reply in time.
refused: the daemon is overloaded, draining, full, or refuses the caller.  boot: a window that was
handed over by a process whose daemon has been restarted since.
"""


@dataclasses.dataclass(slots=True)
class Counters:
    """Counts since the client was made; all but `misses` are one number.

    Attributes:
        lookups: all of them; hits + sum(misses) = lookups.
        misses: by reason.
        direct_hits, direct_pages: gets that needed no call (they are no lookups), and their pages.
        pages_hit: pages up to the resume point, summed over hits.
        blocks_sealed, blocks_known, blocks_declined, blocks_mismatched: outcomes of puts.
        bytes_read: copied out by copy_into or fetched from a remote daemon; reads in place are
            not seen.
        blocks_on_device: copied to a device from copies that lay there; the others crossed the bus.
        bytes_written: sealed blocks' bytes.
        connections: opened; sessions: attached.  Both above 1 mean reconnects.
        events_sent, events_dropped: of an engine's own cache (Client.events): told, and not told
            for want of room or of a daemon; events_unknown: told of pages that it has not.
        pins_refused: pins beyond a limit of the daemon.
        torn, checksum_mismatches, leases_lost: reads that failed, by what failed.
    """

    lookups: int = 0
    hits: int = 0
    misses: dict[str, int] = dataclasses.field(default_factory=dict)
    direct_hits: int = 0
    direct_pages: int = 0
    pages_hit: int = 0
    blocks_sealed: int = 0
    blocks_known: int = 0
    blocks_declined: int = 0
    blocks_mismatched: int = 0
    bytes_read: int = 0
    blocks_on_device: int = 0
    bytes_written: int = 0
    connections: int = 0
    sessions: int = 0
    torn: int = 0
    checksum_mismatches: int = 0
    leases_lost: int = 0
    events_sent: int = 0
    events_dropped: int = 0
    events_unknown: int = 0
    pins_refused: int = 0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def add(self, name: str, count: int = 1) -> None:
        """Adds to one number; safe from any thread."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)

    def hit(self, pages: int) -> None:
        """A lookup with a boundary."""
        with self._lock:
            self.lookups += 1
            self.hits += 1
            self.pages_hit += pages

    def direct_hit(self, pages: int, size_bytes: int) -> None:
        """A get without a call."""
        with self._lock:
            self.direct_hits += 1
            self.direct_pages += pages
            self.bytes_read += size_bytes

    def miss(self, reason: str) -> None:
        """A lookup without."""
        assert reason in MISS_REASONS, reason
        with self._lock:
            self.lookups += 1
            self.misses[reason] = self.misses.get(reason, 0) + 1

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """All counts at one moment."""
        with self._lock:
            return {
                field.name: dict(value) if isinstance(value, dict) else value
                for field in dataclasses.fields(self)
                if field.name != "_lock"
                for value in [getattr(self, field.name)]
            }
