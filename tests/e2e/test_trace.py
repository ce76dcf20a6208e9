"""Goal: the trace lab runs as a user runs it, in one process or in several, and says the same.

Method: the command, short; its JSON is compared as a whole.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def lab(*words: str) -> dict[str, Any]:
    """The document of a small run."""
    command = [sys.executable, "-m", "benchmarks.trace", "--json", "--trace", "agents"]
    command += ["--requests", "30", "--capacity", "1/4", "--capacity", "1/4+1/2", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=200, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_lab_in_one_process_or_in_several_says_the_same() -> None:
    policies = ("--policy", "lru", "--policy", "slru+demote")
    alone, together = lab(*policies), lab(*policies, "--jobs", "2")
    assert alone == together
    [trace] = alone["traces"]
    names = [line["cache"] for line in trace["caches"] if line["capacity"] == "1/4+1/2"]
    assert names == [
        *("anchorstore lru", "anchorstore slru+demote", "belady"),
        *("checkpoints grid", "checkpoints placed", "checkpoints told"),
    ]
