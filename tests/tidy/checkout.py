"""The files of the checkout that the tidy tests read."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GENERATED = ROOT / "anchorstore" / "wire" / "v1"
CODE_FOLDERS = ("anchorstore", "engine_adapter", "benchmarks", "scripts", "tests")
_SKIPPED = {"__pycache__", "node_modules"}


def relative(path: pathlib.Path) -> str:
    """`path` as people write it."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def python_files() -> tuple[pathlib.Path, ...]:
    """Every Python file that people write, sorted."""
    found = [path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return tuple(
        sorted(p for p in found if GENERATED not in p.parents and not _SKIPPED & set(p.parts))
    )


@functools.cache
def documents() -> tuple[pathlib.Path, ...]:
    """README, changelog and everything below docs/."""
    return (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))


@functools.cache
def text_files() -> tuple[pathlib.Path, ...]:
    """Every text file that people write: code, schema, scripts, configuration, documents."""
    found = [*python_files(), *documents()]
    found += [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
    for folder in ("proto", "scripts", "deploy", "engine_adapter"):
        found += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".proto", ".sh", ".yaml", ".yml", ".toml", ".md", ".service"}
        ]
    return tuple(sorted(set(found)))


def run_python(*arguments: str, timeout_seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter in the checkout; output and errors come back in one string."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
