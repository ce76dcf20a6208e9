"""From a stamp to an age.

Goal: an age is right to the mark before it, whatever was thinned out.  Method: marks by hand.
"""

from __future__ import annotations

import numpy as np

from anchorstore.server.core.use_times import MARKS_MAX, UseTimes, by_limit


def test_age_is_counted_from_the_mark_before_the_stamp() -> None:
    times = UseTimes()
    for tick, seconds in ((10, 5.0), (20, 5.5), (30, 7.0)):
        times.note(tick, seconds)
    ages = times.ages(np.array([3, 10, 29, 30, 99], np.uint64), 10.0)
    assert ages.tolist() == [10.0, 5.0, 5.0, 3.0, 3.0]


def test_age_after_many_marks_is_still_right_to_a_few_seconds() -> None:
    times, marks = UseTimes(), 3 * MARKS_MAX
    for second in range(1, marks):
        times.note(100 * second, float(second))
    stamps = np.array([100, 50 * marks, 100 * (marks - 1)], np.uint64)
    ages = times.ages(stamps, float(marks))
    assert np.abs(ages - np.array([marks - 1, marks / 2, 1])).max() <= 8


def test_ages_are_counted_by_limit() -> None:
    found = by_limit(np.array([0.0, 1.0, 1.5, 59.0, 100_000.0]))
    assert found == {"1": 2, "10": 1, "60": 1, "inf": 1}
