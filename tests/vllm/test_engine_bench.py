"""Goal: the engine benchmark runs stock vLLM and the adapter, and finds what each reuses.
Method: the command as a user runs it, short, on a trained tiny model; times are not looked at.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from benchmarks.engine import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_benchmark_of_branches_finds_the_ideal_reached_and_stock_below(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(ROOT / "engine_adapter" / "models" / "recall"), "--eager", "--quick"]
    words += ["--context", "1280", "--answer-tokens", "4", "--pause", "0.2", "--json"]
    words += ["--kv-cache", "128MiB", "--dram", "256MiB", "--python", sys.executable]
    assert cli.main([*words, "--cache", str(tmp_path)]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    every = document["depths"][-1]["variants"]
    assert every["anchorstore"]["of_ideal"] >= 0.95 > every["stock"]["of_ideal"]
    counters = document["counters"]
    for variant in ("stock", "anchorstore"):
        assert (
            counters[variant]["vllm:prompt_tokens_cached_total"]
            == (every[variant]["reused_tokens"])
        )
