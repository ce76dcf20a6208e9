"""/metrics, /livez and /readyz: a minimal, strict HTTP/1.1 server on asyncio.

::

    starting --prefault done--> ready --SIGTERM--> draining          livez: 200 in every state
    readyz 503                  200                503

It reads one request of at most 8 KiB, without a body, answers it and closes the connection.
Anything else is refused with the status that names it.  Everything has a limit: connections, bytes
of a request, time.  Read-only, and shows counts alone: no keys, no names of clients or tenants.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

REQUEST_BYTES_MAX = 8 * 1024  # as nginx and node
TEXT = "text/plain; charset=utf-8"
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What goes back."""

    status: int
    body: bytes
    content_type: str = TEXT


class HttpRefused(Exception):
    """A request that gets a status instead of an answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.reply = Reply(status, text.encode() + b"\n")


class Health:
    """Whether the daemon should get work.  Set by the daemon, read by readyz.

    Attributes:
        starting: what the start still waits for, e.g. "prefault 37%"; "" once it is done.
        draining: whether a SIGTERM has come.
    """

    def __init__(self) -> None:
        self.starting = "starting"
        self.draining = False

    @property
    def reason(self) -> str:
        """Why the daemon is not ready; "" where it is."""
        return "draining" if self.draining else self.starting

    @property
    def ready(self) -> bool:
        """Whether new work is welcome."""
        return not self.reason


class ConnectionCounts(Protocol):
    """Who counts the connections: server/metrics.py."""

    def connection_opened(self, carrier: str) -> None: ...
    def connection_closed(self, carrier: str) -> None: ...
    def connection_refused(self, carrier: str, reason: str) -> None: ...


Route = Callable[[], Reply]
Fail = Callable[[str, BaseException], None]


def routes_of(
    health: Health, exposition: Callable[[], bytes], content_type: str
) -> dict[str, Route]:
    """The three pages."""

    def readyz() -> Reply:
        reason = health.reason
        return Reply(503, f"{reason}\n".encode()) if reason else Reply(200, b"ok\n")

    return {
        "/metrics": lambda: Reply(200, exposition(), content_type),
        "/livez": lambda: Reply(200, b"ok\n"),
        "/readyz": readyz,
    }


def parse_request(head: bytes) -> tuple[str, str]:
    """(method, path without query) of a request's head, its empty line included.

    HttpRefused names what is wrong with it (RFC 9112: a Host field, no whitespace before colons).
    """
    try:
        lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError as error:
        raise HttpRefused(400, "request is not ASCII") from error
    words = lines[0].split(" ")
    if len(words) != 3 or not words[1].startswith("/"):
        raise HttpRefused(400, "request line must be: METHOD /path HTTP/1.1")
    if words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise HttpRefused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    fields: dict[str, list[str]] = {}
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if (
            not colon
            or not name
            or name != name.strip()
            or any(ord(letter) < 32 for letter in value)
        ):
            raise HttpRefused(400, "a header line must be Name: value")
        fields.setdefault(name.lower(), []).append(value.strip())
    hosts = len(fields.get("host", ()))
    if hosts > 1 or (not hosts and words[2] == "HTTP/1.1"):
        raise HttpRefused(400, f"{hosts} Host fields, must be 1")
    if "transfer-encoding" in fields or fields.get("content-length", ["0"]) != ["0"]:
        raise HttpRefused(413, "a request here has no body")
    return words[0], words[1].partition("?")[0]


def encode_reply(reply: Reply, *, with_body: bool = True, allow: str = "") -> bytes:
    """A whole answer; `with_body` is off for HEAD."""
    fields = [
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        *([f"Allow: {allow}"] if allow else []),
        "Cache-Control: no-store",
        "Connection: close",
    ]
    head = "\r\n".join(fields).encode() + b"\r\n\r\n"
    return head + reply.body if with_body else head


class HttpServer:
    """Serves `routes` by path.

    Args:
        routes: what answers each path; called on the event loop, must not block.
        deadline_seconds: for a request to arrive, and again for its answer to leave.
        connections_max: open at once; a further one gets 503.
        counts: told of every connection, under the carrier "http".
        fail: told of an error in a route, which is a defect: the request gets 500.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        deadline_seconds: float,
        connections_max: int,
        counts: ConnectionCounts,
        fail: Fail,
    ) -> None:
        self._routes, self._counts, self._fail = dict(routes), counts, fail
        self._deadline_seconds, self._connections_max = deadline_seconds, connections_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens; OSError where it cannot."""
        assert self._server is None, "started twice"
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=REQUEST_BYTES_MAX, reuse_address=True
        )

    @property
    def port(self) -> int:
        """The port listened on, also where 0 was asked for."""
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stops listening and ends the connections in progress."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._connections_max:
            self._counts.connection_refused("http", "limit")
            text = f"{len(self._tasks)} connections, limit {self._connections_max}\n"
            writer.write(encode_reply(Reply(503, text.encode())))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._counts.connection_opened("http")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._counts.connection_closed("http")
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail("http", error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader)
            if answer:
                writer.write(answer)
                async with asyncio.timeout(self._deadline_seconds):
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (ConnectionError, TimeoutError):
            self._counts.connection_refused("http", "slow_or_gone")
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # close() would wait for a peer that does not read
            else:
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """The bytes to send; none where the peer left without a request."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        except TimeoutError:
            return encode_reply(Reply(408, f"no request in {self._deadline_seconds:g}s\n".encode()))
        except asyncio.LimitOverrunError:
            return encode_reply(Reply(431, f"limit {REQUEST_BYTES_MAX} bytes\n".encode()))
        try:
            method, path = parse_request(head)
        except HttpRefused as refusal:
            return encode_reply(refusal.reply)
        return self._routed(method, path)

    def _routed(self, method: str, path: str) -> bytes:
        with_body = method != "HEAD"
        route = self._routes.get(path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            return encode_reply(Reply(404, f"only {known}\n".encode()), with_body=with_body)
        if method not in ("GET", "HEAD"):
            return encode_reply(Reply(405, b"only GET and HEAD\n"), allow="GET, HEAD")
        try:
            return encode_reply(route(), with_body=with_body)
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._fail(f"http {path}", error)
            return encode_reply(Reply(500, b"internal error\n"), with_body=with_body)
