"""Goal: `anchorstore serve` starts, tells, drains and refuses as docs/operations.md says.
Method: the command as a process of its own with a small pool; the pages are read over HTTP, the
operator's commands run as processes too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "anchorstore")
HTTP_LISTENS = re.compile(r'"address": "127\.0\.0\.1:(\d+)"')


class Daemon:
    """A running `anchorstore serve`; its log lines are kept."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.socket = folder / "engine.sock"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--dram", "16MiB", "--socket", str(self.socket), *words],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"ANCHORSTORE__LISTEN__HTTP": "127.0.0.1:0"},
        )

    def until(self, event: str) -> str:
        """The log line with this event, once it is there."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if f'"event": "{event}"' in line:
                return line
        raise AssertionError(f"the daemon ended without {event!r}: {self.lines}")

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.lines += self.process.stderr.readlines()
        return self.process.wait(30)

    def get(self, port: int, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def say(self, *words: str) -> tuple[int, str]:
        """Runs an operator's command against this daemon."""
        result = subprocess.run(
            [*COMMAND, *words, "--socket", str(self.socket)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr


@contextlib.contextmanager
def daemon(folder: Path, *words: str) -> Iterator[Daemon]:
    running = Daemon(folder, *words)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        assert running.process.stderr is not None
        running.process.stderr.close()


def refusal(*words: str, environment: dict[str, str] | None = None) -> str:
    """What a daemon that cannot start says; it must end with 2 and one line of its own."""
    result = subprocess.run(
        [*COMMAND, "serve", "--set", "log.level=error", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | (environment or {}),
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("anchorstore serve: "), result.stderr
    return result.stderr


def test_serve_from_start_to_drain_keeps_its_promises(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        listens = HTTP_LISTENS.search(running.until("http listens"))
        assert listens
        port = int(listens[1])
        running.until("ready")
        assert running.get(port, "/livez") == (200, "ok\n")
        assert running.get(port, "/readyz") == (200, "ok\n")
        status, metrics = running.get(port, "/metrics")
        assert status == 200
        assert 'anchorstore_tier_capacity_bytes{tier="dram"} 1.6777216e+07' in metrics
        assert "anchorstore_ready 1.0" in metrics

        code, text = running.say("status", "--json")
        assert code == 0, text
        assert json.loads(text)["tiers"][0]["capacity_bytes"] == 16 * 2**20
        assert running.say("check", "--checksums") == (0, "ok: 0 pages, 0 blocks\n")
        code, text = running.say("ls", "--json")
        assert (code, json.loads(text)) == (0, {"namespaces": []})
        code, text = running.say("explain", "1,2,3")
        assert code == 2
        assert "the daemon has none" in text

        assert running.end() == 0, running.lines
        assert any('"event": "stopped"' in line for line in running.lines)
        assert not running.socket.exists()
        for line in running.lines:
            assert json.loads(line)["level"] == "info"


def test_serve_again_on_the_socket_of_a_killed_daemon_starts(tmp_path: Path) -> None:
    with daemon(tmp_path) as first:
        first.until("ready")
        first.process.kill()
        first.process.wait()
        assert first.socket.exists(), "a killed daemon leaves its socket behind"
        with daemon(tmp_path) as second:
            second.until("ready")
            assert second.end() == 0


def test_serve_on_a_socket_in_use_is_refused(tmp_path: Path) -> None:
    with daemon(tmp_path) as running:
        running.until("ready")
        words = ("--socket", str(running.socket), "--http", "", "--dram", "16MiB")
        assert str(running.socket) in refusal(*words)
        assert running.say("status")[0] == 0, "the first one serves on"


def test_serve_on_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--http", "--tcp"):
            words = ["--socket", str(tmp_path / "s"), "--dram", "16MiB", "--http", ""]
            message = refusal(*words, option, f"127.0.0.1:{port}")
            assert f"127.0.0.1:{port}" in message
            assert f"listen.{option.removeprefix('--')}" in message


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--dram", "0B"), ("tiers.dram.capacity", "0B")),
        (("--dram", "64PiB"), ("tiers.dram.capacity", "PiB")),
        (("--dram", "64TiB"), ("64TiB",)),
        (("--socket", "/tmp/" + "x" * 200), ("listen.socket", "205 bytes", "limit 107")),
        (("--tcp", "0.0.0.0:0"), ("listen.tcp", "--insecure-bind")),
        (("--set", "auth.token_file=/does/not/exist"), ("auth.token_file", "/does/not/exist")),
    ],
)
def test_serve_with_what_cannot_work_is_refused(
    words: tuple[str, ...], wanted: tuple[str, ...], tmp_path: Path
) -> None:
    base = ["--http", "", "--dram", "16MiB", "--socket", str(tmp_path / "s")]
    message = refusal(*base, *words)
    for part in wanted:
        assert part in message


def test_serve_with_an_unknown_variable_is_refused(tmp_path: Path) -> None:
    message = refusal(environment={"ANCHORSTORE__LEASE__READ_TLT": "1s"})
    assert "did you mean lease.read_ttl?" in message
