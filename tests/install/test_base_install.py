"""Goal: the base install fits into any engine's environment and the client works in it alone.
Method: install the built wheel without extras, once with the newest and once with the oldest
requirements it admits, and use it; `make` says where the wheel is.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from tests.tidy.checkout import ROOT

PROGRAM = """
import sys
from anchorstore.client import Client, NamespaceSpec, NeedLast
from anchorstore.keys import Namespace, path_hashes
from anchorstore.layout import AnchorLayout
assert not {"torch", "redis", "grpc_health"} & set(sys.modules)
from anchorstore.wire.v1 import admin_pb2, store_pb2, store_pb2_grpc
space = NamespaceSpec("model", bytes(32))
layouts = [AnchorLayout(groups=1, rows=4, hidden=8, dtype="float32")]
client = Client.connect("unix:///run/anchorstore-absent.sock", namespace=space, layouts=layouts)
with client.lookup(bytes(32), [NeedLast(0)]) as window:
    print(window.hit, window.miss)
client.close()
root = Namespace("default", "model", bytes(32)).root_digest()
print(root.hex(), path_hashes(root, list(range(128))).hex())
print(store_pb2.DetachRequest(session_id=b"x").SerializeToString().hex())
"""


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["dependencies"]
    return found


def oldest(requirement: str) -> str:
    """The requirement pinned to its lower bound."""
    match = re.match(r"([\w-]+)>=([\d.]+)", requirement)
    assert match, f"{requirement!r} has no lower bound"
    return f"{match[1]}=={match[2]}"


@pytest.fixture(scope="session")
def wheel() -> pathlib.Path:
    path = os.environ.get("ANCHORSTORE_WHEEL", "")
    if not path:
        pytest.skip("no built wheel given: run `make test LANES=install`")
    return pathlib.Path(path)


def run(*command: str | pathlib.Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result.stdout


@pytest.mark.parametrize("pins", ["newest", "oldest"])
def test_base_install_alone_serves_the_client(
    pins: str, wheel: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    wanted = [oldest(r) for r in requirements()] if pins == "oldest" else []
    run(*pip, "install", "-q", "--only-binary", ":all:", str(wheel), *wanted)
    run(*pip, "check")
    here = run(sys.executable, "-c", PROGRAM)
    assert run(python, "-W", "error", "-c", PROGRAM) == here
