"""The floor: what a Unix socket and shared memory can reach in Python with no store behind them.

A second process owns a memfd and a dict of path hashes.  A get is one round trip and one copy out
of the mapping; a lookup sends 512 hashes, walks the dict, and answers with as many bytes as the
daemon's reply has.  No protobuf, no lease, no checksum, no index that forgets: the store cannot
beat it, and is measured by how near it comes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.harness import Bytes

_REQUEST = struct.Struct("<cI")  # operation, bytes of the reply
_HASH_BYTES = 32
_BUFFER_BYTES = 2**20


def serve(connection: socket.socket) -> None:
    """Answers until the other side hangs up: "k" keeps hashes, "p" walks them, "e" echoes."""
    table: dict[bytes, int] = {}
    while message := connection.recv(_BUFFER_BYTES):
        operation, reply_bytes = _REQUEST.unpack_from(message)
        body = message[_REQUEST.size :]
        matched = 0
        if operation == b"k":
            for start in range(0, len(body), _HASH_BYTES):
                table[body[start : start + _HASH_BYTES]] = 1
        elif operation == b"p":
            for start in range(0, len(body), _HASH_BYTES):
                if body[start : start + _HASH_BYTES] not in table:
                    break
                matched += 1
        connection.send(matched.to_bytes(4, "little").ljust(reply_bytes, b"\0"))


class Floor:
    """Client of the floor process."""

    def __init__(self, connection: socket.socket, memory: Bytes) -> None:
        self._connection = connection
        self.memory = memory

    def _call(self, operation: bytes, reply_bytes: int, body: bytes = b"") -> bytes:
        self._connection.send(_REQUEST.pack(operation, reply_bytes) + body)
        return self._connection.recv(_BUFFER_BYTES)

    def keep(self, hashes: bytes) -> None:
        """Makes the hashes known."""
        self._call(b"k", 16, hashes)

    def lookup(self, hashes: bytes, reply_bytes: int) -> int:
        """Leading hashes known; the reply has `reply_bytes`."""
        return int.from_bytes(self._call(b"p", reply_bytes, hashes)[:4], "little")

    def get(self, offset: int, out: Bytes) -> None:
        """One round trip and one copy of len(out) bytes."""
        self._call(b"e", 16)
        np.copyto(out, self.memory[offset : offset + len(out)])


@contextlib.contextmanager
def floor(memory_bytes: int) -> Iterator[Floor]:
    """A floor process with `memory_bytes` of mapped, filled shared memory."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    descriptor = os.memfd_create("floor")
    os.ftruncate(descriptor, memory_bytes)
    memory = np.frombuffer(mmap.mmap(descriptor, memory_bytes), np.uint8)
    memory[:] = 7
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.floor", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
        yield Floor(ours, memory)
    finally:
        ours.close()
        process.wait(timeout=10)
        os.close(descriptor)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
