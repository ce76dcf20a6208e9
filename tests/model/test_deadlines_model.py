"""Lines of deadlines against a dict, 10,000 seeded steps with check() after each.

Goal: what is used stays, what is not used ends exactly at its time, in order.
"""

from __future__ import annotations

import random

from anchorstore.server.core.leases import Deadlines

STEPS = 10_000


def test_deadlines_random_walk_agrees_with_dict() -> None:
    source = random.Random(2)
    line: Deadlines[int] = Deadlines(5.0)
    ends: dict[int, float] = {}
    now = 0.0
    for _ in range(STEPS):
        key = source.randrange(20)
        match source.randrange(5):
            case 0 | 1 | 2:
                line.use(key, now)
                ends[key] = now + 5.0
            case 3:
                line.drop(key)
                ends.pop(key, None)
            case _:
                now += source.choice([0.0, 0.5, 1.0, 7.0])
                due = list(line.due(now))
                assert sorted(due, key=lambda k: ends[k]) == due
                assert set(due) == {k for k, end in ends.items() if end <= now}
                ends = {k: end for k, end in ends.items() if end > now}
        assert line.check("line") == []
        assert len(line) == len(ends) and all(k in line for k in ends)
        assert line.next_deadline() == min(ends.values(), default=None)


def test_deadlines_may_change_while_due_ones_are_taken() -> None:
    line: Deadlines[str] = Deadlines(1.0)
    for key in "abc":
        line.use(key, 0.0)
    seen = []
    for key in line.due(1.0):
        seen.append(key)
        line.drop("b")
        line.drop(key)
    assert seen == ["a", "c"]
