"""Linux's older asynchronous calls (io_submit), which container profiles allow where they forbid
io_uring.

With O_DIRECT a submitted call runs in the background; without, the kernel would finish it first.
Since Linux 4.18, when it learnt to poll.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import select
import struct
import time
from typing import NamedTuple

from anchorstore.tiers.nvme.kernel_queue import BUSY_SECONDS, Call, checked, patience
from anchorstore.tiers.nvme.seam import address_of


class _Numbers(NamedTuple):
    """Of the system calls."""

    setup: int
    destroy: int
    submit: int
    getevents: int


_NUMBERS = {
    "x86_64": _Numbers(setup=206, destroy=207, submit=209, getevents=208),
    "aarch64": _Numbers(setup=0, destroy=1, submit=2, getevents=4),
}
_CODES = (0, 7, 8)  # of each Call
_POLL = 5
_IOCB = struct.Struct("<QIIHhIQQq8xII")
"""tag, key, flags of the call, code, priority, descriptor, address, length, offset, flags, fd"""
_TAG = struct.Struct("<Q")
_EVENT = struct.Struct("<QQqq")  # tag, address of the iocb, result, another


class KernelAio:
    """See KernelQueue.  OSError where the kernel refuses one of so many `entries`."""

    def __init__(self, entries: int) -> None:
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, f"aio is not used on {platform.machine()}")
        self._numbers, self._entries = numbers, entries
        self._system = ctypes.CDLL(None, use_errno=True)["syscall"]
        self._system.argtypes = (ctypes.c_long,) * 3 + (ctypes.c_void_p,) * 3
        self._system.restype = ctypes.c_long
        context = ctypes.c_ulong()
        checked(self._call(numbers.setup, entries, ctypes.addressof(context)))
        self._context = context.value
        self._operations = memoryview(bytearray(entries * _IOCB.size))
        first = address_of(self._operations)
        self._pointers = (ctypes.c_void_p * entries)(
            *range(first, first + entries * _IOCB.size, _IOCB.size)
        )
        self._pushed = 0
        self._events = memoryview(bytearray(entries * _EVENT.size))
        self._events_address = address_of(self._events)
        self._time = patience()
        self._landed: list[tuple[int, int]] = []
        self.wake = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._probe()

    def _probe(self) -> None:
        """Polls the eventfd, which has something to read."""
        self._push_poll(0)
        self.enter(1)
        [(_, result)] = self.completions()
        if result < 0:
            self.close()
            raise OSError(-result, os.strerror(-result))

    def _call(self, number: int, first: int, *others: int) -> int:
        return int(self._system(number, first, *others, *[0] * (4 - len(others))))

    def operation(
        self, call: Call, descriptor: int, address: int, length: int, offset: int, tag: int
    ) -> bytes:
        """See KernelQueue."""
        return _IOCB.pack(tag, 0, 0, _CODES[call], 0, descriptor, address, length, offset, 0, 0)

    def listen(self, tag: int) -> None:
        """See KernelQueue: empties it and polls."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        self._push_poll(tag)

    def _push_poll(self, tag: int) -> None:
        self.push(_IOCB.pack(tag, 0, 0, _POLL, 0, self.wake, select.POLLIN, 0, 0, 0, 0))

    def push(self, operation: bytes) -> None:
        """See KernelQueue."""
        assert self._pushed < self._entries, "the queue is full"
        place = self._pushed * _IOCB.size
        self._operations[place : place + _IOCB.size] = operation
        self._pushed += 1

    def enter(self, wait: int) -> None:
        """See KernelQueue."""
        if self._pushed and not self._submit():
            return
        if wait > len(self._landed):
            self._collect(wait - len(self._landed), address_of(self._time) if wait > 1 else 0)
            if not self._landed:
                self._collect(1)

    def _submit(self) -> bool:
        """Whether the kernel has taken all of them."""
        submitted = 0
        pointers = ctypes.addressof(self._pointers)
        while submitted < self._pushed:
            left = self._pushed - submitted
            taken = self._call(self._numbers.submit, self._context, left, pointers + 8 * submitted)
            if taken >= 0:
                submitted += taken
                continue
            code = ctypes.get_errno()
            if code == errno.EAGAIN:
                break
            place = submitted * _IOCB.size  # it does not want this one
            self._landed.append((_TAG.unpack_from(self._operations, place)[0], -code))
            submitted += 1
        self._pushed -= submitted
        if not self._pushed:
            return True
        start, size = submitted * _IOCB.size, self._pushed * _IOCB.size
        self._operations[:size] = self._operations[start : start + size]
        time.sleep(BUSY_SECONDS)  # the kernel is short of memory, or wants to be drained
        return False

    def _collect(self, least: int, time_address: int = 0) -> None:
        """Takes what has ended, at least so many, or in so much time."""
        where = self._events_address
        call = (self._numbers.getevents, self._context, least, self._entries, where, time_address)
        while True:
            try:
                found = checked(self._call(*call))
                break
            except InterruptedError:
                continue
        events = _EVENT.iter_unpack(self._events[: found * _EVENT.size])
        self._landed.extend((tag, result) for tag, _, result, _ in events)

    def completions(self) -> list[tuple[int, int]]:
        """See KernelQueue."""
        self._collect(0)
        found, self._landed = self._landed, []
        return found

    def close(self) -> None:
        """See KernelQueue."""
        self._call(self._numbers.destroy, self._context, 0)
        os.close(self.wake)
