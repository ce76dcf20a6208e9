"""Goal: `anchorstore demo` does what the README shows: serve, share, resume, with controls.

Method: the command with a short text; the arithmetic of reuse is recomputed from the requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

FIELDS = {"prompt_tokens", "shared_tokens", "reused_tokens", "rows_replayed"}
FIELDS |= {"ttft_cold_s", "ttft_warm_s", "top1_agreement", "mean_kl"}
FIELDS |= {"zero_state_top1_agreement", "zero_state_mean_kl"}
FIELDS |= {"kv_only_top1_agreement", "kv_only_mean_kl"}


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anchorstore", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    short = ["--prompt-tokens", "2000", "--turns", "2", "--turn-tokens", "200", "--requests", "3"]
    done = demo("--json", *short)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_request_reuses_the_page_floored_prefix_less_the_margin(
    document: dict[str, Any],
) -> None:
    margin = document["resume_margin_tokens"]
    assert len(document["requests"]) == 3
    for request in document["requests"]:
        assert set(request) >= FIELDS
        shared = min(request["shared_tokens"], request["prompt_tokens"] - 1)
        assert request["reused_tokens"] == shared // 64 * 64 - margin
        wanted = -(-request["reused_tokens"] // 20)
        assert request["rows_replayed"] == min(wanted, document["k_max"])
        assert request["miss"] == ""


def test_resumed_requests_agree_with_a_full_prefill_and_beat_the_zero_state(
    document: dict[str, Any],
) -> None:
    requests = document["requests"]

    def mean(key: str) -> float:
        return float(sum(request[key] for request in requests) / len(requests))

    assert mean("top1_agreement") >= 0.95
    assert mean("mean_kl") < mean("zero_state_mean_kl")
    assert mean("no_margin_mean_kl") < mean("zero_state_mean_kl")


def test_daemon_s_holdings_are_told(document: dict[str, Any]) -> None:
    assert (document["rows_per_page"], document["k_max"]) == (4, 512)
    parts = {part["component"]: part for part in document["daemon"]["tiers"][0]["components"]}
    assert parts["anchor"]["blocks"] == parts["kv"]["blocks"] == document["daemon"]["pages"] > 30


def test_pages_of_both_engines_are_those_that_the_daemon_holds(document: dict[str, Any]) -> None:
    added = sum(request["pages_sealed"] for request in document["requests"])
    assert document["pages_sealed"] + added == document["daemon"]["pages"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--text", "/nowhere/text.txt"], "/nowhere/text.txt"),
        (["--model", "/nowhere/model"], "/nowhere/model"),
        (["--prompt-tokens", "100000000"], "100000"),
        (["--margin", "63"], "63"),
        (["--rows", "65"], "65"),
        (["--dram", "many"], "many"),
        (["--requests", "0"], "0 is out of range, must be 1 to"),
        (["--text", sys.executable], "is not UTF-8 text"),
    ],
)
def test_bad_option_is_refused_with_its_value(arguments: list[str], named: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
