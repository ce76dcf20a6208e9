"""vLLM servers of one model on free ports, with and without the store; started, watched, stopped.

::

    Setup (python, model, flags) + Variant (connector or none) --> Server: process group, log, url
                                   Patience, Say <-- what is waited for, while it starts

Every variant has the same flags, so that the connector is the only difference.  Stock vLLM runs
with what it offers to hybrid models: prefix caching in mode `align`, matches at 64-token units.
On CPU, all of them leave equally many cores to others.
No plugin is loaded into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from types import TracebackType
from typing import Any

from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError
from benchmarks.engine.run import Say

HEALTH_SECONDS = 4.0
"""For one question whether it is ready: a server that is busy answers the next one."""
STOP_SECONDS = 30.0
POLL_SECONDS = 0.2
LOG_LINES = 25
PAGE_TOKENS = 64
SERVED_NAME = "bench"
RESERVED_CORES = 1
"""The last ones, that a step on CPU leaves to others.  By itself vLLM leaves one, and with any
connector two; on two cores that is none, and steps whose threads wait for each other crawl."""
CONNECTOR = "AnchorStoreConnector"
CONNECTOR_MODULE = "engine_adapter.vllm"


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a server reuses prefixes.

    Attributes:
        name: for people and reports.
        connector: extra configuration of the connector; None runs stock vLLM.
    """

    name: str
    connector: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all servers of a run have in common.

    Attributes:
        python: interpreter of the environment that has vLLM.
        model: folder to serve.
        context_tokens: longest prompt with its answer.
        kv_cache_bytes: of every server's own cache.
        folder: where logs go.
        flags: more flags of vLLM, for every variant alike.
        can_reset: whether a server's own prefix cache can be emptied on request.
    """

    python: pathlib.Path
    model: pathlib.Path
    context_tokens: int
    kv_cache_bytes: int
    folder: pathlib.Path
    flags: tuple[str, ...] = ()
    can_reset: bool = False


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long a server may take to start, and how often is said that it still does."""

    ready_seconds: float = 600.0
    word_seconds: float = 10.0


PATIENCE = Patience()


