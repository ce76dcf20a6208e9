"""The demo: one daemon, two engine processes, one shared prefix.

::

                 anchorstore serve
                  ^             ^
        put pages |             | look up, copy, replay
            engine A          engine B
     reads the text, goes    never saw it; its requests branch off
     on over several turns   A's conversation at arbitrary tokens

Every request is also computed without reuse, from a zero state, and with kv alone, so that the
table shows what reuse costs in agreement and what the anchors buy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from anchorstore.errors import ModelError, Unavailable
from engine_adapter.budget import Budget
from engine_adapter.transformers.text import TextCodec

START_SECONDS = 120.0
CONTINUATION_TOKENS = 32


@dataclasses.dataclass(frozen=True)
class DemoOptions:
    """What the demo runs.  Sizes in tokens.

    Attributes:
        model: directory of any supported model.
        text: file that engine A reads.
        prompt_tokens: of the text that A's first turn has.
        turns: turns of A's conversation.
        turn_tokens: of the text that every later turn adds.
        requests: branches that engine B gets.
        rows_per_page, max_rows, margin_tokens: the replay budget.
        dram: the daemon's pool, e.g. "1GiB".
        seed: where the branches leave.
    """

    model: pathlib.Path
    text: pathlib.Path
    prompt_tokens: int
    turns: int
    turn_tokens: int
    requests: int
    rows_per_page: int
    max_rows: int
    margin_tokens: int
    dram: str
    seed: int
    threads: int
    page_tokens: int = 64


class Worker:
    """An engine process."""

    def __init__(self, name: str, options: DemoOptions, address: str) -> None:
        command = [sys.executable, "-m", "engine_adapter.transformers.worker"]
        command += ["--name", name, "--model", str(options.model), "--daemon", address]
        command += ["--rows", str(options.rows_per_page), "--max-rows", str(options.max_rows)]
        command += ["--margin", str(options.margin_tokens), "--threads", str(options.threads)]
        self._name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def receive(self) -> dict[str, Any]:
        """The next line; ModelError where the process ended instead (it said why on stderr)."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ModelError(f"{self._name} ended with exit code {code}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.receive()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anchorstore", *arguments]


def daemon_status(socket: pathlib.Path) -> dict[str, Any]:
    """What `anchorstore status --json` says; Unavailable where nobody answers."""
    command = _command("status", "--json", "--socket", str(socket))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip() or f"anchorstore status left with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def running_daemon(folder: pathlib.Path, dram: str) -> Iterator[pathlib.Path]:
    """`anchorstore serve` on a socket in `folder`; Unavailable, with its log, if it dies."""
    socket, log = folder / "engine.sock", folder / "daemon.log"
    command = _command("serve", "--socket", str(socket), "--dram", dram, "--http", "")
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                daemon_status(socket)
                break
            except Unavailable as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"the daemon did not start:\n{log.read_text()}") from error
                time.sleep(0.1)
        yield socket
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclasses.dataclass(frozen=True)
class Branch:
    """A request that leaves A's conversation after `shared` tokens, and how the text goes on."""

    shared: int
    prompt: list[int]
    follows: list[int]


def branches(
    conversation: Sequence[int], text: Sequence[int], options: DemoOptions
) -> list[Branch]:
    """Requests that share an arbitrary prefix and go on with another piece of the text.

    Every other one leaves right at the end of a page with a token or a few of its own: there no
    recomputed token hides what a lost state costs.
    """
    chooser = random.Random(options.seed)
    page = options.page_tokens
    lowest = min(len(conversation) // 4, 16 * page)
    found: list[Branch] = []
    while len(found) < options.requests:
        shared = chooser.randrange(lowest, len(conversation))
        length = chooser.randrange(page // 4, page)
        if len(found) % 2 == 0:
            shared, length = shared // page * page, chooser.randrange(1, 4)
        start = chooser.randrange(0, len(text) - page - CONTINUATION_TOKENS)
        if text[start] == conversation[shared]:
            continue  # that branch would leave later than we say
        stop = start + length
        prompt = [*conversation[:shared], *text[start:stop]]
        found.append(Branch(shared, prompt, list(text[stop : stop + CONTINUATION_TOKENS])))
    return found


def read_text(path: pathlib.Path) -> str:
    """The text of a file; ModelError where it is not UTF-8 or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"--text {path}: byte {error.start} is not UTF-8 text") from error
    except OSError as error:
        raise ModelError(f"--text {path}: {error.strerror or error}") from error


def conversation_turns(text: Sequence[int], options: DemoOptions) -> list[list[int]]:
    """A's turns: the long first one, then as many of `turn_tokens` as asked."""
    wanted = options.prompt_tokens + (options.turns - 1) * options.turn_tokens
    if len(text) < wanted:
        raise ModelError(
            f"{options.text} has {len(text)} tokens, {wanted} are needed: "
            "choose a longer text or a smaller --prompt-tokens"
        )
    turns = [list(text[: options.prompt_tokens])]
    for turn in range(options.turns - 1):
        start = options.prompt_tokens + turn * options.turn_tokens
        turns.append(list(text[start : start + options.turn_tokens]))
    return turns


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run(options: DemoOptions, folder: pathlib.Path) -> dict[str, Any]:
    """The demo's figures; progress goes to standard error."""
    Budget(
        rows_per_page=options.rows_per_page,
        max_rows=options.max_rows,
        margin_tokens=options.margin_tokens,
        page_tokens=options.page_tokens,
    )  # refuses what cannot be before anything is started
    codec = TextCodec.load(options.model)
    tokens = codec.encode(read_text(options.text))
    turns = conversation_turns(tokens, options)
    _say(f"anchorstore serve: a pool of {options.dram} of memory")
    with running_daemon(folder, options.dram) as socket, contextlib.ExitStack() as stack:
        _say(f"engines A and B load {options.model.name} ({codec.description})")
        workers = [Worker(name, options, f"unix://{socket}") for name in ("engine-a", "engine-b")]
        for worker in workers:
            stack.callback(worker.close)
        for worker in workers:
            worker.receive()
        first, second = workers
        _say(f"engine A reads {len(turns[0])} tokens and goes on for {len(turns)} turns")
        read = first.ask({"op": "read", "turns": turns, "new_tokens": CONTINUATION_TOKENS})
        _say(f"engine A has stored {read['pages_sealed']} pages")
        requests = []
        for number, branch in enumerate(branches(read["tokens"], tokens, options), 1):
            _say(f"engine B: request {number} of {options.requests}")
            asked = {"prompt": branch.prompt, "continuation": branch.follows}
            measured = second.ask({"op": "branch", **asked})
            requests.append({"shared_tokens": branch.shared, **measured})
        status = daemon_status(socket)
    return {
        "model": options.model.name,
        "requests": requests,
        "pages_sealed": read["pages_sealed"],
        "rows_per_page": options.rows_per_page,
        "k_max": options.max_rows,
        "resume_margin_tokens": options.margin_tokens,
        "page_tokens": options.page_tokens,
        "daemon": status,
    }
