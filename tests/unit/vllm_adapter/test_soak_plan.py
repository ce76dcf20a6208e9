"""Goal: a seed decides what a soak asks and breaks, all of it comes up, and faults do not overlap.
Method: plans of both lengths that are run, over several seeds; books of both sizes.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools

import pytest

from tests.vllm.soak_plan import (
    ANSWER_TOKENS,
    DROPPED_SHARE,
    FAULTS,
    KIND_WEIGHTS,
    LONG_SECONDS,
    RECOVERY_SECONDS,
    WALKED,
    Book,
    Plan,
    book,
)

CONTEXT = 1024
SHORT = Plan(seed=1, seconds=120.0, period_seconds=20.0, era_seconds=45.0)
LONG = Plan(seed=1, seconds=1800.0, period_seconds=60.0, era_seconds=45.0)
STEPS = 2000


@pytest.fixture(scope="module")
def prompts() -> Book:
    return book(1, CONTEXT)


@pytest.mark.parametrize("plan", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("seed", range(5))
def test_faults_of_a_plan_come_one_a_period_with_time_to_recover(plan: Plan, seed: int) -> None:
    faults = list(dataclasses.replace(plan, seed=seed).faults())
    assert len(faults) == plan.seconds // plan.period_seconds
    ends = [fault.at_seconds + fault.down_seconds for fault in faults]
    for number, (fault, end) in enumerate(zip(faults, ends, strict=True)):
        assert fault.at_seconds >= number * plan.period_seconds
        assert end + RECOVERY_SECONDS <= (number + 1) * plan.period_seconds + 1e-6


@pytest.mark.parametrize("plan", [SHORT, LONG], ids=["short", "long"])
def test_faults_of_a_plan_are_of_every_kind_equally_often(plan: Plan) -> None:
    counts = collections.Counter((fault.kind, fault.warm) for fault in plan.faults())
    assert set(counts) == set(FAULTS)
    assert len(set(counts.values())) == 1
    assert len({fault.name for fault in plan.faults()}) == len(FAULTS)


def test_plan_with_too_short_a_period_is_refused() -> None:
    assert LONG_SECONDS[1] + RECOVERY_SECONDS > 10.0
    with pytest.raises(ValueError, match=r"a fault every 10\.0 s"):
        dataclasses.replace(SHORT, period_seconds=10.0)


def test_plan_of_a_seed_is_the_same_every_time_and_another_of_another(prompts: Book) -> None:
    def written(seed: int) -> tuple[object, ...]:
        plan = dataclasses.replace(SHORT, seed=seed)
        steps = [list(itertools.islice(plan.steps(client, prompts), 50)) for client in range(2)]
        assert steps[0] != steps[1]
        return list(plan.faults()), steps, book(seed, CONTEXT)

    assert written(3) == written(3)
    for one, other in zip(written(3), written(4), strict=True):
        assert one != other


def test_eras_follow_one_another() -> None:
    assert [SHORT.era(seconds) for seconds in (0.0, 44.9, 45.0, 119.0)] == [0, 0, 1, 2]


def test_steps_are_of_every_kind_and_some_are_dropped(prompts: Book) -> None:
    steps = list(itertools.islice(SHORT.steps(0, prompts), STEPS))
    counts = collections.Counter(step.key[0] for step in steps)
    total = sum(KIND_WEIGHTS.values())
    for kind, weight in KIND_WEIGHTS.items():
        assert counts[kind] == pytest.approx(STEPS * weight / total, rel=0.3)
    assert {step.key for step in steps} == set(prompts.requests)
    assert all(step.fresh == (step.key[0] == "fresh") for step in steps)
    dropped = [step for step in steps if step.drop_seconds is not None]
    assert len(dropped) == pytest.approx(STEPS * DROPPED_SHARE, rel=0.3)


@pytest.mark.parametrize("kind", WALKED)
def test_steps_of_talks_keep_their_order(prompts: Book, kind: str) -> None:
    steps = itertools.islice(SHORT.steps(0, prompts), STEPS)
    asked = [step.key[1] for step in steps if step.key[0] == kind]
    count = len(prompts.keys(kind))
    assert all(after == (before + 1) % count for before, after in itertools.pairwise(asked))


@pytest.mark.parametrize("size", [1, 3])
def test_prompts_of_a_book_fit_the_context_and_go_on_from_answers_before_them(size: int) -> None:
    prompts = book(1, CONTEXT, size)
    answers: dict[tuple[str, int], list[int]] = {}
    continued = 0
    for number, key in enumerate(prompts.requests):
        tokens = prompts.prompt(key, answers)
        assert 0 < len(tokens) <= CONTEXT - ANSWER_TOKENS
        scripted = prompts.prompt(key, {})
        assert len(tokens) == len(scripted)
        continued += tokens != scripted
        answers[key] = [number % 256 + 3] * ANSWER_TOKENS
    assert continued > 0
    bases = prompts.bases()
    assert bases and all(key[0] == "branches" for key in bases)
