"""Goal: what an endpoint sends is understood or refused with the reason, whatever it sends.
Method: worked streams cut at random places, then hostile bytes: a value or EndpointError.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine import metrics
from benchmarks.engine.client import Reading
from benchmarks.engine.events import Chunk, EndpointError, EventParser, Usage, chunk_of

COUNTS = ["prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens"]
NAMES = st.sampled_from(
    [*COUNTS, "choices", "usage", "text", "token_ids", "logprobs", "top_logprobs", "error", "t1"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def fed(stream: bytes, cuts: list[int], limit: int = 1000) -> list[str]:
    """Events of a stream that arrives in pieces."""
    parser, found, last = EventParser(limit), [], 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        found += parser.feed(stream[last:cut])
        last = cut
    return found


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1),
        max_size=5,
    ),
    st.lists(st.integers(0, 10**6), max_size=6),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_in_any_pieces_are_the_ones_sent(
    events: list[str], cuts: list[int], end: str
) -> None:
    stream = "".join(f": ping{end}data: {event}{end}id: 7{end}{end}" for event in events)
    assert fed(stream.encode(), cuts, limit=10**6) == events


def test_event_of_several_lines_is_one() -> None:
    assert fed(b"data: a\ndata:b\n\ndata: unfinished\n", []) == ["a\nb"]


@given(st.binary(max_size=300), st.lists(st.integers(0, 10**6), max_size=4))
def test_hostile_bytes_give_events_or_are_refused(stream: bytes, cuts: list[int]) -> None:
    with contextlib.suppress(EndpointError):
        assert all(isinstance(event, str) for event in fed(stream, cuts))


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b"data: yy\n" * 100])
def test_event_without_end_is_refused_at_the_limit(stream: bytes) -> None:
    with pytest.raises(EndpointError, match="longer than 100 bytes"):
        fed(stream, [], limit=100)


def test_chunk_of_a_token_says_all_of_it() -> None:
    choice = {
        "text": " t7",
        "token_ids": [7],
        "logprobs": {"top_logprobs": [{"token_id:7": -0.5, "token_id:9": -2}]},
    }
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    assert chunk_of(json.dumps({"choices": [choice], "usage": usage})) == Chunk(
        has_token=True,
        text=" t7",
        token_ids=(7,),
        top_logprobs=({"token_id:7": -0.5, "token_id:9": -2.0},),
        usage=Usage(100, 1, 64),
    )


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": None, "usage": None},
        {"choices": [{"text": "", "token_ids": [], "logprobs": None}]},
    ],
)
def test_chunk_without_a_token_is_told_apart(event: dict[str, Any]) -> None:
    assert not chunk_of(json.dumps(event)).has_token


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("nonsense", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "list, not an object"),
        ('{"error": {"message": "out of memory"}}', "gave up: out of memory"),
        ('{"error": "why"}', "gave up: why"),
        ('{"choices": 7}', "choices = 7"),
        ('{"choices": [7]}', "no object"),
        ('{"choices": [{"text": 7}]}', "text = 7"),
        ('{"choices": [{"token_ids": ["7"]}]}', "token id '7'"),
        ('{"choices": [{"token_ids": [-1]}]}', "token id -1"),
        ('{"choices": [{"token_ids": [true]}]}', "token id True"),
        ('{"choices": [{"logprobs": {"top_logprobs": [{"a": null}]}}]}', "no logprob for a"),
        ('{"choices": [{"logprobs": {"top_logprobs": [{"a": NaN}]}}]}', "no logprob for a"),
        ('{"usage": {"prompt_tokens": "many"}}', "prompt_tokens = 'many'"),
        ('{"usage": {"prompt_tokens": true}}', "prompt_tokens = True"),
        ('{"usage": {"prompt_tokens_details": {"cached_tokens": -1}}}', "cached_tokens = -1"),
    ],
)
def test_chunk_that_cannot_be_read_is_refused(data: str, reason: str) -> None:
    with pytest.raises(EndpointError, match=reason):
        chunk_of(data)


@given(st.dictionaries(NAMES, JSON, max_size=5) | JSON)
def test_any_json_is_a_chunk_or_refused(event: object) -> None:
    with contextlib.suppress(EndpointError):
        assert isinstance(chunk_of(json.dumps(event)), Chunk)


# ---- metrics ----

PAGE = b"""# HELP vllm:hits_total hits
# TYPE vllm:hits_total counter
vllm:hits_total{engine="0",model_name="m",source="host"} 5
vllm:hits_total{engine="0",model_name="m",source="disk"} 2
# TYPE vllm:hits_created gauge
vllm:hits_created{engine="0"} 1.7e9
# TYPE step_seconds histogram
step_seconds_bucket{le="1.0"} 3
step_seconds_bucket{le="+Inf"} 4
step_seconds_sum 2.5
step_seconds_count 4
# TYPE http_requests_total counter
http_requests_total 9
"""


def test_metrics_page_gives_counters_and_sums_only() -> None:
    assert metrics.parse(PAGE) == {
        "vllm:hits_total{source=host}": 5,
        "vllm:hits_total{source=disk}": 2,
        "step_seconds_sum": 2.5,
        "step_seconds_count": 4,
    }


def test_moved_tells_growth_and_restarts_only() -> None:
    before = {"a": 1.0, "b": 5.0, "same": 2.0, "gone": 1.0}
    assert metrics.moved(before, {"a": 4.0, "b": 3.0, "same": 2.0, "new": 1.0}) == {
        "a": 3.0,
        "b": 3.0,
        "new": 1.0,
    }


@pytest.mark.parametrize("page", [b"\xff", b'x{a="} 1', b"x{ 1\n", b"x one\n", b"# TYPE x\nx\n"])
def test_metrics_page_that_is_none_is_refused(page: bytes) -> None:
    with pytest.raises(EndpointError, match="/metrics"):
        metrics.parse(page)


@given(
    st.binary(max_size=200)
    | st.text(st.sampled_from('# TYPEHLcounter_totl{}=",\\x1.5e+NaInf\n '), max_size=80).map(
        str.encode
    )
)
def test_hostile_metrics_give_numbers_or_are_refused(page: bytes) -> None:
    with contextlib.suppress(EndpointError):
        assert all(isinstance(value, float) for value in metrics.parse(page).values())


@given(st.integers(0, len(PAGE) - 1), st.binary(min_size=1, max_size=3))
def test_damaged_metrics_give_numbers_or_are_refused(at: int, damage: bytes) -> None:
    page = PAGE[:at] + damage + PAGE[at + len(damage) :]
    with contextlib.suppress(EndpointError):
        assert all(isinstance(value, float) for value in metrics.parse(page).values())


@pytest.mark.parametrize(
    ("arrivals", "step"), [((1.0, 1.5, 2.0), 0.5), ((1.0, 1.0, 1.0), None), ((1.0,), None)]
)
def test_time_of_a_step_is_told_only_where_tokens_came_apart(
    arrivals: tuple[float, ...], step: float | None
) -> None:
    reading = Reading(started=0.5)
    for now in arrivals:
        reading.add(Chunk(has_token=True, token_ids=(7,)), now)
    found = reading.completion(now=2.5)
    assert (found.first_token_seconds, found.decode_step_seconds) == (0.5, step)
