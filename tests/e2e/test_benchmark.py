"""Goal: the benchmark of the store runs, and every line has the fields and yardsticks it promises.

Method: the command as a user runs it, short; figures are checked for presence, never for speed.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIELDS = {"case", "block_bytes", "batch", "clients", "p50_us", "p99_us", "gb_per_s"}
FIELDS |= {"ratio_to_memcpy", "ratio_to_floor"}


def benchmark(*arguments: str) -> dict[str, Any]:
    """The document that the benchmark prints."""
    command = [sys.executable, "-m", "benchmarks.store", "--json", "--quick", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=280, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lines(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {line["case"]: line for line in document["results"]}
    for line in found.values():
        assert set(line) >= FIELDS, line
        assert 0 < line["p50_us"] <= line["p99_us"], line
    return found


def test_lookups_stand_beside_their_floors_and_redis_and_the_index_is_weighed() -> None:
    document = benchmark("--only", "lookups", "--pages", "8192", "--peers")
    found = lines(document)
    for case in ("hit_at_end", "hit_at_end_scattered", "hit_in_middle", "miss", "holes"):
        assert found[f"lookup_{case}"]["ratio_to_floor"] > 0
        assert f"floor_of_lookup_{case}" in found
    assert document["index"]["pages"] == 8192
    assert document["index"]["bytes_per_page"] > 0
    assert set(document["peers"]) == {"redis", "mooncake", "lmcache"}
    if shutil.which("redis-server"):
        assert "redis_longest_prefix_lua" in found
    else:
        pytest.skip("no redis-server: everything but the peer was checked")
