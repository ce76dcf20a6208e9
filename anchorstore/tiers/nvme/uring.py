"""io_uring: a submission queue and a completion queue in memory shared with the kernel.

x86-64 alone, whose order of stores is what the plain Python stores below rely on.  Container
profiles often forbid `io_uring_setup`: an OSError says so.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import time

from anchorstore.tiers.nvme.kernel_queue import BUSY_SECONDS, Call, checked, patience
from anchorstore.tiers.nvme.seam import address_of

_SETUP, _ENTER = 425, 426
_GETEVENTS, _EXT_ARG = 1, 8
_OFF_SQ, _OFF_CQ, _OFF_SQES = 0, 0x8000000, 0x10000000
_FEATURES_WANTED = 1  # IORING_FEAT_SINGLE_MMAP, Linux 5.4
_FEATURE_EXT_ARG = 1 << 8  # Linux 5.11: a call that waits for so long
_EXT = struct.Struct("<QIIQ")  # signals, their size, nothing, address of a time
_PARAMS_BYTES = 120
_FLAGS, _FLAGS_AT = struct.Struct("<I"), 8
_COOP_TASKRUN = 1 << 8  # answers wait for our next call and never interrupt us
_SQE = struct.Struct("<BBHiQQIIQ24x")  # opcode, flags, ioprio, fd, offset, address, length, flags
_CQE = struct.Struct("<Qi4x")
_CODES = (22, 1, 2)  # of each Call
OPERATION_BYTES = _SQE.size


class Ring:
    """See KernelQueue.  OSError where the kernel refuses a ring of so many `entries`."""

    def __init__(self, entries: int) -> None:
        if platform.machine() != "x86_64":
            raise OSError(errno.ENOSYS, f"io_uring is not used on {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        setup, self._enter = libc["syscall"], libc["syscall"]
        setup.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_char_p)
        self._enter.argtypes = (
            *(ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint),
            *(ctypes.c_void_p, ctypes.c_size_t),
        )
        setup.restype = self._enter.restype = ctypes.c_long
        params = ctypes.create_string_buffer(_PARAMS_BYTES)
        _FLAGS.pack_into(params, _FLAGS_AT, _COOP_TASKRUN)
        self._descriptor = setup(_SETUP, entries, params)
        if self._descriptor < 0 and ctypes.get_errno() == errno.EINVAL:  # before Linux 5.19
            _FLAGS.pack_into(params, _FLAGS_AT, 0)
            self._descriptor = setup(_SETUP, entries, params)
        checked(self._descriptor)
        sq_entries, cq_entries, _, _, _, features = struct.unpack_from("<6I", params)
        if not features & _FEATURES_WANTED:
            os.close(self._descriptor)
            raise OSError(errno.ENOSYS, "io_uring of this kernel is too old")
        sq = struct.unpack_from("<6I", params, 40)  # head, tail, mask, entries, flags, dropped
        sq_array = struct.unpack_from("<I", params, 64)[0]
        cq = struct.unpack_from("<6I", params, 80)  # head, tail, mask, entries, overflow, cqes
        size = max(sq_array + 4 * sq_entries, cq[5] + _CQE.size * cq_entries)
        self._rings = mmap.mmap(self._descriptor, size, offset=_OFF_SQ)
        self._sqes = mmap.mmap(self._descriptor, sq_entries * _SQE.size, offset=_OFF_SQES)
        word = ctypes.c_uint32
        self._sq_tail = word.from_buffer(self._rings, sq[1])
        self._cq_head = word.from_buffer(self._rings, cq[0])
        self._cq_tail = word.from_buffer(self._rings, cq[1])
        self._sq_mask, self._cq_mask, self._cqes = sq_entries - 1, cq_entries - 1, cq[5]
        for at in range(sq_entries):  # entry i of the queue is always entry i of the array
            struct.pack_into("<I", self._rings, sq_array + 4 * at, at)
        self.entries = sq_entries
        self._unsubmitted = 0
        self._time = patience()
        self._ext = memoryview(bytearray(_EXT.pack(0, 0, 0, address_of(self._time))))
        self._is_patient = bool(features & _FEATURE_EXT_ARG)
        self.wake, self._woken = os.eventfd(0, os.EFD_CLOEXEC), ctypes.c_uint64()

    def operation(
        self, call: Call, descriptor: int, address: int, length: int, offset: int, tag: int
    ) -> bytes:
        """See KernelQueue."""
        return _SQE.pack(_CODES[call], 0, 0, descriptor, offset, address, length, 0, tag)

    def listen(self, tag: int) -> None:
        """See KernelQueue: reads it."""
        where = ctypes.addressof(self._woken)
        self.push(self.operation(Call.READ, self.wake, where, 8, 0, tag))

    def push(self, operation: bytes) -> None:
        """See KernelQueue."""
        assert self._unsubmitted < self.entries, "the submission queue is full"
        tail = self._sq_tail.value
        place = (tail & self._sq_mask) * OPERATION_BYTES
        self._sqes[place : place + OPERATION_BYTES] = operation
        self._sq_tail.value = (tail + 1) & 0xFFFFFFFF
        self._unsubmitted += 1

    def enter(self, wait: int) -> None:
        """See KernelQueue."""
        if wait > 1 and self._is_patient:
            self._call(wait, _GETEVENTS | _EXT_ARG, address_of(self._ext), _EXT.size)
            wait = 0 if self._cq_head.value != self._cq_tail.value else 1
        if wait or self._unsubmitted:
            self._call(min(wait, 1), _GETEVENTS, None, 0)

    def _call(self, wait: int, flags: int, argument: int | None, size: int) -> None:
        while True:
            given = self._unsubmitted
            taken = self._enter(_ENTER, self._descriptor, given, wait, flags, argument, size)
            if taken >= 0:
                self._unsubmitted -= taken
                if taken == given:
                    return
                continue
            code = ctypes.get_errno()
            if code == errno.EINTR:
                continue
            if code == errno.ETIME:
                return
            if code not in (errno.EAGAIN, errno.EBUSY):
                raise OSError(code, os.strerror(code))
            time.sleep(BUSY_SECONDS)  # the kernel is short of memory, or wants to be drained
            return

    def completions(self) -> list[tuple[int, int]]:
        """See KernelQueue."""
        head, tail = self._cq_head.value, self._cq_tail.value
        first, count = head & self._cq_mask, (tail - head) & 0xFFFFFFFF
        until_wrap = self._cq_mask + 1 - first
        if count <= until_wrap:
            found = self._answers(first, count)
        else:
            found = self._answers(first, until_wrap) + self._answers(0, count - until_wrap)
        self._cq_head.value = tail
        return found

    def _answers(self, first: int, count: int) -> list[tuple[int, int]]:
        start = self._cqes + first * _CQE.size
        return list(_CQE.iter_unpack(self._rings[start : start + count * _CQE.size]))

    def close(self) -> None:
        """See KernelQueue."""
        del self._sq_tail, self._cq_head, self._cq_tail
        self._rings.close()
        self._sqes.close()
        os.close(self._descriptor)
        os.close(self.wake)
