"""Goal: staging bytes have one owner at a time, and none is lost.
Method: a state machine of takes, gives and quarantines against a plain set of extents.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.client.staging import ALIGN_BYTES, Staging, aligned

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 700)),
        st.tuples(st.just("give"), st.integers(0, 30)),
        st.tuples(st.just("hold"), st.integers(0, 30)),
        st.tuples(st.just("give_held"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 4096))
def test_staging_under_any_steps_agrees_with_the_model(
    steps: list[tuple[str, int]], size: int
) -> None:
    staging = Staging(size)
    usable = size // ALIGN_BYTES * ALIGN_BYTES
    owned: list[tuple[int, int]] = []
    held: list[tuple[int, int]] = []
    for verb, number in steps:
        if verb == "take":
            offset = staging.take(number)
            if offset is not None:
                owned.append((offset, number))
        elif verb in ("give", "hold") and owned:
            extent = owned.pop(number % len(owned))
            if verb == "give":
                staging.give(*extent)
            else:
                staging.hold(extent[1])
                held.append(extent)
        elif verb == "give_held" and held:
            staging.give_held(*held.pop(number % len(held)))
        taken = sorted((start, start + aligned(count)) for start, count in owned + held)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))
        assert not taken or taken[-1][1] <= usable
        assert staging.free_bytes == usable - sum(stop - start for start, stop in taken)
        assert staging.quarantine_bytes == sum(aligned(count) for _, count in held)


def test_staging_after_everything_came_back_is_one_extent() -> None:
    staging = Staging(4096)
    offsets = [staging.take(1000) for _ in range(4)]
    assert None not in offsets and staging.take(64) is None
    for offset in (offsets[2], offsets[0], offsets[3], offsets[1]):
        assert offset is not None
        staging.give(offset, 1000)
    assert staging.take(4096) == 0


def test_staging_given_back_twice_stops() -> None:
    staging = Staging(4096)
    offset = staging.take(100)
    assert offset is not None
    staging.give(offset, 100)
    with pytest.raises(AssertionError, match="twice"):
        staging.give(offset, 100)
