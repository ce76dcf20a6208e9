"""Goal: a trace sent to a real daemon spares what its pages share, request by request what the core
in simulated time spares; no daemon is no result.

Method: the lab's command line against daemons with small pools; a model whose pages are small.
Where both are compared nothing goes ahead of need, as housekeeping keeps its own time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from benchmarks.trace.caches import Cache, Loss
from benchmarks.trace.cli import main
from benchmarks.trace.core import StoreCache, store_config
from benchmarks.trace.daemon import DaemonCache, settings_of
from benchmarks.trace.kinds import generate
from benchmarks.trace.memory import parse_capacity
from benchmarks.trace.sizes import sizes_of_model
from benchmarks.trace.trace import Trace, seen_before
from benchmarks.trace.variants import parse_variant

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


def hits(cache: Cache, trace: Trace) -> list[int]:
    """Pages spared, request by request."""
    served = [cache.serve(request, seen) for request, seen in enumerate(seen_before(trace))]
    assert any(one.lost.get(Loss.EVICTED, 0) for one in served), "without pressure, no comparison"
    return [one.hit_pages for one in served]


@pytest.mark.parametrize("policy", ["lru", "slru", "priority", "segment-length"])
def test_daemon_under_pressure_spares_what_the_simulated_core_does(
    tmp_path: pathlib.Path, model: str, policy: str
) -> None:
    sizes, variant = sizes_of_model(pathlib.Path(model), 64), parse_variant(policy)
    trace = generate("branches", 40, seed=3, page_tokens=64)
    memory = parse_capacity("1/3").of(trace.distinct * sizes.page_bytes)
    config = dataclasses.replace(store_config(memory, sizes, variant), high_watermark=1.0)
    simulated = StoreCache(trace, sizes, memory, variant, 1, config=config)
    settings = settings_of(memory, sizes, variant, tmp_path)
    settings["tiers.dram.high_watermark"] = "1.0"
    with Daemon(tmp_path / "daemon", settings=settings) as daemon:
        real = DaemonCache(trace, sizes, daemon.address, margin_pages=1)
        with contextlib.closing(real):
            assert hits(real, trace) == hits(simulated, trace)


def test_daemon_that_the_lab_starts_has_the_tiers_of_a_simulated_one(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trace", "cuts", "--requests", "20", "--model", model, "--daemon", "--json"]
    words += ["--capacity", "2", "--capacity", "2+2", "--policy", "lfu"]
    assert main(words) == 0
    [trace] = json.loads(capsys.readouterr().out)["traces"]
    assert [(line["capacity"], line["cache"]) for line in trace["caches"]] == [
        ("2", "daemon lfu"),
        ("2+2", "daemon lfu"),
    ]
    assert {line["hit_pages"] for line in trace["caches"]} == {trace["infinite"]["hit_pages"]}


def test_daemon_that_the_lab_cannot_start_is_an_error(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--trace", "cuts", "--requests", "20", "--model", model, "--daemon"]
    assert main([*words, "--capacity", "1+1", "--policy", "lru+size"]) == 0
    assert main([*words, "--capacity", "900", "--policy", "ttl=1000000000"]) == 1
    captured = capsys.readouterr()
    assert "no daemon of 900" in captured.err and "tiers.dram.ttl" in captured.err
