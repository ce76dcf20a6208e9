"""Goal: checkpoints are placed where they spare most.
Method: small random distributions against every set of depths.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trace.placement import place, spared

SHARED_BY = st.lists(st.sampled_from([0, 0, 1, 2, 7, 40]), min_size=0, max_size=9).map(
    lambda counts: np.array(counts, np.float64)
)


@given(SHARED_BY, st.integers(0, 4))
def test_place_of_any_distribution_spares_as_much_as_brute_force(
    shared_by: np.ndarray[tuple[int], np.dtype[np.float64]], checkpoints: int
) -> None:
    depths = range(1, len(shared_by) + 1)
    best = max(
        spared(shared_by, list(chosen))
        for size in range(checkpoints + 1)
        for chosen in itertools.combinations(depths, min(size, len(depths)))
    )
    chosen = place(shared_by, checkpoints)
    assert spared(shared_by, chosen) == best
    assert chosen == sorted(set(chosen)) and len(chosen) <= checkpoints


def test_place_where_nobody_shares_places_nothing() -> None:
    assert place(np.zeros(5), 3) == []


def test_place_with_more_than_enough_takes_the_shared_depths_alone() -> None:
    assert place(np.array([0.0, 3.0, 0.0, 1.0]), 4) == [2, 4]


@pytest.mark.parametrize(("chosen", "pages"), [([], 0), ([2], 10), ([1, 4], 12), ([2, 4], 14)])
def test_spared_of_fixed_checkpoints_counts_the_last_one_reached(
    chosen: list[int], pages: int
) -> None:
    assert spared(np.array([1.0, 3.0, 0.0, 2.0]), chosen) == pages
