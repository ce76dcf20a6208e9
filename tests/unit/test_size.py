"""Goal: `anchorstore size` prints right figures for ten known models, and clear errors.

Method: the published table of the ten models, as printed, is compared number by number with what
the command computes from their configs, each rounded as the table rounds it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
from typing import Any

import pytest

from anchorstore.cli import size
from anchorstore.errors import ModelError
from anchorstore.families import spec_from_config

CONFIGS = pathlib.Path(__file__).resolve().parents[1] / "data" / "configs"
# model | D | linear/attention | G (stored) | KV B/token | checkpoint MiB (recurrent + conv)
# | checkpoint/8192 B | anchor B/token dense | at 1/16 | ratio | r_max | page KiB KV/4 rows/dense
TABLE = """
Qwen3.5-4B|2560|24/8|8 (7)|32768|49.1 (48 + 1.12)|6288|35840|2240|0.356|11|2048 / 140 / 2240
Qwen3.5-9B|4096|24/8|8 (7)|32768|49.1|6288|57344|3584|0.570|7|2048 / 224 / 3584
Qwen3.6-27B|5120|48/16|16 (15)|65536|146.8 (144 + 2.8)|18792|153600|9600|0.511|7|4096 / 600 / 9600
OLMo-Hybrid-7B|3840|24/8|8 (7)|122880|52.2 (50.6 + 1.6)|6682|53760|3360|0.503|7|7680 / 210 / 3360
Qwen3-Next-80B-A3B|2048|36/12|12 (11)|24576|73.7|9432|45056|2816|0.299|13|1536 / 176 / 2816
Kimi-Linear-48B-A3B|2304|20/7|7 (6)|8064|41.4|5300|27648|1728|0.326|12|504 / 108 / 1728
Nemotron-H-8B|4096|24/4|5 (4)|16384|97.4|12468|32768|2048|0.164|24|1024 / 128 / 2048
Nemotron-3-Nano-30B-A3B|2688|23/6|7 (6)|6144|46.8|5992|32256|2016|0.336|11|384 / 126 / 2016
Granite-4.0-H-Tiny|1536|36/4|5 (4)|8192|54.7|7000|12288|768|0.110|36|512 / 48 / 768
Granite-4.0-H-Small|4096|36/4|5 (4)|16384|145.7|18655|32768|2048|0.110|36|1024 / 128 / 2048
"""
ROWS = [line.split("|") for line in TABLE.strip().splitlines()]
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parser = argparse.ArgumentParser()
    size.add_parser(parser.add_subparsers())
    assert size.run(parser.parse_args(["size", *arguments])) == 0
    return capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found = json.loads(run(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def as_printed(values: list[float], cells: list[str]) -> list[str]:
    """`values` rounded to the decimals of the numbers in `cells`."""
    numbers = NUMBER.findall(" ".join(cells))
    assert len(numbers) <= len(values), cells
    return [
        f"{value:.{len(number.partition('.')[2])}f}"
        for value, number in zip(values, numbers, strict=False)
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_size_of_a_known_model_is_the_published_row(
    row: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *cells = row
    found = report(capsys, "--model", str(CONFIGS / f"{name}.json"))
    mib, kib = 2**20, 2**10
    checkpoint = [found[f"{part}_bytes"] / mib for part in ("checkpoint", "recurrent", "conv")]
    values = [
        found["hidden"],
        found["linear_layers"],
        found["attention_layers"],
        found["groups"],
        found["stored_groups"],
        found["kv_bytes_per_token"],
        *checkpoint[: len(NUMBER.findall(cells[4]))],
        found["checkpoint_bytes_per_token"],
        found["dense_anchor_bytes_per_token"],
        found["anchor_bytes_per_token"],
        found["anchor_to_checkpoint_ratio"],
        found["rows_per_page_max"],
        *(found["page_bytes"][part] / kib for part in ("kv", "anchor", "dense_anchor")),
    ]
    assert as_printed(values, cells) == NUMBER.findall(" ".join(cells))
    assert found["model"] == name
    assert found["kv_is_latent"] == (name == "Kimi-Linear-48B-A3B")


def test_size_table_covers_every_config() -> None:
    assert {row[0] for row in ROWS} == {path.stem for path in CONFIGS.glob("*.json")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_size_in_text_shows_the_figures_of_the_json(
    row: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", str(CONFIGS / f"{row[0]}.json"), "--rows", "8", "--context", "100000")
    found, text = report(capsys, *model), run(capsys, *model)
    page, context = found["page_bytes"], found["context"]
    share = found["anchor_share"]
    assert share == page["anchor"] / (page["anchor"] + page["kv"])
    for line in (
        f"groups (stored)  {found['groups']} ({found['stored_groups']})",
        f"anchor B/token, 8 of 64 rows  {found['anchor_bytes_per_token']:.0f}",
        f"ratio anchors/checkpoints, 8 of 64 rows  {found['anchor_to_checkpoint_ratio']:.3f}",
        f"page KiB: anchors, 8 of 64 rows  {page['anchor'] / 1024:g}",
        f"share of the pool: anchors, KV; 8 of 64 rows  {share:.3f}, {1 - share:.3f}",
        f"context of 100,000 tokens, {context['pages']:,} whole pages",
    ):
        assert line in re.sub(r" {2,}", "  ", text), text


def test_size_of_a_context_counts_whole_pages(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIGS / "Qwen3.5-4B.json")
    found = report(capsys, "--model", config, "--context", "40000")
    assert found["context"] == {
        "tokens": 40_000,
        "pages": 625,
        "kv_bytes": 625 * 2048 * 1024,
        "anchor_bytes": 625 * 140 * 1024,
        "dense_anchor_bytes": 625 * 2240 * 1024,
        "checkpoints_bytes": 4 * found["checkpoint_bytes"],
        "checkpoint_every_page_bytes": 625 * found["checkpoint_bytes"],
    }
    assert "context" not in report(capsys, "--model", config)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_size_at_most_rows_is_the_last_ratio_below_one(row: list[str]) -> None:
    spec = spec_from_config(size.read_config(CONFIGS / f"{row[0]}.json"))
    most = size.Sizes(spec, rows=1).rows_max
    assert size.Sizes(spec, most).ratio <= 1
    assert most == 64 or size.Sizes(spec, most + 1).ratio > 1


def test_size_of_a_directory_reads_its_config(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text((CONFIGS / "Qwen3.5-4B.json").read_text())
    by_folder = report(capsys, "--model", str(folder))
    by_file = report(capsys, "--model", str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder["model"] == "my-model"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds a list"),
        (b" " * (size.CONFIG_BYTES_MAX + 1), f"limit {size.CONFIG_BYTES_MAX}"),
        (b'{"model_type": "llama", "num_attention_heads": 8}', "plain prefix caching"),
        (b'{"model_type": "banana"}', "banana: this model_type is not known; supported are bamba"),
        (b"{}", "model_type is missing"),
    ],
    ids=["absent", "half", "utf16", "deep", "list", "huge", "llama", "unknown", "empty"],
)
def test_size_of_a_bad_config_says_why(
    content: bytes | None, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        run(capsys, "--model", str(file))


@pytest.mark.parametrize(
    "arguments",
    [("--rows", "0"), ("--rows", "65"), ("--rows", "x"), ("--context", "0"), ("--context", "1e9")],
    ids=" ".join,
)
def test_size_with_a_number_out_of_range_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "--model", str(CONFIGS / "Qwen3.5-4B.json"), *arguments)
    assert arguments[0] in capsys.readouterr().err