def free_port() -> int:
    """A port of the loopback interface that nobody has now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def connector_config(extra: Mapping[str, Any]) -> str:
    """Value of --kv-transfer-config."""
    config = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": dict(extra),
    }
    return json.dumps(config)


def command(setup: Setup, variant: Variant, port: int) -> list[str]:
    """The server's command line."""
    words = [str(setup.python), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--model", str(setup.model), "--served-model-name", SERVED_NAME]
    words += ["--dtype", "bfloat16", "--max-model-len", str(setup.context_tokens)]
    words += ["--max-num-seqs", "8", "--kv-cache-memory-bytes", str(setup.kv_cache_bytes)]
    words += ["--enable-prefix-caching", "--mamba-cache-mode", "align"]
    words += ["--prefix-match-unit", str(PAGE_TOKENS), "--prefix-caching-hash-algo", "sha256_cbor"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    words += ["--generation-config", "vllm", *setup.flags]
    if variant.connector is not None:
        words += ["--kv-transfer-config", connector_config(variant.connector)]
    return words


def environment(setup: Setup, variant: Variant, inherited: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: no hub, no usage statistics; no plugin in the stock server."""
    found = {
        **inherited,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    found.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", str(RESERVED_CORES))
    if variant.connector is None:
        found["VLLM_PLUGINS"] = ""
    if setup.can_reset:
        found["VLLM_SERVER_DEV_MODE"] = "1"
    return found


def bound_step(cores: Set[int]) -> dict[str, str]:
    """Variables that bind the threads of a step to what a server's step has of `cores`: all but
    those that it leaves to others; none where there is but one.

    A server gives them to its workers (vLLM 0.32, utils/ompmultiprocessing.py).  An engine inside
    a process has no worker, and a step on every core, unless they stand there before torch loads.
    """
    own = sorted(cores)[:-RESERVED_CORES]
    if not own:
        return {}
    places = ",".join(map(str, own))
    return {
        "OMP_NUM_THREADS": str(len(own)),
        "OMP_PLACES": f"{{{places}}}",
        "OMP_PROC_BIND": "true",
    }


@contextlib.contextmanager
def beside_the_step() -> Iterator[None]:
    """What is started meanwhile runs on the cores that a step leaves to others, where there are
    such: vLLM's own scheduler waits without sleeping, so that a daemon would share a step's."""
    own = os.sched_getaffinity(0)
    others = sorted(own)[-RESERVED_CORES:]
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Server:
    """One server; a context manager that starts it, waits until it is ready, and stops it.

    `say` hears what is waited for.
    """

    def __init__(
        self,
        setup: Setup,
        variant: Variant,
        say: Say,
        number: int = 0,
        patience: Patience = PATIENCE,
    ) -> None:
        self.setup, self.variant = setup, variant
        self._say, self._patience = say, patience
        self.port = free_port()
        self.log_path = setup.folder / f"{variant.name}-{number}.log"
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert not self.is_running, "already running"
        words = command(self.setup, self.variant, self.port)
        with self.log_path.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment(self.setup, self.variant, os.environ),
                    start_new_session=True,
                )
            except OSError as error:
                raise EndpointError(f"{words[0]} cannot be run: {error}") from error

    def wait(self) -> None:
        """Returns once it answers; EndpointError with the end of its log once its process has
        ended, or has taken longer than there is patience for."""
        assert self._process is not None, "never launched"
        name, patience = f"the {self.variant.name} server", self._patience
        began = told = time.monotonic()
        self._say(f"starting {name}; its log is {self.log_path}")
        while not self._is_ready():
            waited = time.monotonic() - began
            code = self._process.poll()
            if code is not None:
                raise self._failure(f"ended with exit code {code}")
            if waited > patience.ready_seconds:
                raise self._failure(f"is not ready after {waited:.0f} s")
            if time.monotonic() >= told + patience.word_seconds:
                told = time.monotonic()
                self._say(f"waiting for {name}, {waited:.0f} s so far; its log is {self.log_path}")
            time.sleep(POLL_SECONDS)
        self.start_seconds = round(time.monotonic() - began, 1)

    def _is_ready(self) -> bool:
        try:
            Client(self.url, deadline_seconds=HEALTH_SECONDS).get("/health")
        except EndpointError:
            return False
        return True

    def _failure(self, state: str) -> EndpointError:
        return EndpointError(
            f"the {self.variant.name} server {state}; its log ({self.log_path}) ends with:\n"
            f"{log_end(self.log_path)}"
        )

    def stop(self) -> None:
        """Asks the server to end, then ends its whole process group."""
        if self._process is None:
            return
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # the group's end below is its end too
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # nobody of the group is left
        self._process.wait(STOP_SECONDS)

    def __enter__(self) -> Server:
        try:
            self.launch()
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def log_end(path: pathlib.Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def require_modules(python: pathlib.Path, modules: Sequence[str]) -> None:
    """EndpointError, with what to do, where an interpreter lacks one of `modules`."""
    script = (
        "import importlib.util, sys\n"
        "def lacks(name):\n"
        "    try: return importlib.util.find_spec(name) is None\n"
        "    except ModuleNotFoundError: return True\n"
        "print(','.join(name for name in sys.argv[1:] if lacks(name)))"
    )
    try:
        done = subprocess.run(
            [str(python), "-c", script, *modules],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except OSError as error:
        raise EndpointError(f"--python {python} cannot be run: {error}") from error
    if done.returncode:
        raise EndpointError(f"--python {python} failed: {done.stderr.strip()[-400:]}")
    if missing := done.stdout.strip():
        raise EndpointError(
            f"{python} has no {missing.replace(',', ', ')}: install vLLM and this project into "
            "one environment and name its interpreter with --python"
        )
