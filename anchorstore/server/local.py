"""The Unix socket: engines and operators of this host.

::

    data_received -> frames.Parser -> Dispatcher.answer -> transport.write
                                      |  no await: a lookup is answered within one wake-up
                                      +- Seal: answered when its copies are done
    Map: the answer leaves with its descriptors (outbox.py)

The kernel names the peer's user (SO_PEERCRED); its domain follows from that.  Whatever breaks the
framing gets one refusal and is cut off.  A peer that sends faster than it is served, or does not
read its answers, is not read from until it has caught up.  However many calls a peer sends at
once, the others' turn comes after a few of them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import pathlib
import socket
import stat
import struct
from typing import Any

from anchorstore.errors import AnchorStoreError, CapacityFull, ConfigError, InvalidRequest
from anchorstore.server.dispatch import Dispatcher, error_frame, is_refusal
from anchorstore.server.limits import ConnectionBudget
from anchorstore.server.outbox import Outbox, close_all
from anchorstore.server.peer import Carrier, Peer
from anchorstore.server.socket_lock import give_lock, take_lock
from anchorstore.transport.frames import Frame, Kind, Method, Parser, encode, parse_body
from anchorstore.transport.reasons import reason_of
from anchorstore.wire.v1 import store_pb2 as pb

PATH_BYTES_MAX = 107  # sun_path without its end
BACKLOG = 128
WRITE_BUFFER_BYTES_HIGH = 4 * 2**20
CALLS_PER_TURN = 16
_CREDENTIALS = struct.Struct("3i")


class LocalListener:
    """Owns the socket file and the connections.

    Args:
        path: where the socket lies; ConfigError where it is too long or somebody listens there.
        mode: its permission bits.
        budget: connections that it does not cover are closed at once.
        calls_max: calls of one connection in progress at once.
        handshake_seconds: a connection that has not made a valid call by then is closed.
        frame_seconds: from a frame's first bytes to its last.
        idle_write_seconds: a peer that reads none of its answers for this long is cut off.
    """

    def __init__(
        self,
        path: str,
        mode: int,
        dispatcher: Dispatcher,
        budget: ConnectionBudget,
        calls_max: int,
        handshake_seconds: float,
        frame_seconds: float,
        idle_write_seconds: float,
    ) -> None:
        self.path, self._mode, self.dispatcher = pathlib.Path(path), mode, dispatcher
        self.budget, self.calls_max = budget, calls_max
        self.handshake_seconds, self.frame_seconds = handshake_seconds, frame_seconds
        self.idle_write_seconds = idle_write_seconds
        self.connections: set[LocalConnection] = set()
        self._server: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._inode: int | None = None
        self._lock: int | None = None

    def bind(self) -> None:
        """Takes the path; ConfigError where it cannot be had."""
        size = len(os.fsencode(self.path))
        if size > PATH_BYTES_MAX:
            raise ConfigError(
                f"listen.socket: {self.path} has {size} bytes, limit {PATH_BYTES_MAX}"
            )
        self._lock = take_lock(self.path)
        _remove_stale(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            before = os.umask(0o777 & ~self._mode)
            try:
                listener.bind(str(self.path))
            finally:
                os.umask(before)
            os.chmod(self.path, self._mode)
            self._inode = os.stat(self.path).st_ino
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"listen.socket: cannot bind {self.path} (--socket): {reason_of(error)}"
            ) from error
        listener.setblocking(False)
        self._socket = listener

    async def start(self) -> None:
        """Begins to accept."""
        assert self._socket is not None, "bind() comes first"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: LocalConnection(self), sock=self._socket, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Closes the socket and every connection; removes the file where it is still ours."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in list(self.connections):
            connection.close()
        with contextlib.suppress(FileNotFoundError):
            if self._inode is not None and os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        if self._lock is not None:
            give_lock(self.path, self._lock)
            self._lock = None


def _remove_stale(path: pathlib.Path) -> None:
    """Removes a socket file that nobody listens on; ConfigError for anything else there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"listen.socket: cannot look at {path}: {reason_of(error)}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"listen.socket: {path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:  # a full backlog is somebody, too
            raise ConfigError(f"listen.socket: {path} is in use: {reason_of(error)}") from error
    raise ConfigError(f"listen.socket: another daemon listens on {path}")


class LocalConnection(asyncio.Protocol):
    """One connection of one process."""

    def __init__(self, listener: LocalListener) -> None:
        self._listener, self._dispatcher = listener, listener.dispatcher
        self._parser = Parser()
        self._peer = Peer(Carrier.UNIX, "unix")
        self._waiting: collections.deque[Frame] = collections.deque()
        self._calls = 0
        self._has_called = False
        self._is_reading = True
        self._is_paused = False
        self._is_open = False
        self._turn: asyncio.Handle | None = None
        self._transport: Any = None  # uvloop's transports share no base with asyncio's
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._outbox = Outbox(transport, self._held_back_or_not)
        listener, observer = self._listener, self._dispatcher.observer
        self._peer.place = listener.budget.take()
        if self._peer.place is None:
            observer.connection_refused("unix", "limit")
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(raw)
        self._peer.name = f"unix:{process}"
        try:
            self._peer.become(self._dispatcher.service.auth.of_user(user))
        except AnchorStoreError as error:
            self._peer.place.give()
            is_full = isinstance(error, CapacityFull)
            observer.connection_refused("unix", "limit" if is_full else "unauthenticated")
            self._transport.write(error_frame(error, Method.ATTACH, 0))
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._is_open = True
        listener.connections.add(self)
        observer.connection_opened("unix")
        self._arm("handshake", listener.handshake_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for reason in list(self._timers):
            self._disarm(reason)
        self._outbox.close()
        self._waiting.clear()
        self._listener.connections.discard(self)
        assert self._peer.place is not None, "an open connection has a place"
        self._peer.place.give()
        self._dispatcher.observer.connection_closed("unix")
        with contextlib.suppress(AnchorStoreError):  # guard() has told the supervisor
            service = self._dispatcher.service
            self._dispatcher.guard("disconnect", service.disconnected, self._peer)

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            frames = self._parser.feed(data)
        except InvalidRequest as error:
            self._cut_off(error)
            return
        if frames or not self._parser.held_bytes:
            self._disarm("frame")
        if self._parser.held_bytes:
            self._arm("frame", self._listener.frame_seconds)
        self._waiting.extend(frames)
        self._serve()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._held_back_or_not()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._held_back_or_not()

    def _held_back_or_not(self) -> None:
        """The peer has to read before it is served on, or has caught up."""
        if not self.is_held_back:
            self._disarm("slow")
            self._serve()
            return
        self._arm("slow", self._listener.idle_write_seconds)
        if not self._transport.is_closing():
            self._read_if(wanted=False)

    # ---- calls ----

    def _serve(self) -> None:
        """Answers what waits, as far as the limits allow; stops reading beyond them."""
        left = CALLS_PER_TURN
        while self._waiting and self._may_go_on():
            if not left:
                self._serve_later()
                break
            left -= 1
            frame = self._waiting.popleft()
            header = frame.header
            if header.kind is not Kind.REQUEST:
                self._cut_off(InvalidRequest(f"a client sends requests, not {header.kind.name}"))
                return
            if header.method is Method.MAP:
                self._map(frame)
                continue
            answer = self._dispatcher.answer(
                header.method, header.call_id, frame.body, self._peer, self._answer_later
            )
            if answer is None:
                self._calls += 1
            else:
                self._send(answer)
            if not self._has_called and (self._peer.sessions or not is_refusal(answer)):
                self._has_called = True
                self._disarm("handshake")
        if self._is_open and not self._transport.is_closing():
            self._read_if(self._may_go_on() and not self._waiting)

    def _serve_later(self) -> None:
        """Goes on in the event loop's next round, after everybody else."""

        def turn() -> None:
            self._turn = None
            self._serve()

        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(turn)

    def _read_if(self, wanted: bool) -> None:
        if wanted and not self._is_reading:
            self._transport.resume_reading()
        elif self._is_reading and not wanted:
            self._transport.pause_reading()
        self._is_reading = wanted

    def _may_go_on(self) -> bool:
        return self._is_open and not self.is_held_back and self._calls < self._listener.calls_max

    def _answer_later(self, answer: bytes) -> None:
        self._calls -= 1
        if self._is_open:
            self._send(answer)
            self._serve()

    def _map(self, frame: Frame) -> None:
        method, call_id = frame.header.method, frame.header.call_id
        started = self._dispatcher.clock.now()
        outcome = "ok"
        try:
            request = parse_body(pb.MapRequest, frame.body)
            service = self._dispatcher.service
            response, lent = self._dispatcher.guard("map", service.map, request, self._peer)
            descriptors = _duplicates(lent)
        except AnchorStoreError as error:
            outcome = type(error).__name__
            self._send(error_frame(error, method, call_id))
        else:
            answer = encode(Kind.REPLY, method, call_id, response.SerializeToString())
            self._send(answer, descriptors)
        seconds = self._dispatcher.clock.now() - started
        self._dispatcher.observer.call_ended("map", outcome, seconds)

    # ---- bytes out ----

    def _send(self, data: bytes, descriptors: list[int] | None = None) -> None:
        self._outbox.send(data, descriptors)

    @property
    def is_held_back(self) -> bool:
        """Whether the peer must read its answers before it is read from again."""
        return self._is_paused or self._outbox.waits

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the peer has not taken."""
        return int(self._transport.get_write_buffer_size())

    # ---- the end ----

    def _cut_off(self, error: AnchorStoreError) -> None:
        """One refusal, then the end: there is no way to find the next frame."""
        self._dispatcher.observer.connection_refused("unix", "protocol")
        self._dispatcher.log.warning("cut off", peer=self._peer.name, error=str(error))
        self._waiting.clear()
        self._send(error_frame(error, Method.ATTACH, 0))
        self._transport.close()

    def _arm(self, reason: str, seconds: float) -> None:
        """Starts a timer, where it does not run yet; at its end so does the connection."""

        def late() -> None:
            del self._timers[reason]
            if reason == "frame" and not self._is_reading:
                self._arm(reason, seconds)  # it is we who keep the rest of the frame waiting
                return
            self._dispatcher.observer.connection_refused("unix", reason)
            self.close()

        if reason not in self._timers:
            self._timers[reason] = asyncio.get_running_loop().call_later(seconds, late)

    def _disarm(self, reason: str) -> None:
        timer = self._timers.pop(reason, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Ends the connection now."""
        self._transport.abort()


def _duplicates(descriptors: list[int]) -> list[int]:
    """Our own, because a segment may get new memory while the answer waits to be sent."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))
    except OSError as error:
        close_all(made)
        raise CapacityFull(f"map: no descriptor is left: {error.strerror}") from error
    return made
