"""Goal: the engine benchmark runs stock vLLM and the adapter, and finds what each reuses.
Method: the command as a user runs it, short, on a trained tiny model; times are not looked at.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
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


def test_benchmark_of_capture_times_an_engine_with_and_without_the_connector() -> None:
    words = ["--model", str(ROOT / "engine_adapter" / "models" / "recall"), "--eager", "--json"]
    words += ["--pairs", "1", "--repeats", "2", "--prompt-tokens", "200", "--answer-tokens", "8"]
    command = [sys.executable, "-m", "benchmarks.engine.capture", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    document: dict[str, Any] = json.loads(done.stdout)
    prompts = 2 * 2  # two rounds, of which one warms up
    assert document["lookups"] == prompts  # none but the side that has the connector
    assert document["blocks_sealed"] > 0 == document["blocks_sealed"] % (prompts * 3)  # whole pages
    for phase in ("prefill", "decode_step", "usual_step"):
        assert document[phase]["ratio"]["mean"] > 0
