"""Goal: figures of the engine benchmark say what the samples say.
Method: samples made by hand; properties of the ratio and its interval over random times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine import figures
from benchmarks.engine.client import Completion
from benchmarks.engine.figures import Sample, by_depth, mean_ratio, median_ratio, reuse_of
from benchmarks.engine.report import depth_table, quality_table, render, told

TIMES = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=20)


def sample(
    request: int,
    variant: str,
    *,
    shared: int = 1100,
    cached: int | None = 1024,
    first: float = 1.0,
    step: float | None = 0.01,
    measured: bool = True,
) -> Sample:
    completion = Completion(first, first + 1, step, 1200, 8, cached, None, (), "")
    ideal = shared // 64 * 64
    return Sample(request, "branch", variant, 1200, shared, ideal, measured, completion)


BOTH = pytest.mark.parametrize("ratio_of", [median_ratio, mean_ratio])


@BOTH
@given(TIMES, st.floats(0.1, 10), st.integers(0, 2**32))
def test_ratio_of_scaled_times_is_the_scale(
    ratio_of: Callable[..., Any], times: list[float], scale: float, seed: int
) -> None:
    middle, interval = ratio_of([time * scale for time in times], times, seed)
    assert interval is not None
    assert all(math.isclose(value, scale, rel_tol=1e-9) for value in (middle, *interval))


@BOTH
@given(TIMES, st.data())
def test_interval_of_any_pairs_holds_within_their_ratios(
    ratio_of: Callable[..., Any], times: list[float], data: st.DataObject
) -> None:
    others = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(times), max_size=len(times)))
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    middle, interval = ratio_of(times, others, 1)
    assert interval is not None and interval == ratio_of(times, others, 1)[1]
    slack = 1 + 1e-9
    assert min(ratios) / slack <= interval[0] <= interval[1] <= max(ratios) * slack
    assert min(ratios) / slack <= middle <= max(ratios) * slack


def test_interval_of_unlike_pairs_shrinks_with_their_number() -> None:
    few = median_ratio([1.0, 2.0, 3.0, 4.0], [1.0] * 4, 0)[1]
    many = median_ratio([1.0, 2.0, 3.0, 4.0] * 50, [1.0] * 200, 0)[1]
    assert few is not None and many is not None
    assert many[1] - many[0] < few[1] - few[0]


def test_ratio_of_two_pairs_has_no_interval() -> None:
    assert median_ratio([1.0, 3.0], [1.0, 1.0], 0) == (2.0, None)


def test_one_odd_pair_moves_the_mean_and_not_the_median() -> None:
    times = [1.0, 1.0, 1.0, 9.0]
    assert median_ratio(times, [1.0] * 4, 0)[0] == 1.0 and mean_ratio(times, [1.0] * 4, 0)[0] == 3.0


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([1.0], []), ([1.0], [0.0]), ([-1.0], [1.0])]
)
def test_ratio_of_no_pairs_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|zero"):
        median_ratio(ours, theirs, 0)


def test_reuse_beyond_the_ideal_pays_for_no_other_request() -> None:
    found = reuse_of([sample(0, "a", cached=1088), sample(1, "a", shared=640, cached=1000)])
    assert (found["reused_tokens"], found["of_ideal"], found["reached_ideal"]) == (2088, 1.0, 2)
    found = reuse_of([sample(0, "a", cached=1152), sample(1, "a", shared=640, cached=0)])
    assert (found["of_ideal"], found["reached_ideal"]) == (round(1088 / 1728, 4), 1)


def test_reuse_that_is_never_told_is_unknown_and_told_once_is_none_elsewhere() -> None:
    silent = [sample(0, "a", cached=None), sample(1, "a", cached=None)]
    assert reuse_of(silent)["reused_tokens"] is None
    found = figures.with_silence_as_none([*silent, sample(2, "a"), sample(0, "b", cached=None)])
    assert [one.completion.cached_tokens for one in found] == [0, 0, 1024, None]


def test_reuse_without_an_ideal_has_no_share() -> None:
    assert reuse_of([sample(0, "a", shared=10, cached=0)])["of_ideal"] is None


def test_depths_hold_both_variants_of_the_same_requests() -> None:
    samples = [
        sample(0, "stock", measured=False),
        sample(0, "ours", measured=False),
        sample(1, "stock", shared=700, first=1.0),
        sample(1, "ours", shared=700, first=0.5),
        sample(2, "ours", shared=1030, first=0.5),  # the answer differed: shares a little more
        sample(2, "stock", shared=1000, first=2.0, step=None),
        sample(3, "stock", shared=1100, first=4.0),
        sample(3, "ours", shared=1100, first=1.0),
    ]
    lines = by_depth(samples, ["stock", "ours"], seed=0)
    assert [(line["depth"], line["pairs"]) for line in lines] == [
        ("512-1023", 2),
        ("1024-2047", 1),
        ("all", 3),
    ]
    every = lines[-1]["variants"]
    assert every["stock"]["ttft_ms"] == {"p50": 2000.0, "p90": 3600.0}
    assert every["ours"]["ttft_ratio"]["median"] == 0.25
    assert "ttft_ratio" not in every["stock"]
    assert lines[0]["variants"]["ours"]["decode_step_ratio"] == {
        "median": 1.0,
        "interval_95": None,
    }
    assert {"stock", "ours", "0.250", "512-1023"} <= set(depth_table(lines).split())


def test_depths_of_an_unpaired_variant_are_refused() -> None:
    with pytest.raises(AssertionError, match="pairs"):
        by_depth([sample(1, "stock"), sample(2, "stock"), sample(1, "ours")], ["stock", "ours"], 0)


def test_report_says_what_is_not_told() -> None:
    lines = by_depth([sample(1, "a", cached=None, step=None)], ["a"], 0)
    trace = {
        "kind": "branches",
        "seed": 3,
        "requests": 1,
        "context_tokens": 1200,
        "page_tokens": 64,
        "margin_tokens": 0,
        "prefill_1024_seconds": {"a": 1.25},
    }
    counters = {"a": {"vllm:prefix_cache_hits_total": 7.0, "vllm:prompt_tokens_total": 9.0}}
    shown = render({"trace": trace, "depths": lines, "counters": counters})
    assert "not told" in shown and "1.250 s" in shown
    assert "prefix_cache_hits_total 7" in shown and "prompt_tokens_total" not in shown


def test_counters_shown_are_those_of_caches() -> None:
    assert told("vllm:external_prefix_cache_hits_total") and told("anchorstore_misses_total")
    assert not told("vllm:request_prefill_kv_computed_tokens_sum")
    assert not told("vllm:request_num_preemptions_sum")


def test_quality_table_has_a_line_a_variant() -> None:
    line = {"exam": "recall", "variant": "exact", "questions": 4, "of_ideal": None}
    line |= {"accuracy": 0.5, "accuracy_kept": 1.0, "bits": 2.0, "bits_to_exact": None}
    shown = quality_table([line, line | {"variant": "zero", "accuracy": 0.25}])
    assert [row.split()[:2] for row in shown.splitlines()[2:]] == [
        ["recall", "exact"],
        ["recall", "zero"],
    ]
