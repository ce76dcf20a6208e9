"""Goal: a trace sent to a real daemon spares what its pages share, and no daemon is no result.
Method: the lab's command line against daemons with small pools; a model whose pages are small.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from benchmarks.trace.cli import main

TINY = {
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


@pytest.fixture
def model(tmp_path: pathlib.Path) -> str:
    """A config whose pages take a few KiB."""
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    return str(file)


def served(capsys: pytest.CaptureFixture[str], address: str, model: str) -> dict[str, Any]:
    """The one trace of a small run."""
    words = ["--trace", "branches", "--requests", "25", "--model", model, "--daemon", address]
    assert main([*words, "--json"]) == 0
    [trace] = json.loads(capsys.readouterr().out)["traces"]
    found: dict[str, Any] = trace
    return found


def test_daemon_with_room_spares_all_that_is_shared(
    tmp_path: pathlib.Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tiers.dram.capacity": "64MiB", "tiers.dram.anchor_share": "0.5"}
    with Daemon(tmp_path / "daemon", settings=settings) as daemon:
        trace = served(capsys, daemon.address, model)
    [line] = trace["caches"]
    assert line["cache"] == "daemon"
    assert line["hit_pages"] == trace["infinite"]["hit_pages"] > 0
    assert line["moved_bytes"]["daemon read"] > line["hit_pages"] * 4096


def test_daemon_too_small_says_what_it_lost(
    tmp_path: pathlib.Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tiers.dram.capacity": "4MiB", "tiers.dram.segment": "256KiB"}
    with Daemon(tmp_path / "daemon", settings=settings) as daemon:
        trace = served(capsys, daemon.address, model)
    [line] = trace["caches"]
    assert line["hit_pages"] < trace["infinite"]["hit_pages"]
    lost = sum(line["lost_pages"].values())
    assert line["hit_pages"] + lost + trace["new_pages"] == trace["usable_pages"]
    assert line["lost_pages"]["evicted"] > 0


def test_daemon_that_is_not_there_is_an_error(
    tmp_path: pathlib.Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"unix://{tmp_path}/nobody.sock"
    words = ["--trace", "agents", "--requests", "5", "--model", model, "--daemon", address]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert f"no daemon at {address}" in captured.err and not captured.out
