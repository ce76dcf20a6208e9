"""Goal: the command line runs a lab from end to end, and its report, JSON and picture agree.
Method: small runs in this process; what they print is read back.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import pytest

from benchmarks.trace.caches import Loss
from benchmarks.trace.cli import main, make_parser, run
from benchmarks.trace.kinds import KINDS
from benchmarks.trace.plot import PlotError, check_plot, draw
from benchmarks.trace.report import render

SMALL = ["--trace", "branches", "--requests", "30", "--capacity", "1/4", "--capacity", "1/4+1"]
SMALL += ["--policy", "lru", "--policy", "lru+demote"]
PNG = b"\x89PNG\r\n"


def document_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a run prints with --json."""
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """The document of a small run, without a margin: then Belady's line is an optimum."""
    return run(make_parser().parse_args([*SMALL, "--margin-pages", "0"]))


def test_document_of_a_small_run_adds_up(small: dict[str, Any]) -> None:
    [trace] = small["traces"]
    assert trace["requests"] == 30 and trace["trace"] == "branches"
    assert {line["capacity"] for line in trace["caches"]} == {"1/4", "1/4+1"}
    ours = [line["cache"] for line in trace["caches"] if line["cache"].startswith("anchorstore")]
    assert ours == ["anchorstore lru", "anchorstore lru", "anchorstore lru+demote"]
    for line in [trace["infinite"], *trace["caches"]]:
        lost = sum(line["lost_pages"].values())
        assert line["hit_pages"] + lost + trace["new_pages"] == trace["usable_pages"]
        assert line["hit_rate"] == line["hit_pages"] / trace["usable_pages"]
        depth = line["hit_depth_tokens"]
        assert 64 <= depth["p50"] <= depth["p90"] <= 36_000 + 1500
        assert set(line["lost_pages"]) <= {reason.value for reason in Loss}


def test_document_of_a_small_run_has_no_policy_above_the_optimum(small: dict[str, Any]) -> None:
    [trace] = small["traces"]
    ours = [line for line in trace["caches"] if line["cache"].startswith("anchorstore")]
    optimum = {line["capacity"]: line for line in trace["caches"] if line["cache"] == "belady"}
    assert ours
    for line in ours:
        best = optimum[line["capacity"]]["hit_pages"]
        assert line["hit_pages"] <= best <= trace["infinite"]["hit_pages"]


def test_report_of_a_small_run_names_every_cache(small: dict[str, Any]) -> None:
    rows = [row for row in render(small).splitlines() if row.strip()]
    [trace] = small["traces"]
    for line in trace["caches"]:
        share = f"{100 * line['hit_rate']:.1f} %"
        assert any(
            row.split()[0] == line["capacity"] and line["cache"] in row and share in row
            for row in rows
        )


def test_run_of_a_file_names_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [{"tokens": [*range(64 * 40), turn, 5]} for turn in range(4)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--jsonl", str(file), "--capacity", "2", "--policy", "lru", "--margin-pages", "3"]
    [trace] = document_of(capsys, *words)["traces"]
    assert trace["trace"] == "mine.jsonl"
    assert trace["infinite"]["hit_pages"] == 3 * (40 - 3)
    assert trace["infinite"]["lost_pages"] == {"margin": 3 * 3}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--jsonl", "/nowhere/trace.jsonl"], "cannot read"),
        (["--model", "/nowhere/config.json"], "cannot read"),
        (["--trace", "agents", "--requests", "5", "--capacity", "1/1000"], "are needed"),
        ([*SMALL, "--plot", "picture.pdf"], "must end with .png"),
        ([*SMALL, "--plot", "/nowhere/at/all/picture.png"], "is no directory"),
    ],
)
def test_run_that_cannot_be_says_why(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    captured = capsys.readouterr()
    assert reason in captured.err and not captured.out


@pytest.mark.parametrize(
    "words",
    [
        ["--capacity", "0"],
        ["--capacity", "x"],
        ["--requests", "0"],
        ["--trace", "other"],
        ["--policy", "other"],
        ["--policy", "lru+other"],
    ],
)
def test_wrong_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_plot_without_matplotlib_is_refused_before_anything_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotError, match="pip install matplotlib"):
        check_plot(tmp_path / "picture.png")


def test_plot_of_a_small_run_is_a_picture(tmp_path: pathlib.Path, small: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    document = small | {"traces": [small["traces"][0] | {"trace": kind} for kind in KINDS]}
    picture = tmp_path / "picture.png"
    draw(document, picture)
    assert picture.read_bytes().startswith(PNG)
    texts = []
    for name in ("one.svg", "two.svg"):
        draw(document, tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1] and "<svg" in texts[0], "the same document, the same picture"


def test_lab_without_plot_needs_no_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--trace", "agents", "--requests", "8", "--capacity", "1", "--policy", "lru"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "agents: 8 requests" in captured.out
    assert "anchorstore lru: " in captured.err and "spared" in captured.err
