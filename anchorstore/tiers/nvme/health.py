"""Whether a device may be used: what its errors mean for everybody else's blocks.

::

    healthy --- takes no more bytes (full, read-only, journal lost) ---> read-only
       |                                                                     |
       +------- is gone, or nothing but errors ------> offline <-------------+
       ^                                                                     |
       +---------------- after a pause one try, and it worked ---------------+

One slot's EIO is one block's loss.  A degraded device refuses at once, so that nobody waits for
it; the other devices and the dram tier serve on.
"""

from __future__ import annotations

import enum
import os
import threading

from anchorstore.clock import Clock
from anchorstore.tiers.nvme.seam import FULL_ERRORS, GONE_ERRORS, Log

ERRORS_IN_A_ROW_MAX = 16


class State(enum.IntEnum):
    """What a device can still do."""

    HEALTHY = 0
    READ_ONLY = 1
    OFFLINE = 2


class Health:
    """State of one device.  Thread-safe.

    Args:
        name: of the file, for the log.
        retry_seconds: from a fault to the next try; a fault that is for good is never tried again.
    """

    def __init__(self, name: str, retry_seconds: float, clock: Clock, log: Log) -> None:
        self._name, self._retry_seconds = name, retry_seconds
        self._clock, self._log = clock, log
        self._lock = threading.Lock()
        self.state = State.HEALTHY
        self.reason = ""
        self._retry_at: float | None = None
        self._in_a_row = 0
        self.read_errors = 0
        self.write_errors = 0

    def may(self, is_write: bool) -> bool:
        """Whether a read, or a write, is worth trying now."""
        with self._lock:
            limit = State.HEALTHY if is_write else State.READ_ONLY
            if self.state <= limit:
                return True
            if self._retry_at is None or self._clock.now() < self._retry_at:
                return False
            self._retry_at = self._clock.now() + self._retry_seconds
            return True  # this one is the try

    def worked(self, is_write: bool) -> None:
        """A read or a write went well."""
        if not self._in_a_row and self.state == State.HEALTHY:
            return
        with self._lock:
            self._in_a_row = 0
            cured = State.READ_ONLY if is_write else State.OFFLINE
            if self._retry_at is not None and self.state >= cured and self.state != State.HEALTHY:
                self._log(f"nvme: {self._name} works again: {self.reason} has passed")
                self.state, self.reason, self._retry_at = State.HEALTHY, "", None

    def failed(self, is_write: bool, code: int) -> None:
        """A read or a write met an error."""
        with self._lock:
            if is_write:
                self.write_errors += 1
            else:
                self.read_errors += 1
            self._in_a_row += 1
            text = os.strerror(code)
            if code in GONE_ERRORS:
                self._degrade(State.OFFLINE, text)
            elif is_write and code in FULL_ERRORS:
                self._degrade(State.READ_ONLY, text)
            elif self._in_a_row >= ERRORS_IN_A_ROW_MAX:
                self._degrade(State.OFFLINE, f"{self._in_a_row} errors in a row, the last: {text}")

    def lost(self, reason: str, state: State = State.READ_ONLY) -> None:
        """A fault that is for good in this daemon's life."""
        with self._lock:
            self._degrade(state, reason)
            self._retry_at = None

    def _degrade(self, state: State, reason: str) -> None:
        is_new = state > self.state
        was_for_good = self.state != State.HEALTHY and self._retry_at is None
        if is_new:
            words = "serves no more" if state == State.OFFLINE else "stores nothing new"
            self._log(f"nvme: {self._name} {words}: {reason}")
            self.state, self.reason = state, reason
        if not was_for_good:
            self._retry_at = self._clock.now() + self._retry_seconds
