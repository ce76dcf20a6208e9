"""vLLM's own OpenAI server as a process: started, asked over HTTP, stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from benchmarks.engine.servers import connector_config, free_port
from tests.vllm.served import KV_CACHE_BYTES, environment

READY_SECONDS = 400.0
STOP_SECONDS = 60.0
REQUEST_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Completion:
    """A completion's text and how many of its prompt tokens were not computed."""

    text: str
    cached: int


class Server:
    """A context manager; several may run at a time.  `ready` waits for it."""

    def __init__(
        self,
        model: pathlib.Path,
        log: pathlib.Path,
        *,
        extra: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`extra`: the connector's extra config; None is stock vLLM.  `variables` are added to the
        environment."""
        self.port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--served-model-name", "tiny", "--enforce-eager"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "bfloat16"]
        command += ["--max-model-len", "4096", "--max-num-seqs", "8"]
        command += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
        command += ["--mamba-ssm-cache-dtype", "float32", "--enable-prompt-tokens-details"]
        if extra is not None:
            command += ["--kv-transfer-config", connector_config(extra)]
        self.log_path = log
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | dict(variables or {}),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the process that was started; those that it starts are in its session."""
        return self._process.pid

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
            found: bytes = response.read()
            return found

    def ready(self) -> Server:
        """Waits until it answers; RuntimeError with its log where it does not."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self._open("/health")
            except (urllib.error.URLError, ConnectionError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    text = self.log_path.read_text()
                    raise RuntimeError(f"the server is not ready:\n{text[-6000:]}") from None
                time.sleep(0.2)
            else:
                return self

    def complete(self, prompt: Sequence[int], tokens: int = 8, *, salt: str = "") -> Completion:
        """A greedy completion of `prompt`."""
        body: dict[str, Any] = {
            "model": "tiny",
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        found = json.loads(
            self._open("/v1/completions", body | ({"cache_salt": salt} if salt else {}))
        )
        details = found["usage"].get("prompt_tokens_details") or {}
        return Completion(found["choices"][0]["text"], details.get("cached_tokens") or 0)

    def metrics(self) -> dict[str, float]:
        """Our metrics, summed over vLLM's own labels: name or name{label} -> value."""
        found: dict[str, float] = {}
        for line in self._open("/metrics").decode().splitlines():
            match = re.match(r"anchorstore:(\w+)\{(.*)\} (\S+)$", line)
            if match and not match[1].endswith("_created"):
                label = re.search(r'(?:outcome|reason|thread)="(\w+)"', match[2])
                name = f"{match[1]}{{{label[1]}}}" if label else match[1]
                found[name] = found.get(name, 0.0) + float(match[3])
        return found

    def stop(self) -> None:
        """Ends it with all of its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
