"""The whole store against the naive one (naive.py), by Hypothesis and by seeded long walks.

Goal: eviction, quotas, lineage, leases, sessions and segments interact; no list of cases covers
that.  Method: random operations on both (walk.py); each answer, every invariant (`check()`) and
the pages held must agree after every step.  A failing walk prints its seed and step.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.model.walk import OPERATIONS, Draw, Walk

STEPS = 5_000
COMPARED_EVERY = 4
WEIGHTED = [name for name, often in OPERATIONS.items() for _ in range(often)]


class StoreMachine(RuleBasedStateMachine):
    """Hypothesis chooses operations and every detail of them, and shrinks what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.draw: Draw = lambda n: 0
        self.walk = Walk(lambda n: self.draw(n))
        self.walk.open_session()

    @rule(operation=st.sampled_from(WEIGHTED), data=st.data())
    def step(self, operation: str, data: st.DataObject) -> None:
        self.draw = lambda n: data.draw(st.integers(0, n - 1))
        getattr(self.walk, operation)()

    @invariant()
    def agree(self) -> None:
        self.walk.compare()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


def long_walk(seed: int, steps: int) -> Walk:
    """`steps` random operations; what was walked, at its end."""
    source = random.Random(seed)
    walk = Walk(source.randrange)
    names, often = list(OPERATIONS), list(OPERATIONS.values())
    for step in range(steps):
        operation = source.choices(names, often)[0]
        try:
            getattr(walk, operation)()
            if step % COMPARED_EVERY == 0:
                walk.compare()
            else:
                walk.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}: {operation}")
            raise
    return walk


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_store_long_walk_agrees_with_naive_store(seed: int) -> None:
    walk = long_walk(seed, STEPS)
    exercised = walk.store.counters
    for name in (
        *("blocks_sealed", "blocks_replaced", "blocks_thinned", "blocks_mismatch"),
        *("pages_evicted", "segments_reformatted", "lookups_hit", "lookups_margin"),
        *("lookups_lineage", "lookups_incomplete", "leases_expired", "reservations_expired"),
        *("blocks_declined_quota", "blocks_declined_capacity", "blocks_removed"),
    ):
        assert exercised[name] > 0, f"seed {seed} never came to {name}"
