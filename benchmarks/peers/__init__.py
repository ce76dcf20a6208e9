"""The peers, each where it is installed: the same values, the same path of 512 pages, same run."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import Any

from benchmarks.harness import Effort, Result


def run(effort: Effort, document: dict[str, Any]) -> list[Result]:
    """Lines of every peer found here; `document["peers"]` says which were not, and why."""
    results: list[Result] = []
    found: dict[str, str] = {}
    if not shutil.which("redis-server"):
        found["redis"] = "not run: no redis-server on PATH"
    elif not importlib.util.find_spec("redis"):
        found["redis"] = "not run: the redis package is missing"
    else:
        from benchmarks.peers import redis_peer

        lines, found["redis"] = redis_peer.measure(effort)
        results += lines
    if not importlib.util.find_spec("mooncake"):
        found["mooncake"] = "not run: mooncake-transfer-engine-non-cuda is missing"
    else:
        from benchmarks.peers import mooncake_peer

        lines, found["mooncake"] = mooncake_peer.measure(effort)
        results += lines
    if not importlib.util.find_spec("lmcache"):
        found["lmcache"] = "not run: lmcache is missing"
    else:
        from benchmarks.peers import lmcache_peer

        lines, found["lmcache"] = lmcache_peer.measure(effort)
        results += lines
    for name, state in found.items():
        print(f"peer {name}: {state}", file=sys.stderr)
    document["peers"] = found
    return results
