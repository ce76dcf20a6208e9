"""What the client's one implementation asks its two faces to do.

The implementation (session.py, handles.py, writing.py) is generators: they decide, they yield an
effect, they get its result or its error.  They touch no socket and no lock; a driver does that::

    steps (generator)                  driver (blocking.py or aio.py)
      yield Enter(until)    ------->   takes the client's lock
      yield Dial(until)     ------->   connects
      yield Call(...)       ------->   sends a frame, receives its reply
      yield Work(function)  ------->   lets go of the lock, runs it, takes the lock again
      return result         ------->   lets go of the lock, returns

Before its first effect a generator runs without the lock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from anchorstore.transport.frames import Method

T = TypeVar("T")

THREAD_BYTES = 2**20
"""An event loop does smaller work itself: it is done before a thread would have started."""


@dataclasses.dataclass(slots=True)
class Enter:
    """Take the client's lock; DeadlineExceeded where it is not free in time."""

    until: float


@dataclasses.dataclass(slots=True)
class Dial:
    """Open a connection in place of the one there is; ConnectFailed or DeadlineExceeded."""

    until: float


@dataclasses.dataclass(slots=True)
class Hangup:
    """Close the connection, if there is one."""


@dataclasses.dataclass(slots=True)
class Call:
    """One request and its reply: the response message, or the error that it stands for.

    Attributes:
        method: which call.
        body: pieces of the encoded request, sent one after another.
        until: on the driver's clock; no reply by then is DeadlineExceeded.
        payload: raw bytes sent after the body.
        into: where the reply's payload goes; it must fill it.
        on_late: gets the reply (None for a refusal) where it comes after its caller has left.
    """

    method: Method
    body: tuple[bytes, ...]
    until: float
    payload: Sequence[memoryview] = ()
    into: memoryview | None = None
    on_late: Callable[[Any], None] | None = None


@dataclasses.dataclass(slots=True)
class Map:
    """Map segments of the session, and its staging memory and the hints where asked: a
    mapping.Mapped."""

    session_id: bytes
    boot_id: bytes
    segment_ids: tuple[int, ...]
    staging: bool
    until: float
    hints: bool = False


@dataclasses.dataclass(slots=True)
class Work:
    """Run a function that moves many bytes, without the client's lock: its result.

    `size_bytes` lets an event loop decide whether a thread is worth it.
    """

    function: Callable[[], Any]
    size_bytes: int


Effect = Enter | Dial | Hangup | Call | Map | Work
Steps = Generator[Effect, Any, T]
