"""Whether a call is worth trying.  Pure.

::

                     failed
      open  ------------------------>  shut: calls are misses at once
       ^                                 |  retry_seconds later
       |  any reply                      v
       +-----------------------------  probing: one call tries, the others are misses
                                         |  it ended, and nothing was sent after all
                                         v
                                       the next call tries
"""

from __future__ import annotations


class Gate:
    """Shut for a while after the daemon did not answer.  Read without a lock, changed under it."""

    def __init__(self) -> None:
        self.reason = ""  # why it is shut; "" while it is open
        self._shut_until = 0.0
        self._is_probing = False

    def refuses(self, now: float) -> str:
        """The miss reason for a call that should not be tried; "" where it should."""
        return self.reason if self.reason and now < self._shut_until else ""

    def probe(self, until: float) -> None:
        """A call is about to be tried; while it has until `until`, others are not."""
        if self.reason:
            self._shut_until, self._is_probing = until, True

    def settle(self) -> None:
        """The call is over.  One that asked nothing of the daemon leaves the probe to the next."""
        if self._is_probing:
            self._shut_until, self._is_probing = 0.0, False

    def shut(self, reason: str, until: float) -> None:
        """The daemon did not answer, or said to come back later."""
        assert reason, "a gate is shut for a reason"
        self.reason, self._shut_until, self._is_probing = reason, until, False

    def open(self) -> None:
        """The daemon has answered."""
        self.reason, self._is_probing = "", False
