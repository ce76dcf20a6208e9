"""Runs the test lanes one after another, each with its clock.

A lane is a folder (or a few) below tests/ with a budget in minutes; a lane that needs more is
stopped and fails, so that the whole stays within 80 minutes for good (docs/testing.md shows this
table and tests/tidy compares the two)::

    python scripts/lanes.py                  every lane
    python scripts/lanes.py unit model       some
    python scripts/lanes.py --soak           tests marked slow, without budgets
    python scripts/lanes.py --vllm           the lane that needs an environment with vLLM
    python scripts/lanes.py --sglang         the one that needs SGLang
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INSTALL_MINUTES = 10
TOTAL_MINUTES = 80
NO_TESTS = 5  # pytest's exit status


@dataclasses.dataclass(frozen=True)
class Lane:
    """A part of the tests: `folders` below tests/, at most `minutes` long."""

    name: str
    folders: tuple[str, ...]
    minutes: int
    purpose: str


LANES = (
    Lane("tidy", ("tidy",), 3, "style, types, floors, budgets, documents, stub drift"),
    Lane("install", ("install",), 3, "the wheel alone, with newest and oldest requirements"),
    Lane("unit", ("unit", "regressions"), 4, "one module at a time, no process, no socket"),
    Lane("model", ("model",), 4, "random operations against plain-dict models, fuzzing"),
    Lane(
        "integration",
        ("integration", "contract", "attacks", "gpu"),
        6,
        "a real daemon, killed clients, tiers",
    ),
    Lane("adapter", ("adapter",), 4, "replay against prefill, quality gates of the trained models"),
    Lane("e2e", ("e2e",), 3, "command line, demo and benchmark as a user runs them"),
)

VLLM = Lane("vllm", ("vllm",), 43, "the adapter in a real vLLM, on CPU: `make test-vllm`")
SGLANG = Lane("sglang", ("oracle",), 10, "eviction against SGLang's tree: `make test-sglang`")
APART = (VLLM, SGLANG)
"""Lanes that each run in an environment of their own, and not in `make test`."""

assert INSTALL_MINUTES + sum(lane.minutes for lane in (*LANES, VLLM)) <= TOTAL_MINUTES


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a lane went; `closing` is pytest's closing line."""

    lane: Lane
    passed: bool
    seconds: float
    closing: str


def environment(soak: bool) -> dict[str, str]:
    """What every lane sees: the installed wheel, no hub, its hypothesis profile."""
    beside = pathlib.Path(sys.prefix, "dist")
    wheels = sorted((beside if beside.is_dir() else ROOT / "dist").glob("anchorstore-*.whl"))
    return os.environ | {
        "PYTHONSAFEPATH": "1",
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "ANCHORSTORE_REQUIRE_INSTALLED": "1",
        "ANCHORSTORE_WHEEL": str(wheels[-1]) if wheels else "",
        "ANCHORSTORE_SOAK": "1" if soak else "",
        "HYPOTHESIS_PROFILE": "soak" if soak else "ci",
    }


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have, in any session."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found[1:]


def stop(process: subprocess.Popen[str]) -> None:
    """Ends a lane with everything it started; servers are in sessions of their own."""
    for pid in [*descendants(process.pid), process.pid]:
        with contextlib.suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)


def pytest_options(lane: Lane, soak: bool, further: list[str]) -> list[str]:
    """What pytest is told: which tests, and how long one may take, without end where `soak`."""
    options = ["-m", "slow" if soak else "not slow", *further]
    if soak or lane in APART:  # an engine takes long to import and to start
        options += [f"--timeout={0 if soak else 900}", "-o", "faulthandler_timeout=0"]
    return options + (["--durations=12"] if lane in APART else [])


def run(lane: Lane, soak: bool, options: list[str]) -> Outcome:
    """Runs a lane, passing its output on line by line; `options` are pytest's."""
    folders = [f"tests/{name}" for name in lane.folders if (ROOT / "tests" / name).is_dir()]
    if not folders:
        return Outcome(lane, False, 0.0, "no such folder below tests/")
    command = [sys.executable, "-m", "pytest", *folders, *pytest_options(lane, soak, options)]
    print(f"\n==== lane {lane.name}: {lane.purpose}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(soak),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    alarm = threading.Timer(lane.minutes * 60, stop, [process])
    if not soak:
        alarm.start()
    closing = "no output"
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        closing = line.strip(" =\n") or closing
    status = process.wait()
    alarm.cancel()
    if status == -signal.SIGKILL:
        closing = f"stopped after its budget of {lane.minutes} minutes"
    passed = status == 0 or (soak and status == NO_TESTS)
    return Outcome(lane, passed, time.monotonic() - start, closing)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the test lanes one after another.")
    parser.add_argument("lanes", nargs="*", metavar="LANE", help="default: every lane")
    parser.add_argument("--soak", action="store_true", help="tests marked slow, no budgets")
    for lane in APART:
        parser.add_argument(f"--{lane.name}", action="store_true", help=lane.purpose)
    parser.add_argument("--pytest", default="", help="further options of pytest, as one text")
    arguments = parser.parse_args()
    names = {lane.name for lane in LANES}
    if unknown := sorted(set(arguments.lanes) - names):
        parser.error(f"no lane {', '.join(unknown)}: there are {', '.join(sorted(names))}")
    chosen = [lane for lane in LANES if not arguments.lanes or lane.name in arguments.lanes]
    chosen = [lane for lane in APART if getattr(arguments, lane.name)] or chosen
    options = shlex.split(arguments.pytest)
    outcomes = [run(lane, arguments.soak, options) for lane in chosen]
    print("\n==== lanes")
    for outcome in outcomes:
        verdict = "ok  " if outcome.passed else "FAIL"
        limit = f"{outcome.seconds / 60:5.1f} of {outcome.lane.minutes:2d} min"
        print(f"{verdict} {outcome.lane.name:12s} {limit}  {outcome.closing}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
