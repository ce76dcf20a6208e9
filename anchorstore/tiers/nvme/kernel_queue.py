"""What the kernel's two asynchronous interfaces have in common: calls go in, answers come out.

::

    ours      push(...) push(...)        enter(wait)             completions()
    kernel    | op | op |      ------->  takes them    ------>   | tag, result |

`uring.Ring` and `aio.KernelAio` are such queues.  Neither needs a library.
"""

from __future__ import annotations

import ctypes
import enum
import os
import struct
from typing import Protocol

BUSY_SECONDS = 0.001  # until a kernel that took not all is asked again
PATIENCE_SECONDS = 0.001
_TIMESPEC = struct.Struct("<qq")


def checked(result: int) -> int:
    """What a system call gave; OSError where it failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def patience() -> memoryview:
    """PATIENCE_SECONDS as the kernel reads them, in memory of its own."""
    return memoryview(bytearray(_TIMESPEC.pack(0, round(PATIENCE_SECONDS * 1e9))))


class Call(enum.IntEnum):
    """READ moves `length` bytes to an address; READV and WRITEV have as many vectors there."""

    READ = 0
    READV = 1
    WRITEV = 2


class KernelQueue(Protocol):
    """One thread uses it, but for `wake`.

    Attributes:
        wake: an eventfd; see `listen`.
    """

    wake: int

    def operation(
        self, call: Call, descriptor: int, address: int, length: int, offset: int, tag: int
    ) -> bytes:
        """What the kernel shall do; its completion shows the tag."""

    def push(self, operation: bytes) -> None:
        """One operation; what it points at must live until its completion."""

    def listen(self, tag: int) -> None:
        """Pushes one that completes once somebody has written to `wake`, which is emptied then, or
        by the next call.  One of these is out at a time."""

    def enter(self, wait: int) -> None:
        """Hands over what was pushed; returns once `wait` completions are there, after
        PATIENCE_SECONDS with one that is, or where the kernel takes no more before it is rid of
        some."""

    def completions(self) -> list[tuple[int, int]]:
        """(tag, result) of what has ended; a negative result is an error number."""

    def close(self) -> None:
        """Ends the queue; nothing but a `listen` may be out."""
