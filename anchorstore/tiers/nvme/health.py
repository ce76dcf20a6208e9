"""Whether a device may be used: what its errors mean for everybody else's blocks.

::

    cause     came by                                  does                ends
    calls     full, read-only, gone, only errors       read-only, offline  a try after a pause works
    journal   it cannot be written                     read-only           it can again
    file      removed, opened to be read               read-only           never
    engine    its thread has broken, a bug             offline             never

One slot's EIO is one block's loss.  A degraded device refuses at once, so that nobody waits for
it; the other devices and the dram tier serve on.  The worst cause decides.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import threading
from typing import Literal

from anchorstore.clock import Clock
from anchorstore.tiers.nvme.seam import FULL_ERRORS, GONE_ERRORS, Log

ERRORS_IN_A_ROW_MAX = 16
SAY_SECONDS = 60.0
"""A disk that rots is told of, in one line a minute."""

Cause = Literal["calls", "journal", "file", "engine"]


class State(enum.IntEnum):
    """What a device can still do."""

    HEALTHY = 0
    READ_ONLY = 1
    OFFLINE = 2


@dataclasses.dataclass(slots=True)
class _Fault:
    state: State
    reason: str
    retry_at: float
    is_tried: bool = False  # since the last error


class Health:
    """State of one device.  Thread-safe.

    Args:
        name: of the file, for the log.
        retry_seconds: from a fault of calls to the next try.
    """

    def __init__(self, name: str, retry_seconds: float, clock: Clock, log: Log) -> None:
        self._name, self.retry_seconds = name, retry_seconds
        self._clock, self._log = clock, log
        self._lock = threading.Lock()
        self._faults: dict[Cause, _Fault] = {}
        self._in_a_row = 0
        self._lost, self._last_lost, self._say_at = 0, "", -math.inf
        self.read_errors = 0
        self.write_errors = 0

    @property
    def state(self) -> State:
        """What the device can do now."""
        faults = list(self._faults.values())
        return max((fault.state for fault in faults), default=State.HEALTHY)

    @property
    def reason(self) -> str:
        """Why, "" for a healthy one."""
        faults = sorted(self._faults.values(), key=lambda fault: fault.state)
        return faults[-1].reason if faults else ""

    def may(self, is_write: bool) -> bool:
        """Whether a read, or a write, is worth trying now."""
        if not self._faults:
            return True
        limit = State.HEALTHY if is_write else State.READ_ONLY
        with self._lock:
            against = {cause for cause, fault in self._faults.items() if fault.state > limit}
            if against != {"calls"}:
                return not against
            fault, now = self._faults["calls"], self._clock.now()
            if now < fault.retry_at:
                return False
            fault.retry_at, fault.is_tried = now + self.retry_seconds, True
            return True  # this one is the try

    def worked(self, is_write: bool) -> None:
        """A read or a write of a slot went well."""
        if not self._in_a_row and "calls" not in self._faults:
            return
        with self._lock:
            self._in_a_row = 0
            fault = self._faults.get("calls")
            if fault is None or not fault.is_tried:
                return  # what was out as it began says nothing of it
            if is_write or fault.state == State.OFFLINE:
                self._end("calls")

    def failed(self, is_write: bool, code: int) -> None:
        """A read or a write of a slot met an error."""
        with self._lock:
            if is_write:
                self.write_errors += 1
            else:
                self.read_errors += 1
            self._in_a_row += 1
            text = os.strerror(code)
            if code in GONE_ERRORS:
                self._begin("calls", State.OFFLINE, text)
            elif is_write and code in FULL_ERRORS:
                self._begin("calls", State.READ_ONLY, text)
            elif self._in_a_row >= ERRORS_IN_A_ROW_MAX:
                self._begin("calls", State.OFFLINE, f"nothing but errors, the last: {text}")

    def lost(self, offset: int, why: str) -> None:
        """A block whose slot lies there in the file cannot be read, or is not what was written."""
        with self._lock:
            self._lost += 1
            self._last_lost = f"the last at byte {offset}: {why}"
        self.tell_lost()

    def tell_lost(self) -> None:
        """Says how many blocks were lost since the last such line, where a minute is over."""
        with self._lock:
            now = self._clock.now()
            if not self._lost or now < self._say_at:
                return
            self._say_at, count, self._lost = now + SAY_SECONDS, self._lost, 0
            self._log(
                f"nvme: {self._name}: blocks lost: {count} since the last such line, "
                f"{self._last_lost}"
            )

    def say(self, text: str) -> None:
        """A line in the log: the device's name, and this of it."""
        self._log(f"nvme: {self._name} {text}")

    def begin(self, cause: Cause, reason: str, state: State = State.READ_ONLY) -> None:
        """The device takes nothing new for this cause, or does nothing more."""
        with self._lock:
            self._begin(cause, state, reason)

    def end(self, cause: Cause) -> None:
        """The cause has passed."""
        if cause in self._faults:
            with self._lock:
                self._end(cause)

    def _begin(self, cause: Cause, state: State, reason: str) -> None:
        before = self._faults.get(cause)
        if before is None or before.state < state:
            words = "serves no more" if state == State.OFFLINE else "stores nothing new"
            self._log(f"nvme: {self._name} {words}: {reason}")
        else:
            state, reason = before.state, before.reason
        self._faults[cause] = _Fault(state, reason, self._clock.now() + self.retry_seconds)

    def _end(self, cause: Cause) -> None:
        fault = self._faults.pop(cause, None)
        if fault is not None:
            self._log(f"nvme: {self._name} works again, after: {fault.reason}")
