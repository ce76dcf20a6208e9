"""Goal: the HTTP server answers, and every limit of it holds.
Method: a real server on a loopback port, raw bytes from the other end; short deadlines stand in
for slow peers and no test looks at a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from anchorstore.server.http import REQUEST_BYTES_MAX, HttpServer, Reply
from anchorstore.server.metrics import Metrics

GET = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """A running server and what it reported."""

    def __init__(self, deadline_seconds: float, connections_max: int) -> None:
        self.failures: list[tuple[str, BaseException]] = []
        self.registry = CollectorRegistry()
        self.server = HttpServer(
            {"/page": lambda: Reply(200, b"page\n"), "/broken": self._broken},
            deadline_seconds=deadline_seconds,
            connections_max=connections_max,
            counts=Metrics(self.registry),
            fail=lambda name, error: self.failures.append((name, error)),
        )

    @staticmethod
    def _broken() -> Reply:
        raise AssertionError("invariant")

    async def ask(self, request: bytes) -> bytes:
        """Sends bytes, reads until the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer

    async def until_open(self, count: int) -> None:
        """Returns once `count` connections are open."""
        while self.sample("anchorstore_connections", carrier="http") != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@contextlib.asynccontextmanager
async def site(deadline_seconds: float = 30, connections_max: int = 8) -> AsyncIterator[Site]:
    running = Site(deadline_seconds, connections_max)
    await running.server.start("127.0.0.1", 0)
    try:
        yield running
    finally:
        await running.server.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "part"),
    [
        (GET, 200, b"\r\n\r\npage\n"),
        (GET.replace(b"GET", b"HEAD"), 200, b"Content-Length: 5"),
        (GET.replace(b"page", b"other"), 404, b"only /broken, /page"),
        (GET.replace(b"GET", b"DELETE"), 405, b"Allow: GET, HEAD"),
        (b"nonsense\r\n\r\n", 400, b"request line"),
        (b"\x16\x03\x01\xff\r\n\r\n", 400, b"not ASCII"),
        (b"GET /" + b"x" * REQUEST_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 431, b"limit 8192 bytes"),
        (b"x" * (2 * REQUEST_BYTES_MAX), 431, b"limit 8192 bytes"),
    ],
)
async def test_server_answers_each_request_with_its_status(
    request_bytes: bytes, status: int, part: bytes
) -> None:
    async with site() as running:
        answer = await running.ask(request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        assert part in answer
        assert await running.ask(GET), "the server lives on"
        assert not running.failures


async def test_server_with_a_silent_peer_hangs_up_with_408() -> None:
    async with site(deadline_seconds=0.05) as running:
        assert (await running.ask(b"GET /page HTT")).startswith(b"HTTP/1.1 408 ")


async def test_server_at_its_connection_limit_answers_503_until_one_leaves() -> None:
    async with site(connections_max=1) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(GET[:-2])
        await writer.drain()
        await running.until_open(1)
        refused = await running.ask(GET)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"1 connections, limit 1" in refused
        name = "anchorstore_connections_refused_total"
        assert running.sample(name, carrier="http", reason="limit") == 1
        writer.write(GET[-2:])
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await running.until_open(0)
        assert (await running.ask(GET)).startswith(b"HTTP/1.1 200 ")


async def test_server_with_a_broken_route_answers_500_and_reports() -> None:
    async with site() as running:
        answer = await running.ask(GET.replace(b"page", b"broken"))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"invariant" not in answer, "what broke is for the log, not for the peer"
        assert [name for name, _ in running.failures] == ["http /broken"]


async def test_server_when_closed_ends_open_connections() -> None:
    async with site() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(b"GET")
        await writer.drain()
        await running.until_open(1)
        await running.server.close()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
