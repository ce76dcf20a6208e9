"""From samples to figures: by depth, what was reused of the ideal, and how soon tokens came.

A ratio is of two times of one pair: the same request, sent to both servers one right after the
other.  What is reported is the median over the pairs with the bootstrap's 95 % interval: pairs are
drawn with replacement, so that whatever slowed both of a pair stays together.

Pure: seeded, no clock, no I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.engine.client import Completion
from benchmarks.engine.reuse import depth_label, depth_range

RESAMPLES = 2000
CONFIDENCE = 0.95
PAIRS_FOR_INTERVAL = 3
"""Fewer pairs than these have no interval."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One request of one variant, answered.

    Attributes:
        request: index in the trace.
        name: what the request was.
        variant: who answered.
        prompt_tokens: as sent.
        shared_tokens: longest prefix that this variant had met before.
        ideal_tokens: what page-granular reuse could have taken of it.
    """

    request: int
    name: str
    variant: str
    prompt_tokens: int
    shared_tokens: int
    ideal_tokens: int
    measured: bool
    completion: Completion


Floats = npt.NDArray[np.float64]


def median_ratio(
    ours: Sequence[float], theirs: Sequence[float], seed: int
) -> tuple[float, tuple[float, float] | None]:
    """Median of ours/theirs over the pairs, and its 95 % interval (None: too few pairs).

    ValueError for unequal lengths, none at all, or a time that is not above zero.
    """
    return _middle(ours, theirs, seed, np.median)


def mean_ratio(
    ours: Sequence[float], theirs: Sequence[float], seed: int
) -> tuple[float, tuple[float, float] | None]:
    """The same of the mean: the narrower interval, for times that are means of several already, so
    that no single one can carry it away."""
    return _middle(ours, theirs, seed, np.mean)


def _middle(
    ours: Sequence[float], theirs: Sequence[float], seed: int, middle_of: Callable[..., Any]
) -> tuple[float, tuple[float, float] | None]:
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} times are no pairs")
    if min(*ours, *theirs) <= 0:
        raise ValueError("a time is not above zero")
    ratios: Floats = np.asarray(ours, np.float64) / np.asarray(theirs, np.float64)
    middle = float(middle_of(ratios))
    if len(ratios) < PAIRS_FOR_INTERVAL:
        return middle, None
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    middles = middle_of(ratios[drawn], axis=1)
    low, high = np.quantile(middles, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return middle, (float(low), float(high))


def _milliseconds(times: Sequence[float], fraction: float) -> float:
    return round(float(np.quantile(np.asarray(times), fraction)) * 1e3, 2)


def compared(ours: Sequence[float], theirs: Sequence[float], seed: int) -> dict[str, Any]:
    """Ratio of the times of pairs, as it is reported."""
    return _told("median", *median_ratio(ours, theirs, seed))


def compared_means(ours: Sequence[float], theirs: Sequence[float], seed: int) -> dict[str, Any]:
    """The same of times that are means."""
    return _told("mean", *mean_ratio(ours, theirs, seed))


def _told(word: str, ratio: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    ends = None if interval is None else [round(end, 4) for end in interval]
    return {word: round(ratio, 4), "interval_95": ends}


def reuse_of(samples: Sequence[Sample]) -> dict[str, Any]:
    """Tokens reused, of how many; "of_ideal" counts no request's surplus for another's lack.

    Reused tokens are None where the endpoint tells them for no request.
    """
    told = [sample.completion.cached_tokens for sample in samples]
    ideal = sum(sample.ideal_tokens for sample in samples)
    shared = sum(sample.shared_tokens for sample in samples)
    found: dict[str, Any] = {"shared_tokens": shared, "ideal_tokens": ideal}
    if all(count is None for count in told):
        return found | {"reused_tokens": None, "of_ideal": None, "reached_ideal": None}
    counts = [count or 0 for count in told]
    useful = sum(min(c, s.ideal_tokens) for c, s in zip(counts, samples, strict=True))
    reached = sum(c >= s.ideal_tokens for c, s in zip(counts, samples, strict=True))
    return found | {
        "reused_tokens": sum(counts),
        "of_ideal": round(useful / ideal, 4) if ideal else None,
        "reached_ideal": reached,
    }


def _times(samples: Sequence[Sample]) -> tuple[list[float], list[float | None]]:
    completions = [sample.completion for sample in samples]
    return [c.first_token_seconds for c in completions], [
        c.decode_step_seconds for c in completions
    ]


def line_of(
    samples: Sequence[Sample], yardstick: Sequence[Sample] | None, seed: int
) -> dict[str, Any]:
    """Figures of one variant; ratios against `yardstick`, the same requests of another."""
    first, steps = _times(samples)
    known = [step for step in steps if step is not None]
    found: dict[str, Any] = {"requests": len(samples), **reuse_of(samples)}
    found["ttft_ms"] = {"p50": _milliseconds(first, 0.5), "p90": _milliseconds(first, 0.9)}
    found["decode_step_ms"] = {"p50": _milliseconds(known, 0.5)} if known else None
    if yardstick is None:
        return found
    assert [s.request for s in samples] == [s.request for s in yardstick], "no pairs"
    base_first, base_steps = _times(yardstick)
    found["ttft_ratio"] = compared(first, base_first, seed)
    pairs = [
        (step, base)
        for step, base in zip(steps, base_steps, strict=True)
        if step is not None and base is not None
    ]
    if pairs:
        ours, theirs = zip(*pairs, strict=True)
        found["decode_step_ratio"] = compared(ours, theirs, seed)
    return found


def with_silence_as_none(samples: Sequence[Sample]) -> list[Sample]:
    """Samples in which a variant that told cached tokens once told 0 wherever it was silent."""
    tells = {s.variant for s in samples if s.completion.cached_tokens is not None}
    return [
        dataclasses.replace(
            sample, completion=dataclasses.replace(sample.completion, cached_tokens=0)
        )
        if sample.completion.cached_tokens is None and sample.variant in tells
        else sample
        for sample in samples
    ]


def by_depth(samples: Sequence[Sample], variants: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Lines by depth, shallow first, and one of all; the first variant is the yardstick.

    A pair goes where the first variant's share lies: where prompts hold answers, the other's may
    differ by a few tokens.
    """
    measured = [sample for sample in with_silence_as_none(samples) if sample.measured]
    grouped: dict[tuple[int, int | None], list[int]] = {}
    for sample in measured:
        if sample.variant == variants[0]:
            grouped.setdefault(depth_range(sample.shared_tokens), []).append(sample.request)
    everything = sorted(request for requests in grouped.values() for request in requests)
    parts = [(depth_label(*depth), grouped[depth]) for depth in sorted(grouped, key=lambda d: d[0])]
    lines = []
    for label, requests in [*parts, ("all", everything)]:
        chosen = set(requests)
        of = {
            variant: sorted(
                (s for s in measured if s.variant == variant and s.request in chosen),
                key=lambda sample: sample.request,
            )
            for variant in variants
        }
        base = of[variants[0]]
        lines.append(
            {
                "depth": label,
                "pairs": len(base),
                "variants": {
                    variant: line_of(found, base if variant != variants[0] else None, seed)
                    for variant, found in of.items()
                },
            }
        )
    return lines
