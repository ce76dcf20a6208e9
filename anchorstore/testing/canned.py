"""A daemon of answers prepared in advance, behind a real Unix socket.

For tests of what talks to a daemon and cannot be told apart by it: commands, reconnects,
deadlines.  Every request is kept; an answer may be a message, an error, or a function of the
request.  A method without an answer is never answered, as a daemon that hangs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from anchorstore.errors import AnchorStoreError, code_of
from anchorstore.transport import frames
from anchorstore.wire.v1 import store_pb2

Answer = Message | AnchorStoreError | Callable[[Any], Message]


class CannedDaemon:
    """Listens at `path` from construction on; a context manager.

    Attributes:
        requests: every (method, request) so far, in order.
    """

    def __init__(self, path: Path, answers: Mapping[frames.Method, Answer]) -> None:
        self.requests: list[tuple[frames.Method, Any]] = []
        self._answers = dict(answers)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._streams: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="canned-accept")]
        self._threads[0].start()

    def close(self) -> None:
        """Hangs up on everybody."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for stream in self._streams:
            stream.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for stream in (self._listener, *self._streams):
            stream.close()

    def __enter__(self) -> CannedDaemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._streams.append(stream)
            thread = threading.Thread(target=self._serve, args=(stream,), name="canned-serve")
            self._threads.append(thread)
            thread.start()

    def _serve(self, stream: socket.socket) -> None:
        parser = frames.Parser()
        while True:
            try:
                data = stream.recv(1 << 16)
                if not data:
                    return
                for frame in parser.feed(data):
                    stream.sendall(self._reply(frame))
            except (ConnectionError, BrokenPipeError):  # the caller is gone
                return

    def _reply(self, frame: frames.Frame) -> bytes:
        method, call_id = frame.header.method, frame.header.call_id
        request = frames.parse_body(frames.MESSAGES[method][0], frame.body)
        self.requests.append((method, request))
        answer = self._answers.get(method)
        if answer is None:
            return b""
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, AnchorStoreError):
            refusal = store_pb2.ErrorReply(code=code_of(answer), message=str(answer))
            body = refusal.SerializeToString()
            return frames.encode(frames.Kind.ERROR, method, call_id, body)
        return frames.encode(frames.Kind.REPLY, method, call_id, answer.SerializeToString())
