"""Requests and replies of one connection, without the connection: what both drivers share.

::

    start(call) -> bytes to send          receiver.buffer() <- bytes that came
                                          poll() -> the call's reply frame, once it is whole
    leave(): its caller waits no longer; a reply that comes late goes to call.on_late, not to the
             next caller

One call at a time; the daemon answers each under its call id.
"""

from __future__ import annotations

from typing import Any

from anchorstore.client.effects import Call
from anchorstore.errors import ConnectFailed, InvalidRequest, Refused, from_code
from anchorstore.transport import frames
from anchorstore.transport.frames import MESSAGES, Frame, Kind
from anchorstore.transport.stream import Receiver
from anchorstore.wire.v1 import store_pb2 as store

CALL_ID_MAX = 2**32 - 1
_REQUEST, _ERROR = Kind.REQUEST, Kind.ERROR  # looked up once: an enum's attributes are slow
_pack = frames.HEADER.pack


class Exchange:
    """Numbers calls, matches replies."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self._call: Call | None = None
        self._call_id = 0
        self._left: dict[int, Call] = {}

    def start(self, call: Call) -> bytes:
        """Header and body of `call`; its payload is sent after them."""
        assert self._call is None, "one call at a time"
        self._call_id = self._call_id % CALL_ID_MAX + 1
        self._call = call
        self.receiver.expect(self._call_id, call.into)
        body_bytes, payload_bytes = sum(map(len, call.body)), sum(map(len, call.payload))
        header = _pack(
            frames.MAGIC,
            frames.VERSION,
            _REQUEST,
            call.method,
            0,
            self._call_id,
            body_bytes,
            payload_bytes,
        )
        return b"".join((header, *call.body))

    def poll(self) -> Frame | None:
        """The reply to the call in progress; None where more bytes are needed.

        ConnectFailed: the stream is lost.  Refused: the daemon takes no calls on this connection.
        """
        while True:
            try:
                frame = self.receiver.next()
            except InvalidRequest as error:
                raise ConnectFailed(f"the daemon's stream is broken: {error}") from error
            if frame is None:
                return None
            header, call = frame.header, self._call
            if call is not None and header.call_id == self._call_id:
                if header.method is not call.method or header.kind is _REQUEST:
                    raise ConnectFailed(f"{header.method.name} does not answer {call.method.name}")
                self._end()
                return frame
            if header.kind is _REQUEST:
                raise ConnectFailed("the daemon sent a request")
            if header.call_id == 0 and header.kind is _ERROR:
                raise _cut_off(frame)
            self._late(frame)

    def leave(self) -> bool:
        """Nobody waits for the call in progress any more; False where the stream is lost with it.

        It is where the reply's payload is on its way into the caller's memory.
        """
        call = self._call
        if call is not None:
            self._left[self._call_id] = call
            self._end()
        return not self.receiver.writes_into_destination

    def _end(self) -> None:
        self._call = None
        self.receiver.expect(0, None)

    def _late(self, frame: Frame) -> None:
        call = self._left.pop(frame.header.call_id, None)
        if call is None or call.on_late is None:
            return
        if frame.header.kind is _ERROR:
            call.on_late(None)
        else:
            call.on_late(decode(call, frame))


def _cut_off(frame: Frame) -> Exception:
    """The daemon's last word on a connection."""
    reply = store.ErrorReply.FromString(frame.body)
    error = from_code(reply.code, reply.message, reply.retry_after_ms)
    if isinstance(error, Refused):
        return error
    return ConnectFailed(f"the daemon hung up: {reply.code}: {reply.message}")


def decode(call: Call, frame: Frame) -> Any:
    """The response message in `frame`; raises the error that the daemon answered with."""
    if frame.header.kind is _ERROR:
        reply = store.ErrorReply.FromString(frame.body)
        raise from_code(reply.code, reply.message, reply.retry_after_ms)
    return frames.parse_body(MESSAGES[call.method][1], frame.body)
