"""Goal: owners who wait get equal costs, whatever they put; each line is bounded, and nobody's
fills what others need.  Method: the definition, over random lines.
"""

from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from anchorstore.server.core.turns import Turns

QUANTUM = 8
PUTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=80)


@given(PUTS)
def test_every_item_comes_once_and_each_owners_in_his_order(puts: list[tuple[int, int]]) -> None:
    turns = Turns[tuple[int, int]](1000, QUANTUM)
    for number, (owner, cost) in enumerate(puts):
        turns.put(owner, (owner, number), cost)
    assert len(turns) == len(puts)
    came = list(iter(turns.next, None))
    assert len(turns) == 0 and turns.next() is None
    for owner in range(4):
        wanted = [number for number, (who, _) in enumerate(puts) if who == owner]
        assert [number for who, number in came if who == owner] == wanted


@given(st.lists(st.integers(1, 20), min_size=60, max_size=60), st.integers(1, 20))
def test_owners_who_wait_get_equal_costs_whatever_their_sizes(sizes: list[int], size: int) -> None:
    turns = Turns[tuple[int, int]](1000, QUANTUM)
    for cost in sizes:  # one puts sixty items of any size, the other sixty of one size
        turns.put(1, (1, cost), cost)
    for _ in range(60):
        turns.put(2, (2, size), size)
    spent: collections.Counter[int] = collections.Counter()
    left = collections.Counter({1: 60, 2: 60})
    while all(left.values()):
        item = turns.next()
        assert item is not None
        spent[item[0]] += item[1]
        left[item[0]] -= 1
        if all(left.values()):
            assert abs(spent[1] - spent[2]) <= QUANTUM + 2 * 20


def test_one_item_behind_a_flood_waits_for_a_turn_and_no_longer() -> None:
    turns = Turns[str](1000, QUANTUM)
    for _ in range(500):
        turns.put(1, "flood", QUANTUM)
    turns.put(2, "other", QUANTUM)
    assert "other" in [turns.next() for _ in range(2)]


def test_owner_alone_may_fill_it_and_leaves_half_to_others_that_wait() -> None:
    turns = Turns[str](10, QUANTUM)
    assert turns.room(1) == 10
    turns.put(1, "a", 1, count=4)
    assert turns.room(1) == 6 and turns.room(2) == 5
    turns.put(2, "b", 1, count=1)
    assert turns.room(1) == 1 and turns.room(2) == 4
    turns.put(1, "c", 1, count=1)
    assert turns.room(1) == 0


def test_dropped_items_are_gone_and_their_room_is_back() -> None:
    turns = Turns[str](10, QUANTUM)
    for name in ("a", "b", "a"):
        turns.put(1, name, 1, count=3)
    assert turns.drop(lambda item: item == "a") == ["a", "a"]
    assert len(turns) == 3 and turns.next() == "b" and len(turns) == 0


def test_turn_saves_nothing_for_a_time_when_nothing_is_wanted() -> None:
    turns = Turns[int](10_000, QUANTUM)
    for _ in range(100):
        turns.put(1, 1, 1)
    assert [turns.next() for _ in range(100)] == [1] * 100
    turns.put(1, 1, 10 * QUANTUM)
    turns.put(2, 2, 1)
    assert turns.next() == 2, "what was not spent is not kept"
