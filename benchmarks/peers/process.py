"""Starts a peer's server on loopback and ends it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(
    command: Sequence[str],
    port: int,
    log: pathlib.Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> Iterator[subprocess.Popen[bytes]]:
    """The process of `command`, once it listens on `port`; RuntimeError with its log if not."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **(environment or {})}
        )
    try:
        _wait(process, port, log, seconds)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: pathlib.Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}:\n{log.read_text()[-2000:]}")
