"""A real daemon as a process of its own: started, watched, frozen, killed, started again.

::

    Daemon(folder)  --start-->  python -m anchorstore serve  --log-->  folder/daemon.log
                                  engine.sock, a free TCP port, a free HTTP port

For tests and benchmarks.  Ready means that the log says so; the ports that the first start found
free are kept over restarts, so clients find the next daemon where they found the last.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import anchorstore
from anchorstore.transport.address import UNIX_PATH_BYTES_MAX

READY_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.01
SMALL = {
    "tiers.dram.capacity": "32MiB",
    "tiers.dram.segment": "1MiB",
    "node.drain": "1s",
}
"""A pool for tests; settings given to Daemon come on top."""


class Daemon:
    """One daemon's process; a context manager that starts and stops it.

    Args:
        folder: where its socket and its log lie; made where it is not there.
        settings: configuration keys and their values as text, on top of SMALL.
        ready_seconds: how long a start may take.
        fake_cuda: folder that is its CUDA device (testing.serve); None for the product's command.
    """

    def __init__(
        self,
        folder: pathlib.Path | str,
        *,
        settings: Mapping[str, str] | None = None,
        ready_seconds: float = READY_SECONDS,
        fake_cuda: pathlib.Path | None = None,
    ) -> None:
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self.folder / "daemon.log"
        self._short_folder: str | None = None
        self._ready_seconds = ready_seconds
        self._command = ["anchorstore", "serve"]
        if fake_cuda is not None:
            self._command = ["anchorstore.testing.serve", "--fake-cuda", str(fake_cuda)]
        self._settings = {
            **SMALL,
            "listen.socket": self._socket_path(),
            "listen.http": "127.0.0.1:0",
            "listen.tcp": "127.0.0.1:0",
            "log.format": "json",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._http = ""

    def _socket_path(self) -> str:
        path = str(self.folder.resolve() / "engine.sock")
        if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
            return path
        self._short_folder = tempfile.mkdtemp(prefix="anchorstore-")
        return f"{self._short_folder}/engine.sock"

    # ---- where to find it ----

    @property
    def socket_path(self) -> str:
        """Path of its Unix socket."""
        return self._settings["listen.socket"]

    @property
    def address(self) -> str:
        """For clients on this host."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_address(self) -> str:
        """For clients elsewhere; it is on loopback."""
        return f"tcp://{self._settings['listen.tcp']}"

    @property
    def http_address(self) -> str:
        """Of /metrics, /livez and /readyz; another one after a restart."""
        return f"http://{self._http}"

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        assert self._process is not None, "never started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there (frozen or not)."""
        return self._process is not None and self._process.poll() is None

    # ---- its life ----

    def start(self) -> None:
        """Starts it and waits until it is ready; RuntimeError with its log where it is not."""
        assert not self.is_running, "already running"
        options = [f"--set={key}={value}" for key, value in self._settings.items()]
        command = [sys.executable, "-m", *self._command, *options]
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_seconds
        while not (ready := [event for event in self.events() if event["event"] == "ready"]):
            if not self.is_running or time.monotonic() > deadline:
                state = "is not ready" if self.is_running else f"ended with {self.exit_code}"
                raise RuntimeError(f"the daemon {state}:\n{self.log_path.read_text()}")
            time.sleep(POLL_SECONDS)
        if "tcp" in ready[-1]:
            self._settings["listen.tcp"] = ready[-1]["tcp"]
        for event in self.events():
            if event["event"] == "http listens":
                self._http = event["address"]

    @property
    def exit_code(self) -> int | None:
        """Of the process that ran last; None while it runs."""
        assert self._process is not None, "never started"
        return self._process.poll()

    def stop(self) -> int:
        """Asks it to drain and waits for its end; its exit code."""
        assert self._process is not None, "never started"
        self.thaw()
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it as the kernel would: no drain, no good-bye."""
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait(STOP_SECONDS)

    def restart(self) -> None:
        """Kills it and starts another on the same addresses."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody."""
        assert self._process is not None, "never started"
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process is not None and self.is_running:
            os.kill(self._process.pid, signal.SIGCONT)

    # ---- what it said ----

    def events(self) -> list[dict[str, Any]]:
        """What it has logged since it was started last."""
        if not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().splitlines()
        return [json.loads(line) for line in lines if line.startswith(b'{"') and line[-1:] == b"}"]

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_running:
            self.stop()
        if self._short_folder is not None:
            shutil.rmtree(self._short_folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """This process's, and the anchorstore that this process uses."""
    home = str(pathlib.Path(anchorstore.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}
