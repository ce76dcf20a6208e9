"""Goal: a trace's pages are a tree, and what was seen and what comes next are what they say.
Method: properties over tiny random traces and over the workloads, against plain loops.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from benchmarks.trace.kinds import CONTEXT_TOKENS, KINDS, generate
from benchmarks.trace.trace import NEVER, Trace, TraceWriter, next_uses, seen_before
from tests.unit.trace_lab.tiny import TRACES, leading

PAGE = 64


@given(TRACES)
def test_seen_before_of_tiny_traces_equals_a_plain_loop(trace: Trace) -> None:
    computed: set[int] = set()
    for request, seen in enumerate(seen_before(trace).tolist()):
        path = trace.path(request)
        assert seen == leading(computed, path, int(trace.usable[request]))
        computed |= set(path.tolist())


@given(TRACES)
def test_next_uses_of_tiny_traces_equal_a_plain_search(trace: Trace) -> None:
    uses = next_uses(trace)
    for request in range(len(trace)):
        start = int(trace.starts[request])
        for depth, page in enumerate(trace.path(request).tolist()):
            later = [
                other
                for other in range(request + 1, len(trace))
                if page in trace.path(other)[: int(trace.usable[other])]
            ]
            assert int(uses[start + depth]) == (later[0] if later else int(NEVER))


@pytest.mark.parametrize("kind", KINDS)
def test_generate_of_each_kind_is_a_tree_of_pages(kind: str) -> None:
    trace = generate(kind, 200, seed=3, page_tokens=PAGE)
    above = np.full(trace.distinct, -1)
    depth = np.full(trace.distinct, -1)
    for request in range(len(trace)):
        path = trace.path(request)
        assert 0 < len(path) <= (CONTEXT_TOKENS + 2000) // PAGE
        known = depth[path] >= 0
        assert (depth[path][known] == np.flatnonzero(known)).all()
        assert (above[path[1:]][known[1:]] == path[:-1][known[1:]]).all()
        depth[path] = np.arange(len(path))
        above[path[1:]] = path[:-1]
    assert len(trace) == 200
    assert (depth >= 0).all(), "a page number that no request has"


@pytest.mark.parametrize("kind", KINDS)
def test_generate_of_a_seed_is_always_the_same(kind: str) -> None:
    one, same, other = (generate(kind, 50, seed, PAGE) for seed in (1, 1, 2))
    assert np.array_equal(one.pages, same.pages) and np.array_equal(one.seconds, same.seconds)
    assert not np.array_equal(one.pages, other.pages)


@pytest.mark.parametrize("kind", KINDS)
def test_generate_of_each_kind_says_what_matters(kind: str) -> None:
    told = set(generate(kind, 300, seed=0, page_tokens=PAGE).priorities.tolist())
    assert told == ({0} if kind == "rounds" else {0, 1}), "in rounds nobody knows better"


def test_generate_of_rounds_asks_all_in_turn_and_cuts_lie_below_the_grid() -> None:
    rounds = generate("rounds", 64, seed=0, page_tokens=PAGE)
    first = [int(rounds.path(request)[0]) for request in range(64)]
    assert first[:8] == sorted(set(first)) and first == first[:8] * 8
    cuts = generate("cuts", 200, seed=0, page_tokens=PAGE)
    assert int(cuts.usable.max()) * PAGE < 8192 + 1500


@pytest.mark.parametrize("kind", KINDS)
def test_generate_of_each_kind_shares_more_than_half(kind: str) -> None:
    trace = generate(kind, 300, seed=0, page_tokens=PAGE)
    assert seen_before(trace).sum() > trace.usable_pages / 2


def test_writer_on_two_continuations_shares_whole_pages_alone() -> None:
    writer = TraceWriter(PAGE)
    base = writer.write(writer.empty, 3 * PAGE + 10)
    cut = writer.cut(base, 2 * PAGE + 5)
    one, other = writer.write(cut, PAGE), writer.write(cut, PAGE)
    assert one.pages[:2].tolist() == other.pages[:2].tolist() == base.pages[:2].tolist()
    assert len({one.pages[2], other.pages[2], base.pages[2]}) == 3


@pytest.mark.parametrize(
    ("prompt", "answer", "usable", "kept"),
    [
        (PAGE, 1, 0, 1),  # the prompt's last token is always computed
        (PAGE + 1, 1, 1, 1),
        (PAGE + 1, PAGE - 1, 1, 1),  # no one computes on the last answered token
        (PAGE + 1, PAGE, 1, 2),
    ],
)
def test_ask_at_page_ends_uses_and_keeps_whole_pages(
    prompt: int, answer: int, usable: int, kept: int
) -> None:
    writer = TraceWriter(PAGE)
    writer.ask(writer.write(writer.empty, prompt), answer, 0.0)
    trace = writer.trace("one")
    assert int(trace.usable[0]) == usable and len(trace.path(0)) == kept


def test_trace_of_requests_asked_out_of_order_is_by_arrival() -> None:
    writer = TraceWriter(PAGE)
    late = writer.write(writer.empty, 2 * PAGE)
    writer.ask(late, 1, 5.0)
    writer.ask(writer.write(writer.empty, PAGE), 1, 1.0)
    trace = writer.trace("two")
    assert trace.seconds.tolist() == [1.0, 5.0]
    assert [trace.path(0).tolist(), trace.path(1).tolist()] == [[0], [1, 2]]
