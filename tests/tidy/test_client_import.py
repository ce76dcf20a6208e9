"""Goal: what an engine imports is small, and its public names do not move unseen.
Method: import the client in a fresh interpreter and look at what came with it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import anchorstore.client

BANNED = (
    "anchorstore.server",
    "anchorstore.tiers",
    "anchorstore.config",
    "anchorstore.testing",
    "engine_adapter",
    "grpc_health",
    "grpc_reflection",
    "prometheus_client",
    "redis",
    "structlog",
    "torch",
    "transformers",
    "uvloop",
)
PUBLIC_NAMES = {
    "AsyncClient",
    "Client",
    "ClientOptions",
    "EventPublisher",
    "NamespaceSpec",
    "NeedAll",
    "NeedLast",
    "NeedWindow",
    "PutOutcome",
}


def loaded_by(statement: str) -> set[str]:
    """Modules that are loaded after `statement` in a fresh interpreter."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(result.stdout))


def banned(modules: set[str]) -> list[str]:
    return [name for name in BANNED if any(m == name or m.startswith(f"{name}.") for m in modules)]


def test_client_import_loads_nothing_heavy() -> None:
    modules = loaded_by("import anchorstore.client")
    assert "anchorstore.client" in modules
    assert banned(modules) == []


@pytest.mark.parametrize("name", ["redis", "structlog"])
def test_banned_import_is_noticed(name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed here")
    assert name in banned(loaded_by(f"import anchorstore.client, {name}"))


def test_public_names_of_the_client_are_frozen() -> None:
    """A change here is a change of the product's face: say so in CHANGELOG.md."""
    assert set(anchorstore.client.__all__) == PUBLIC_NAMES
    assert all(hasattr(anchorstore.client, name) for name in PUBLIC_NAMES)
