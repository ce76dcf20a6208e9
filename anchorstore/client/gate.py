"""Whether a call is worth trying.  Pure.

::

                     failed
      open  ------------------------>  shut: calls are misses at once
       ^                                 |  retry_seconds later
       |  any reply                      v
       +-----------------------------  probing: one call tries, the others are misses
"""

from __future__ import annotations


class Gate:
    """Shut for a while after the daemon did not answer.  Read without a lock, changed under it."""

    def __init__(self) -> None:
        self.reason = ""  # why it is shut; "" while it is open
        self._shut_until = 0.0

    def refuses(self, now: float) -> str:
        """The miss reason for a call that should not be tried; "" where it should."""
        return self.reason if self.reason and now < self._shut_until else ""

    def probe(self, until: float) -> None:
        """A call is about to be tried; while it has until `until`, others are not."""
        if self.reason:
            self._shut_until = until

    def shut(self, reason: str, until: float) -> None:
        """The daemon did not answer, or said to come back later."""
        assert reason, "a gate is shut for a reason"
        self.reason, self._shut_until = reason, until

    def open(self) -> None:
        """The daemon has answered."""
        self.reason = ""
