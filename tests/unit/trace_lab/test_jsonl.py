"""Goal: a file of requests becomes their trace, and anything else is refused by line and reason.
Method: small files of each format, what they share compared with brute force, and broken ones.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trace.jsonl import LINE_BYTES_MAX, TraceError, read_trace
from benchmarks.trace.trace import Trace, seen_before

PAGE = 4


def written(folder: pathlib.Path, *lines: Any) -> pathlib.Path:
    """A file of these lines: text as it is, anything else as JSON."""
    file = folder / "trace.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts) + "\n")
    return file


def paths(trace: Trace) -> list[list[int]]:
    """The pages of every request."""
    return [trace.path(request).tolist() for request in range(len(trace))]


PROMPTS = st.lists(
    st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=14), min_size=1, max_size=6
)


@given(PROMPTS)
def test_tokens_of_any_prompts_share_what_their_tokens_share(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    trace = read_trace(written(folder, *({"tokens": prompt} for prompt in prompts)), PAGE)
    for request, seen in enumerate(seen_before(trace).tolist()):
        mine = prompts[request]
        shared = 0
        for other in prompts[:request]:
            pages = [mine[at : at + PAGE] == other[at : at + PAGE] for at in range(0, 14, PAGE)]
            whole = min(len(mine) - 1, len(other)) // PAGE
            count = next((n for n, same in enumerate(pages) if not same), len(pages))
            shared = max(shared, min(count, whole))
        assert seen == shared


def test_answers_of_a_request_are_kept_but_for_their_last_token(tmp_path: pathlib.Path) -> None:
    file = written(
        tmp_path,
        {"tokens": [1, 2, 3, 4, 5], "answer": [6, 7, 8], "seconds": 1},
        {"tokens": [1, 2, 3, 4, 5], "answer": [6, 7, 8, 9], "seconds": 2.5, "priority": 7},
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
    )
    trace = read_trace(file, PAGE)
    assert paths(trace) == [[0], [0, 1], [0, 1]]
    assert trace.usable.tolist() == [1, 1, 2]
    assert trace.seconds.tolist() == [1.0, 2.5, 2.5]
    assert trace.priorities.tolist() == [0, 7, 0]


def test_pages_of_a_prompt_are_usable_up_to_its_last_token(tmp_path: pathlib.Path) -> None:
    file = written(
        tmp_path,
        {"pages": ["a", "b", 7]},
        {"pages": ["a", "b", 7], "prompt_tokens": 8},
        {"pages": ["a", "c"], "prompt_tokens": 9, "seconds": 0},
    )
    trace = read_trace(file, PAGE)
    assert paths(trace) == [[0, 1, 2], [0, 1, 2], [0, 3]]
    assert trace.usable.tolist() == [3, 1, 2]


def test_blocks_of_a_mooncake_trace_are_kept_where_whole(tmp_path: pathlib.Path) -> None:
    line = {"timestamp": 1500, "input_length": 9, "output_length": 3, "hash_ids": [0, 1, 2]}
    trace = read_trace(written(tmp_path, line, line | {"input_length": 12}), PAGE)
    assert paths(trace) == [[0, 1], [0, 1, 2]]
    assert trace.usable.tolist() == [2, 2]
    assert trace.seconds.tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        pytest.param(["{"], 1, "no JSON", id="no-json"),
        pytest.param([""], 1, "no JSON", id="blank-line"),
        pytest.param([[1]], 1, "must be an object", id="no-object"),
        pytest.param([{"seconds": 1}], 1, "must have one of", id="no-format"),
        pytest.param([{"tokens": [1], "pages": [1]}], 1, "only one", id="two-formats"),
        pytest.param([{"tokens": [1]}, {"pages": [1]}], 2, "no tokens", id="other-format"),
        pytest.param(['{"tokens": [1], "tokens": [2]}'], 1, "twice", id="field-twice"),
        pytest.param([{"tokens": [1], "note": ""}], 1, "'note'", id="unknown-field"),
        pytest.param([{"tokens": []}], 1, "empty", id="no-tokens"),
        pytest.param([{"tokens": 5}], 1, "must be a list", id="no-list"),
        pytest.param([{"tokens": [1, True]}], 1, "no token id", id="true-token"),
        pytest.param([{"tokens": [1, 2.0]}], 1, "no token id", id="float-token"),
        pytest.param([{"tokens": [1, -1]}], 1, "outside", id="negative-token"),
        pytest.param([{"tokens": [2**31]}], 1, "outside", id="large-token"),
        pytest.param([{"tokens": [1], "seconds": "1"}], 1, "must be a number", id="text-time"),
        pytest.param(['{"tokens": [1], "seconds": NaN}'], 1, "must be a number", id="no-time"),
        pytest.param([{"tokens": [1], "seconds": -1}], 1, "at least 0", id="negative-time"),
        pytest.param(
            ['{"tokens": [1], "seconds": 1' + "0" * 400 + "}"], 1, "at most 1e+12", id="late-time"
        ),
        pytest.param(['{"pages": [1' + "0" * 5000 + "]}"], 1, "no JSON", id="number-without-end"),
        pytest.param(["[" * 100_000], 1, "no JSON", id="deep"),
        pytest.param([{"tokens": [1], "priority": 1.5}], 1, "whole number", id="broken-priority"),
        pytest.param([{"pages": [1], "priority": 2**15}], 1, "32767", id="large-priority"),
        pytest.param(
            [{"tokens": [1], "seconds": 2}, {"tokens": [1], "seconds": 1}],
            2,
            "1 s before the line above",
            id="time-falls",
        ),
        pytest.param([{"pages": [""]}], 1, "no name of a page", id="empty-name"),
        pytest.param([{"pages": [-1]}], 1, "no name of a page", id="negative-name"),
        pytest.param([{"pages": ["x" * 129]}], 1, "no name of a page", id="long-name"),
        pytest.param(
            [{"pages": ["a", "b"]}, {"pages": ["c", "b"]}], 2, "follows another", id="two-parents"
        ),
        pytest.param([{"pages": ["a", "a"]}], 1, "follows another", id="its-own-parent"),
        pytest.param([{"pages": ["a"], "prompt_tokens": 8}], 1, "no more whole", id="too-long"),
        pytest.param([{"pages": ["a"], "prompt_tokens": 0}], 1, "at least 1", id="no-prompt"),
        pytest.param(
            [{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}],
            1,
            "--page-tokens",
            id="other-block-size",
        ),
        pytest.param(
            [{"timestamp": 0, "input_length": 4, "hash_ids": [1]}],
            1,
            "output_length is None",
            id="field-missing",
        ),
    ],
)
def test_read_of_a_broken_file_names_line_and_reason(
    tmp_path: pathlib.Path, lines: list[Any], line: int, reason: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(written(tmp_path, *lines), PAGE)
    assert f"line {line}: " in str(caught.value) and reason in str(caught.value)


def test_read_of_no_file_or_an_empty_one_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "missing.jsonl", PAGE)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(TraceError, match="is empty"):
        read_trace(tmp_path / "empty.jsonl", PAGE)


def test_read_of_a_line_without_end_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "long.jsonl"
    with file.open("wb") as sparse:
        sparse.truncate(LINE_BYTES_MAX + 2)
    with pytest.raises(TraceError, match="longer than"):
        read_trace(file, PAGE)
