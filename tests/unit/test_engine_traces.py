"""Goal: traces are what they say, and the ideal reuse is the longest common prefix in whole pages.
Method: properties over random sequences, seeds and kinds, against brute force.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine.reuse import (
    DEPTH_EDGES,
    Seen,
    depth_label,
    depth_range,
    encode,
    ideal_reuse,
)
from benchmarks.engine.traces import (
    BRANCHES_PER_BASE,
    DEEP_ENOUGH_TOKENS,
    KINDS,
    Answer,
    Shape,
    Trace,
    generate,
)

PAGE = 64
SHAPE = Shape(first_token=3, stop_token=500, context_tokens=2048, pairs=12, answer_tokens=8)

# Few ids and short sequences meet often; large ids show that bytes compare as tokens do.
TOKENS = st.lists(st.sampled_from([0, 1, 2, 255, 256, 2**32 - 1]), max_size=12)


def brute_force(met: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    """Longest common prefix of `tokens` with any of `met`, token by token."""
    longest = 0
    for other in met:
        length = 0
        while length < min(len(other), len(tokens)) and other[length] == tokens[length]:
            length += 1
        longest = max(longest, length)
    return longest


@given(st.lists(TOKENS, max_size=12), TOKENS)
def test_shared_of_any_sequences_equals_brute_force(met: list[list[int]], asked: list[int]) -> None:
    seen = Seen()
    for number, tokens in enumerate(met):
        assert seen.shared(tokens) == brute_force(met[:number], tokens)
        seen.add(tokens)
    assert seen.shared(asked) == brute_force(met, asked)


@given(TOKENS, TOKENS)
def test_encode_of_two_sequences_keeps_their_order(one: list[int], other: list[int]) -> None:
    assert (encode(one) < encode(other)) == (one < other)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_encode_of_an_impossible_token_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match="token id"):
        encode([1, token])


@given(st.integers(1, 5000), st.integers(1, 256), st.integers(0, 512), st.data())
def test_ideal_of_any_prefix_is_whole_pages_below_the_last_token(
    prompt: int, page: int, margin: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, prompt))
    ideal = ideal_reuse(shared, prompt, page, margin)
    pages = max(n for n in range(prompt) if n * page <= shared and n * page < prompt)
    assert ideal == max(0, pages * page - margin)


@pytest.mark.parametrize(
    ("shared", "prompt", "margin", "ideal"),
    [
        (1400, 1437, 0, 1344),
        (1400, 1437, 64, 1280),
        (1999, 2036, 0, 1984),
        (63, 100, 0, 0),
        (128, 128, 0, 64),
        (129, 129, 0, 128),
        (64, 65, 64, 0),
        (0, 1, 0, 0),
    ],
)
def test_ideal_of_worked_examples_is_right(
    shared: int, prompt: int, margin: int, ideal: int
) -> None:
    assert ideal_reuse(shared, prompt, PAGE, margin) == ideal


@given(st.integers(0, 10**6))
def test_depth_of_any_share_contains_it(shared: int) -> None:
    lower, upper = depth_range(shared)
    assert lower <= shared and (upper is None or shared < upper)
    assert depth_label(lower, upper).startswith(str(lower))


# ---- traces ----


def played(trace: Trace) -> list[tuple[list[int], int]]:
    """Every prompt with scripted answers, and what it shares with those before, by brute force."""
    met: list[list[int]] = []
    found = []
    answers = {
        part.request: part.scripted
        for request in trace.requests
        for part in request.parts
        if isinstance(part, Answer)
    }
    for request in trace.requests:
        prompt = request.prompt({})
        found.append((prompt, brute_force(met, prompt)))
        met.append([*prompt, *answers.get(request.index, ())[:-1]])
    return found


@given(st.sampled_from(KINDS), st.integers(0, 10**9))
def test_trace_of_any_seed_is_the_same_again_and_fits_its_shape(kind: str, seed: int) -> None:
    trace = generate(kind, SHAPE, seed)
    assert trace == generate(kind, SHAPE, seed)
    assert [request.index for request in trace.requests] == list(range(len(trace.requests)))
    for request in trace.requests:
        prompt = request.prompt({})
        assert 0 < len(prompt) == request.prompt_tokens
        assert len(prompt) + request.answer_tokens <= SHAPE.context_tokens
        assert all(SHAPE.first_token <= token < SHAPE.stop_token for token in prompt)
        for part in request.parts:
            assert not isinstance(part, Answer) or part.request < request.index


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_shared_along_a_trace_equals_brute_force(kind: str, seed: int) -> None:
    trace = generate(kind, SHAPE, seed)
    seen = Seen()
    for request, (prompt, shared) in zip(trace.requests, played(trace), strict=True):
        assert seen.shared(prompt) == shared
        scripted = [
            part.scripted
            for later in trace.requests
            for part in later.parts
            if isinstance(part, Answer) and part.request == request.index
        ]
        seen.add([*prompt, *(scripted[0] if scripted else ())[:-1]])


def test_branches_leave_their_bases_at_every_depth_as_often_as_asked() -> None:
    trace = generate("branches", SHAPE, 5)
    branches = [request for request in trace.requests if request.measured]
    depths: dict[int, int] = {}
    for request in branches:
        head = request.parts[0]
        assert isinstance(head, tuple)
        depths[depth_range(len(head))[0]] = depths.get(depth_range(len(head))[0], 0) + 1
    expected = [edge for edge in DEPTH_EDGES if DEEP_ENOUGH_TOKENS <= edge < 1900]
    assert depths == dict.fromkeys(expected, SHAPE.pairs)
    bases = len(trace.requests) - len(branches)
    assert bases == -(-len(branches) // BRANCHES_PER_BASE)


def test_branch_shares_no_more_with_its_base_than_it_was_cut_at() -> None:
    narrow = Shape(first_token=0, stop_token=2, context_tokens=1024, pairs=20, answer_tokens=1)
    trace = generate("branches", narrow, 9)
    base: list[int] = []
    for request in trace.requests:
        prompt = request.prompt({})
        if not request.measured:
            base = prompt
            continue
        cut = len(request.parts[0]) if isinstance(request.parts[0], tuple) else 0
        assert brute_force([base], prompt) == cut


@pytest.mark.parametrize("kind", ["multi-turn", "agents"])
def test_talks_go_on_after_what_was_really_answered(kind: str) -> None:
    trace = generate(kind, SHAPE, 3)
    later = [r for r in trace.requests if any(isinstance(part, Answer) for part in r.parts)]
    assert later
    for request in later:
        earlier = [part for part in request.parts if isinstance(part, Answer)]
        answers = {part.request: (499,) * len(part.scripted) for part in earlier}
        assert request.prompt(answers) != request.prompt({})
        assert len(request.prompt(answers)) == request.prompt_tokens


def test_agents_of_one_task_share_its_plan() -> None:
    shares = [shared for _, shared in played(generate("agents", SHAPE, 4))]
    system = SHAPE.context_tokens // 6
    assert shares[0] == 0 and sum(shared > system for shared in shares) > len(shares) // 2


def test_documents_are_asked_about_again() -> None:
    shares = [shared for _, shared in played(generate("documents", SHAPE, 4))]
    assert sum(shared > SHAPE.context_tokens // 4 for shared in shares) >= 4


def test_fresh_requests_share_no_page() -> None:
    assert all(shared < PAGE for _, shared in played(generate("fresh", SHAPE, 2)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stop_token": 4}, "token ids"),
        ({"first_token": -1}, "token ids"),
        ({"context_tokens": 1023}, "context"),
        ({"pairs": 0}, "pairs"),
        ({"answer_tokens": 0}, "answers"),
        ({"answer_tokens": 129}, "answers"),
    ],
)
def test_shape_that_cannot_be_is_refused(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Shape(**{**vars_of(SHAPE), **changes})


def vars_of(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}
