"""Goal: imports run downwards only, and the pure parts stay pure.
Method: import-linter's contracts (pyproject.toml); beside them an allow-list for the core, since
a list of what is forbidden never ends.
"""

from __future__ import annotations

import ast
import pathlib
import sys

from tests.tidy.checkout import ROOT, relative, run_python

PURE_STANDARD = {
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "operator",
    "string",
    "struct",
    "types",
    "typing",
}
PURE_OWN = (
    "anchorstore.errors",
    "anchorstore.keys",
    "anchorstore.layout",
    "anchorstore.server.core",
    "anchorstore.tiers.slab",
    "anchorstore.transport.segment",
    "anchorstore.units",
)
PURE_OTHERS = {"numpy", "cbor2", "xxhash"}


def imported(source: str, package: str) -> set[str]:
    """Dotted names that `source`, a module of `package`, imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def impure(names: set[str]) -> list[str]:
    """Those of `names` that a pure module may not import."""
    return sorted(
        name
        for name in names
        if name.partition(".")[0] not in PURE_STANDARD | PURE_OTHERS
        and not any(name == own or name.startswith(f"{own}.") for own in PURE_OWN)
    )


def pure_files() -> list[pathlib.Path]:
    core = sorted((ROOT / "anchorstore" / "server" / "core").rglob("*.py"))
    slab = ROOT / "anchorstore" / "tiers" / "slab.py"
    return [*core, slab] if slab.exists() else core


def test_allow_list_on_offenders_reports_them() -> None:
    source = "import time\nfrom anchorstore.server import mover\nfrom . import index\nimport numpy"
    assert impure(imported(source, "anchorstore.server.core")) == [
        "anchorstore.server.mover",
        "time",
    ]
    assert set(sys.stdlib_module_names) >= PURE_STANDARD


def test_core_imports_are_on_the_allow_list() -> None:
    files = pure_files()
    assert files, "the core has moved: mend this test"
    found = [
        f"{relative(path)}: {name}"
        for path in files
        for name in impure(
            imported(path.read_text(), ".".join(path.relative_to(ROOT).parent.parts))
        )
    ]
    assert not found, "\n".join(found)


def test_imports_of_every_package_run_downwards() -> None:
    linter = pathlib.Path(sys.executable).with_name("lint-imports")
    result = run_python(str(linter), "--no-cache")
    assert result.returncode == 0, result.stdout
    assert "Contracts:" in result.stdout, result.stdout
