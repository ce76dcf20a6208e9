"""The store model for hours instead of seconds; `make soak` runs it.

Goal: interactions too rare for a short walk.  Method: the walks and the machine of
test_store_model.py with other seeds, many more steps and many more examples.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.model.test_store_model import StoreMachine, long_walk

STEPS = 100_000


class DeepStoreMachine(StoreMachine):
    """The same machine, searched longer."""


TestDeepStoreMachine = pytest.mark.slow(DeepStoreMachine.TestCase)
TestDeepStoreMachine.settings = settings(
    max_examples=2_000, stateful_step_count=100, deadline=None, derandomize=False
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_store_very_long_walk_agrees_with_naive_store(seed: int) -> None:
    walk = long_walk(seed, STEPS)
    assert walk.store.check() == []
    assert walk.store.counters["segments_reformatted"] > 0
