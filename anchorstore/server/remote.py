"""Framed TCP: engines on other hosts, with the blocks' bytes beside the messages.

::

    accept thread --> a thread a connection, blocking socket
        Write:  header, body, then recv_into the session's staging memory: no copy in between
        Read:   leased_columns on the loop, then the pool's slots straight into the socket
        other:  the whole frame to the event loop, its answer back

Threads, because a blocking recv_into moves 3-5 GB/s where asyncio's streams move one; they touch
the core only through the event loop.  Every wait has a limit: to attach, to finish a frame, to
read an answer.  A peer that just went silent is found by TCP keep-alive.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from anchorstore.errors import AnchorStoreError, ConfigError, InvalidRequest, code_of
from anchorstore.server.dispatch import Dispatcher, error_frame
from anchorstore.server.limits import ConnectionBudget, Place, TcpLimits
from anchorstore.server.peer import Carrier, Peer
from anchorstore.server.service import Service
from anchorstore.tiers.dram import Staging
from anchorstore.transport.frames import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Header,
    Kind,
    Method,
    encode,
    parse_body,
    parse_header,
)
from anchorstore.transport.reasons import reason_of
from anchorstore.wire.v1 import store_pb2 as pb

T = TypeVar("T")
BACKLOG = 128
SEND_BYTES = 4 * 2**20  # one timeout covers this much
JOIN_BYTES = 64 * 1024  # smaller blocks are gathered before they are sent
BODY_STEP_BYTES = 64 * 1024  # a body takes memory as it comes, not as its header promises
KEEPALIVE_PROBES = 3
STOP_SECONDS = 2.0


class LoopCaller:
    """Runs work on the event loop for a thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, work: Callable[[Callable[[T], None]], T | None]) -> T:
        """`work(later)` on the loop: its result, or what it gives to `later` where it is None."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result = work(future.set_result)
            except Exception as error:  # noqa: BLE001 - handed to the thread, whatever it is
                future.set_exception(error)
            else:
                if result is not None:
                    future.set_result(result)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError as error:
            raise ConnectionAbortedError("the daemon has stopped") from error
        return future.result()


class RemoteListener:
    """Owns the TCP socket and the threads of its connections."""

    def __init__(
        self,
        host: str,
        port: int,
        dispatcher: Dispatcher,
        tls: ssl.SSLContext | None,
        budget: ConnectionBudget,
        limits: TcpLimits,
    ) -> None:
        self.host, self.port = host, port
        self.dispatcher, self.tls, self.budget, self.limits = dispatcher, tls, budget, limits
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._connections: dict[RemoteConnection, threading.Thread] = {}
        self._stopped = threading.Event()
        self._accepting: threading.Thread | None = None
        self.caller: LoopCaller | None = None

    def bind(self) -> None:
        """Takes the port; ConfigError where it is taken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"listen.tcp: cannot bind {self.host}:{self.port} (--tcp): {reason_of(error)}"
            ) from error
        self.port = listener.getsockname()[1]
        self._socket = listener

    async def start(self) -> None:
        """Begins to accept."""
        self.caller = LoopCaller(asyncio.get_running_loop())
        self._accepting = threading.Thread(target=self._accept, name="tcp-accept", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        assert self._socket is not None, "bind() comes first"
        while not self._stopped.is_set():
            try:
                sock, address = self._socket.accept()
            except OSError:
                if self._stopped.is_set():
                    return
                time.sleep(0.05)  # out of descriptors: connections in progress will free some
                continue
            place = self.budget.take()
            if place is None:
                self.dispatcher.observer.connection_refused("tcp", "limit")
                sock.close()
                continue
            connection = RemoteConnection(self, sock, f"{address[0]}:{address[1]}", place)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._connections[connection] = thread
            try:
                thread.start()
            except RuntimeError:  # the host gives no more threads: one peer less
                self._forget(connection)
                self.dispatcher.observer.connection_refused("tcp", "limit")
                sock.close()
            del connection, thread  # or the last peer's memory would stay until the next one comes

    def _serve(self, connection: RemoteConnection) -> None:
        self.dispatcher.observer.connection_opened("tcp")
        try:
            connection.serve()
        finally:
            self._forget(connection)
            self.dispatcher.observer.connection_closed("tcp")

    def _forget(self, connection: RemoteConnection) -> None:
        with self._lock:
            self._connections.pop(connection, None)
        connection.place.give()

    @property
    def connections_open(self) -> int:
        """Connections that have a thread."""
        with self._lock:
            return len(self._connections)

    async def stop(self) -> None:
        """Closes the socket and every connection; waits for their threads."""
        self._stopped.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
            self._socket.close()
        deadline = time.monotonic() + STOP_SECONDS
        if self._accepting is not None:  # after it, every connection there will be has its thread
            await asyncio.to_thread(self._accepting.join, STOP_SECONDS)
        with self._lock:
            threads = list(self._connections.items())
        for connection, _ in threads:
            connection.close()
        for _, thread in threads:
            left = max(0.0, deadline - time.monotonic())
            await asyncio.to_thread(thread.join, left)  # it needs the loop to say goodbye


class RemoteConnection:
    """One connection; everything but close() runs in its own thread."""

    def __init__(
        self, listener: RemoteListener, sock: socket.socket, name: str, place: Place
    ) -> None:
        self._listener, self._socket, self.place = listener, sock, place
        self._dispatcher, self._limits = listener.dispatcher, listener.limits
        assert listener.caller is not None, "start() comes first"
        self._caller = listener.caller
        self._peer = Peer(Carrier.TCP, name, place=place)
        self._staging: dict[bytes, Staging] = {}
        self._began = time.monotonic()

    def close(self) -> None:
        """Wakes the thread; it ends by itself."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Answers until the peer leaves, breaks the rules, or is too slow."""
        observer = self._dispatcher.observer
        try:
            self._set_up()
            while self._serve_one():
                pass
        except TimeoutError:
            observer.connection_refused("tcp", "slow")
        except AnchorStoreError as error:
            observer.connection_refused("tcp", "protocol")
            self._dispatcher.log.warning("cut off", peer=self._peer.name, error=str(error))
            with contextlib.suppress(OSError):
                self._send(error_frame(error, Method.ATTACH, 0))
        except (OSError, EOFError):
            pass  # the peer is gone, which is its right
        finally:
            with contextlib.suppress(AnchorStoreError, ConnectionAbortedError):
                self._on_loop("disconnect", self._say_goodbye)
            with contextlib.suppress(OSError):
                self._socket.close()

    def _say_goodbye(self) -> bool:
        self._service.disconnected(self._peer)
        return True

    @property
    def _service(self) -> Service:
        return self._dispatcher.service

    def _set_up(self) -> None:
        sock, limits = self._socket, self._limits
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, round(limits.keepalive_seconds))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        if self._listener.tls is not None:
            sock.settimeout(limits.handshake_seconds)
            self._socket = self._listener.tls.wrap_socket(sock, server_side=True)

    # ---- bytes in ----

    def _receive(self, view: memoryview, deadline: float | None) -> None:
        """Fills `view`; TimeoutError at the deadline, EOFError where the peer has left."""
        while view:
            if deadline is None:
                self._socket.settimeout(None)
            else:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            size = self._socket.recv_into(view)
            if not size:
                raise EOFError
            view = view[size:]

    def _serve_one(self) -> bool:
        head = memoryview(bytearray(HEADER_BYTES))
        idle = None
        if not self._peer.sessions and self._peer.identity is None:
            idle = self._began + self._limits.handshake_seconds
        try:
            self._receive(head[:1], idle)
        except EOFError:
            return False
        deadline = time.monotonic() + self._limits.frame_seconds
        self._receive(head[1:], deadline)
        header = parse_header(head, payload_bytes_max=PAYLOAD_BYTES_MAX)
        if header.kind is not Kind.REQUEST:
            raise InvalidRequest(f"a client sends requests, not {header.kind.name}")
        body = self._receive_body(header.body_bytes, deadline)
        if header.method is Method.WRITE:
            self._write(header, body, deadline)
        elif header.method is Method.READ:
            self._read(header, body)
        else:
            self._call(header, body)
        return True

    def _receive_body(self, size: int, deadline: float) -> bytes:
        body = bytearray()
        while len(body) < size:
            part = bytearray(min(size - len(body), BODY_STEP_BYTES))
            self._receive(memoryview(part), deadline)
            body += part
        return bytes(body)

    # ---- calls ----

    def _on_loop(self, name: str, work: Callable[[], T]) -> T:
        def run(_later: Callable[[T], None]) -> T:
            return self._dispatcher.guard(name, work)

        return self._caller.call(run)

    def _call(self, header: Header, body: bytes) -> None:
        answer = self._caller.call(
            lambda later: self._dispatcher.answer(
                header.method, header.call_id, body, self._peer, later
            )
        )
        self._send(answer)

    def _refuse(self, header: Header, error: AnchorStoreError) -> None:
        self._dispatcher.observer.call_ended(header.method.name.lower(), code_of(error), 0.0)
        self._send(error_frame(error, header.method, header.call_id))

    def _write(self, header: Header, body: bytes, deadline: float) -> None:
        """The payload goes where it belongs, or nowhere where the request is wrong."""
        started = time.monotonic()
        try:
            request = parse_body(pb.WriteRequest, body)
            target = self._target(request, header.payload_bytes)
        except AnchorStoreError as error:
            self._discard(header.payload_bytes, deadline)
            self._refuse(header, error)
            return
        self._receive(target, deadline)
        reply = pb.WriteResponse().SerializeToString()
        self._dispatcher.observer.call_ended("write", "ok", time.monotonic() - started)
        self._send(encode(Kind.REPLY, header.method, header.call_id, reply))

    def _target(self, request: pb.WriteRequest, size: int) -> memoryview:
        """The part of the session's staging memory that the payload fills."""
        staging = self._staging.get(request.session_id)
        if staging is None or staging.is_closed:
            self._staging = {key: one for key, one in self._staging.items() if not one.is_closed}
            staging = self._on_loop("write", lambda: self._service.staging_of(request, self._peer))
            self._staging[request.session_id] = staging
        start, stop = request.staging_offset, request.staging_offset + size
        if stop > staging.size_bytes:
            raise InvalidRequest(
                f"write: bytes {start} to {stop} lie outside the {staging.size_bytes} bytes of "
                "staging memory"
            )
        return memoryview(staging.memory)[start:stop]

    def _discard(self, size: int, deadline: float) -> None:
        scratch = memoryview(bytearray(min(size, SEND_BYTES)))
        while size:
            part = min(size, len(scratch))
            self._receive(scratch[:part], deadline)
            size -= part

    def _read(self, header: Header, body: bytes) -> None:
        started = time.monotonic()
        try:
            request = parse_body(pb.ReadRequest, body)
            response, blocks = self._on_loop(
                "read", lambda: self._service.read(request, self._peer)
            )
        except AnchorStoreError as error:
            self._refuse(header, error)
            return
        size = response.block_bytes * len(blocks)
        head = encode(Kind.REPLY, header.method, header.call_id, response.SerializeToString(), size)
        if response.block_bytes < JOIN_BYTES:
            self._send_gathered(head, blocks)
        else:
            self._send(head)
            for block in blocks:
                self._send(memoryview(block))
        self._dispatcher.observer.call_ended("read", "ok", time.monotonic() - started)

    # ---- bytes out ----

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all; TimeoutError where the peer takes nothing for `idle_write_seconds`."""
        view = memoryview(data)
        self._socket.settimeout(self._limits.idle_write_seconds)
        while view:
            view = view[self._socket.send(view[:SEND_BYTES]) :]

    def _send_gathered(self, head: bytes, blocks: list[npt.NDArray[np.uint8]]) -> None:
        held = bytearray(head)
        for block in blocks:
            held += block.data
            if len(held) >= SEND_BYTES // 4:
                self._send(held)
                held = bytearray()
        if held:
            self._send(held)
