"""A command's line to the daemon: frames over a blocking socket.

::

    --socket PATH | --address unix:///path | --address tcp://host:port [--tls-ca FILE]
      encode(REQUEST, method) -->            <-- header, body (REPLY or ERROR)

One call at a time, each under a deadline: a daemon that hangs is found, not waited for.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from google.protobuf.message import Message

from anchorstore.cli.options import non_empty
from anchorstore.config import SETTINGS
from anchorstore.config.render import environment_name
from anchorstore.errors import (
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    Unauthenticated,
    UsageError,
    from_code,
)
from anchorstore.transport import frames
from anchorstore.transport.address import TcpAddress, parse_address
from anchorstore.transport.reasons import reason_of
from anchorstore.units import format_seconds, parse_seconds
from anchorstore.wire.v1 import store_pb2

Reply = TypeVar("Reply", bound=Message)
_SOCKET = next(item for item in SETTINGS if item.key == "listen.socket")
TOKEN_BYTES_MAX = 4096


def add_options(parser: argparse.ArgumentParser, deadline: str = "10s") -> None:
    """Adds the options that say where the daemon is."""
    where = parser.add_mutually_exclusive_group()
    variable = environment_name(_SOCKET)
    where.add_argument(
        "--socket",
        type=non_empty,
        metavar="PATH",
        help=f"the daemon's Unix socket (default: ${variable}, else {_SOCKET.default})",
    )
    where.add_argument(
        "--address",
        type=non_empty,
        metavar="URL",
        help="unix:///path or tcp://host:port instead of --socket",
    )
    for option, text in (
        ("--token-file", "file with an operator's bearer token"),
        ("--tls-ca", "PEM file that the daemon's certificate is checked against"),
        ("--tls-certificate", "PEM file: our own certificate"),
        ("--tls-key", "PEM file: our certificate's key"),
    ):
        parser.add_argument(option, type=non_empty, metavar="FILE", help=text)
    parser.add_argument(
        "--deadline",
        type=_duration,
        default=deadline,
        metavar="TIME",
        help=f"longest wait for an answer (default {deadline})",
    )


def _duration(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return seconds


class Connection:
    """An open line to a daemon; a context manager.

    call() raises ConnectFailed or DeadlineExceeded for a daemon that does not answer, and whatever
    error the daemon answers with.
    """

    def __init__(
        self, stream: socket.socket, name: str, token: str, deadline_seconds: float
    ) -> None:
        self._stream, self._name, self._token = stream, name, token
        self._deadline_seconds, self._call_id = deadline_seconds, 0

    def call(self, method: frames.Method, request: Message, reply: type[Reply]) -> Reply:
        """Sends one request, waits for its answer."""
        assert (type(request), reply) == frames.MESSAGES[method], f"{method} takes other messages"
        if self._token and "token" in request.DESCRIPTOR.fields_by_name:
            request.token = self._token  # type: ignore[attr-defined]
        self._call_id += 1
        until = time.monotonic() + self._deadline_seconds
        body = request.SerializeToString()
        try:
            self._stream.settimeout(self._deadline_seconds)
            self._stream.sendall(frames.encode(frames.Kind.REQUEST, method, self._call_id, body))
            header = self._header(self._receive(frames.HEADER_BYTES, until))
            answer = self._receive(header.body_bytes, until)
        except ConnectFailed:  # an OSError as well, and said in full
            raise
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{self._name}: no answer within {format_seconds(self._deadline_seconds)}"
            ) from error
        except OSError as error:
            raise ConnectFailed(f"{self._name}: {reason_of(error)}") from error
        if (header.method, header.call_id) != (method, self._call_id):
            raise InvalidRequest(f"{self._name}: answer to {header.method}, call {header.call_id}")
        if header.kind is frames.Kind.ERROR:
            refusal = frames.parse_body(store_pb2.ErrorReply, answer)
            assert isinstance(refusal, store_pb2.ErrorReply)
            message = f"{refusal.message}{self._hint(refusal.code)}"
            raise from_code(refusal.code, message, refusal.retry_after_ms)
        found = frames.parse_body(reply, answer)
        assert isinstance(found, reply)
        return found

    def _header(self, data: bytes) -> frames.Header:
        if not data.startswith(frames.MAGIC):
            raise ConnectFailed(
                f"{self._name} does not speak anchorstore: name listen.socket or listen.tcp, "
                "not listen.http or listen.grpc"
            )
        return frames.parse_header(data)

    def _hint(self, code: str) -> str:
        """What mends a refusal of the caller, after the daemon's own words."""
        if code not in (Forbidden.__name__, Unauthenticated.__name__):
            return ""
        if not self._token:
            return "; --token-file FILE shows an operator's token"
        return "; the token is that of --token-file"

    def _receive(self, size: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._stream.settimeout(left)
            part = self._stream.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("the daemon hung up")
            data += part
        return bytes(data)

    def close(self) -> None:
        """Hangs up."""
        self._stream.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(args: argparse.Namespace) -> Connection:
    """Opens the line that the options of add_options() describe."""
    token = _token(args.token_file) if args.token_file else ""
    path = args.socket or os.environ.get(environment_name(_SOCKET)) or str(_SOCKET.default)
    if args.address:
        try:
            address = parse_address(args.address)
        except InvalidRequest as error:
            raise UsageError(f"--address: {error}") from error
        if isinstance(address, TcpAddress):
            stream = _dial_tcp(address.host, address.port, args)
            return Connection(stream, args.address, token, args.deadline)
        path = address.path
    elif "://" in path:
        raise UsageError(f"--socket {path!r} is an address, must be a path; --address takes it")
    return Connection(_dial_unix(path, args.deadline), path, token, args.deadline)


def _dial_unix(path: str, deadline_seconds: float) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(deadline_seconds)
    try:
        stream.connect(path)
    except OSError as error:
        stream.close()
        raise ConnectFailed(f"no daemon at {path}: {reason_of(error)}") from error
    return stream


def _dial_tcp(host: str, port: int, args: argparse.Namespace) -> socket.socket:
    try:
        stream = socket.create_connection((host, port), timeout=args.deadline)
    except OSError as error:
        name = f"tcp://{host}:{port}"
        raise ConnectFailed(f"no daemon at {name}: {reason_of(error)}") from error
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _with_tls(stream, host, args) if args.tls_ca else stream


def _with_tls(stream: socket.socket, host: str, args: argparse.Namespace) -> socket.socket:
    try:
        context: Any = ssl.create_default_context(cafile=args.tls_ca)
        if args.tls_certificate:
            context.load_cert_chain(args.tls_certificate, args.tls_key)
    except (OSError, ssl.SSLError) as error:
        stream.close()
        raise ConfigError(f"--tls-ca {args.tls_ca}, --tls-certificate: {error}") from error
    try:
        wrapped: socket.socket = context.wrap_socket(stream, server_hostname=host)
    except (OSError, ssl.SSLError) as error:
        stream.close()
        raise ConnectFailed(f"TLS with {host}: {error}") from error
    return wrapped


def _token(path: str) -> str:
    """The one token in a file; the file may also have "domain token" lines: the first one."""
    try:
        text = Path(path).read_text(encoding="utf-8")[:TOKEN_BYTES_MAX]
    except OSError as error:
        raise ConfigError(f"--token-file {path}: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file {path}: is not UTF-8 text") from error
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    if not lines:
        raise ConfigError(f"--token-file {path}: holds no token")
    return lines[0][-1]
