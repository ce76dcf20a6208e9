"""Goal: the committed stubs are those of proto/, written by the pinned generator.
Method: generate them anew in the generator's own environment and compare.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from tests.tidy.checkout import GENERATED, ROOT

GENERATOR = ROOT / ".venv-proto" / "bin" / "python"


@pytest.fixture
def generator() -> pathlib.Path:
    """The interpreter that has the pinned grpcio-tools; `make` creates it."""
    if not GENERATOR.exists():
        reason = "no .venv-proto here: run `make proto` once"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return GENERATOR


def test_stubs_generated_anew_equal_the_committed_ones(generator: pathlib.Path) -> None:
    result = subprocess.run(
        [generator, "scripts/proto.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_stubs_in_the_package_state_the_old_runtime() -> None:
    stubs = sorted(GENERATED.glob("*_pb2.py"))
    assert stubs
    for path in stubs:
        assert "# Protobuf Python Version: 6.31.1" in path.read_text(), path.name
