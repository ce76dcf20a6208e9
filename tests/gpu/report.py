"""Runs what needs a CUDA device and prints one JSON object: tests, then questions (probe.py).

::

    {"device": {...}, "passed": 19, "failed": 0, "failures": [], "host_register": {...}, ...}

Without a device: {"device": null, "reason": ...} and exit code 2.  Exit code 1 where a test failed
or a question had no answer.  Everything else goes to stderr.  Deadlines add up to under 5 minutes.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

from anchorstore.transport.cuda import CudaError
from anchorstore.transport.cuda_driver import DriverDevice
from tests.gpu.probe import QUESTIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST_SECONDS = 120.0
QUESTION_SECONDS = 30.0
EXIT_FAILED, EXIT_NO_DEVICE = 1, 2

assert TEST_SECONDS + len(QUESTIONS) * QUESTION_SECONDS < 300


def run(command: list[str], seconds: float) -> tuple[int | None, str]:
    """Exit code (None: it took too long) and standard output of a Python command."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def tests() -> dict[str, Any]:
    """How the tests marked gpu went.  A configuration of its own asks for no plugin."""
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder, "tests.xml")
        options = ["-c", "tests/gpu/device.ini", "--rootdir=.", f"--junitxml={written}"]
        options += ["-m", "gpu", "-p", "no:cacheprovider"]
        code, output = run(["-m", "pytest", *options, "tests/contract", "tests/gpu"], TEST_SECONDS)
        print(output, file=sys.stderr)
        if not written.exists():
            return {"passed": 0, "failed": 1, "failures": [f"pytest ended with {code}"]}
        return counted(written.read_text())


def counted(junit: str) -> dict[str, Any]:
    """What a report in pytest's XML says."""
    cases = list(ElementTree.fromstring(junit).iter("testcase"))
    bad = [case for case in cases if {part.tag for part in case} & {"failure", "error"}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - len(bad) - skipped,
        "failed": len(bad),
        "skipped": skipped,
        "failures": [f"{case.get('classname')}::{case.get('name')}" for case in bad],
    }


def answer(question: str) -> dict[str, Any]:
    """A probe's, from a process of its own."""
    code, output = run(["-m", "tests.gpu.probe", question], QUESTION_SECONDS)
    lines = output.strip().splitlines()
    if code == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    return {"error": f"no answer: exit code {code}"}


def main() -> int:
    started = time.monotonic()
    try:
        DriverDevice(0).release()
    except CudaError as error:
        print(json.dumps({"device": None, "reason": str(error)}))
        return EXIT_NO_DEVICE
    report = tests()
    report |= {question: answer(question) for question in QUESTIONS}
    report["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(report, indent=2))
    unanswered = [question for question in QUESTIONS if "error" in report[question]]
    return EXIT_FAILED if report["failed"] or unanswered else 0


if __name__ == "__main__":
    raise SystemExit(main())
