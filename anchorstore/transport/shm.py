"""The client's end of same-host memory: descriptors off a Unix socket, mappings out of them.

::

    daemon                              client
    memfd of a segment  --SCM_RIGHTS->  mmap, PROT_READ           blocks are read in place
    memfd of staging    --SCM_RIGHTS->  mmap, PROT_READ|WRITE     blocks are written here

The daemon sealed a segment against writers, so the kernel refuses any other mapping of it.
"""

from __future__ import annotations

import array
import mmap
import os
import socket

from anchorstore.errors import ConnectFailed, InvalidRequest
from anchorstore.transport import frames

DESCRIPTORS_MAX = 253  # SCM_MAX_FD of the kernel, in one message
_ANCILLARY_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)


def receive_frame(connection: socket.socket) -> tuple[frames.Frame, list[int]]:
    """The next frame and the descriptors that came with its bytes; the caller closes them.

    Nothing may follow that frame.  ConnectFailed where the other side hangs up first.
    """
    parser = frames.Parser()
    descriptors: list[int] = []
    try:
        while True:
            data, ancillary, flags, _ = connection.recvmsg(
                65536, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
            descriptors += _descriptors_in(ancillary)
            if flags & socket.MSG_CTRUNC:
                raise InvalidRequest(f"more than {DESCRIPTORS_MAX} descriptors in one message")
            if not data:
                raise ConnectFailed("the daemon hung up while it passed descriptors")
            for frame in parser.feed(data):
                return frame, descriptors
    except BaseException:
        close_all(descriptors)
        raise


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def close_all(descriptors: list[int]) -> None:
    """Closes and forgets each of `descriptors`."""
    while descriptors:
        os.close(descriptors.pop())


def map_segment(descriptor: int, size: int) -> mmap.mmap:
    """The segment behind `descriptor`, read-only.  The descriptor may be closed afterwards."""
    _check_size(descriptor, size)
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def map_staging(descriptor: int, size: int) -> mmap.mmap:
    """The staging memory behind `descriptor`, writable."""
    _check_size(descriptor, size)
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _check_size(descriptor: int, size: int) -> None:
    """A mapping beyond the end would kill the reader (SIGBUS)."""
    found = os.fstat(descriptor).st_size
    if size <= 0 or found < size:
        raise InvalidRequest(f"memory of {found} bytes was announced as {size}")
