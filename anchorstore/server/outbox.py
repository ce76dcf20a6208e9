"""What leaves a Unix connection, in order: bytes through the transport, descriptors past it.

::

    send(bytes)               nothing waits  -> written at once, the rest by transport.write
    send(bytes, descriptors)  transport dry  -> one sendmsg on a duplicate of the socket
                              not yet        -> waits, and whatever follows waits behind it

Each waiting answer to Map holds its descriptors, so whoever owns an outbox must take no further
calls while it waits: a peer that asks and never reads would use up the daemon's descriptors.
"""

from __future__ import annotations

import asyncio
import collections
import os
import socket
from collections.abc import Callable
from typing import Any

RETRY_SECONDS = 0.001


class Outbox:
    """The answers of one connection.

    Args:
        transport: of the connection; uvloop's share no base with asyncio's.
        changed: called when answers begin to wait and when none waits any more.
    """

    def __init__(self, transport: Any, changed: Callable[[], None]) -> None:
        self._transport, self._changed = transport, changed
        self._waiting: collections.deque[tuple[bytes, list[int]]] = collections.deque()
        self._twin: socket.socket | None = None
        self._is_open = True

    @property
    def waits(self) -> bool:
        """Whether the peer must read before the next answer can leave."""
        return bool(self._waiting)

    def send(self, data: bytes, descriptors: list[int] | None = None) -> None:
        """Sends or queues; the descriptors are closed here once they have left."""
        if not descriptors and not self._waiting:
            self._write(data)
            return
        self._waiting.append((data, descriptors or []))
        if len(self._waiting) == 1:
            self._flush()
            if self._waiting:
                self._changed()

    def _write(self, data: bytes) -> None:
        """At once where nothing is queued: the peer wakes up while we clear the table, not when
        the event loop comes round to what it has queued."""
        transport = self._transport
        if not transport.get_write_buffer_size() and not transport.is_closing():
            try:
                sent = os.write(transport.get_extra_info("socket").fileno(), data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()
                return
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def close(self) -> None:
        """Drops what waits."""
        self._is_open = False
        for _, descriptors in self._waiting:
            close_all(descriptors)
        self._waiting.clear()
        if self._twin is not None:
            self._twin.close()

    def _retry(self) -> None:
        if self._is_open:
            self._flush()
            if not self._waiting:
                self._changed()

    def _flush(self) -> None:
        while self._waiting:
            data, descriptors = self._waiting[0]
            if descriptors:
                sent = self._send_descriptors(data, descriptors)
                if sent == 0:
                    asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
                    return
                close_all(descriptors)
                data = data[sent:]
            self._waiting.popleft()
            if data:
                self._transport.write(data)

    def _send_descriptors(self, data: bytes, descriptors: list[int]) -> int:
        """Bytes of `data` that left with the descriptors; 0 where the socket is not free."""
        if self._transport.get_write_buffer_size():
            return 0
        try:
            if self._twin is None:
                number = self._transport.get_extra_info("socket").fileno()
                self._twin = socket.socket(fileno=os.dup(number))
                self._twin.setblocking(False)
            return socket.send_fds(self._twin, [data], descriptors)
        except BlockingIOError:
            return 0
        except OSError:
            self._transport.abort()
            return len(data)


def close_all(descriptors: list[int]) -> None:
    """Closes each."""
    for descriptor in descriptors:
        os.close(descriptor)
