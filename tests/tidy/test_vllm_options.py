"""Goal: docs/vllm.md names every extra config with the default and the range that the code has.
Method: its table, row by row, beside the dataclass and its ranges.
"""

from __future__ import annotations

import dataclasses
import pathlib

from engine_adapter.vllm.settings import ANCHOR_DTYPES, RANGES, STRATEGIES, WORD_BYTES, Settings

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAID_IN_WORDS = {"daemon", "model", "token", "kv_shards"}
"""Their defaults are no value, or one that stands for a rule."""


def documented() -> dict[str, tuple[str, str]]:
    """(default, values) by key."""
    text = (ROOT / "docs/vllm.md").read_text()
    _, _, table = text.partition(
        "| extra config | default | values | meaning |\n|---|---|---|---|\n"
    )
    table, _, _ = table.partition("\n\n")
    found = {}
    for row in table.splitlines():
        _, key, default, values, meaning, _ = (cell.strip() for cell in row.split("|"))
        assert meaning, row
        found[key.strip("`")] = default.strip("`"), values
    return found


def values_of(name: str) -> str:
    """What the table must say, where the code has it."""
    words = {"strategy": STRATEGIES, "anchor_dtype": ANCHOR_DTYPES}
    if name in RANGES:
        return "{} to {}".format(*RANGES[name])
    if name in words:
        return ", ".join(f"`{word}`" for word in words[name])
    if name in ("daemon", "model", "token"):
        return f"at most {WORD_BYTES} bytes"
    return {"page_tokens": "at least 1", "rows_per_page": "1 to `page_tokens`", "ratio": "0 to 1"}[
        name
    ]


def test_table_of_extra_configs_is_the_code() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    found = documented()
    assert list(found) == list(fields)
    for name, (default, values) in found.items():
        assert values == values_of(name), name
        if name not in SAID_IN_WORDS:
            is_seconds = name.endswith("seconds")
            assert default == (f"{fields[name]:g}" if is_seconds else str(fields[name])), name
