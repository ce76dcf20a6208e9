"""Policies and admissions: keys that sort like the words that describe them.

Goal: each policy orders pages as a plain sort of plain tuples does, one page at a time or many; no
use lowers a key; the work that FlopAware weighs is Marconi's formula.  Method: random columns from
hypothesis, and a sort key of each policy written down a second time, in Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.server.core.admission import ADMISSIONS, Always, SecondSight, Size
from anchorstore.server.core.policies import (
    CLASS_MAX,
    POLICIES,
    SEGMENT_PAGES_MAX,
    FlopAware,
    Moment,
    Policy,
    Priority,
    PrivatePages,
    Slru,
    Ttl,
    sortable,
    sortable_one,
)

NOW = Moment(tick=2**40, seconds=5000.0)

PLAIN: dict[str, Callable[[Any, int], tuple[float, ...]]] = {
    "lru": lambda pages, row: (int(pages.stamp[row]),),
    "fifo": lambda pages, row: (int(pages.created[row]),),
    "lfu": lambda pages, row: (int(pages.uses[row]), int(pages.stamp[row])),
    "slru": lambda pages, row: (int(pages.uses[row] >= 2), int(pages.stamp[row])),
    "priority": lambda pages, row: (int(pages.priority[row]), int(pages.stamp[row])),
    "ttl": lambda pages, row: (
        int(int(pages.sealed_second[row]) + 3600.0 > NOW.seconds),
        int(pages.stamp[row]),
    ),
    "segment-length": lambda pages, row: (
        int(pages.segment_pages[row]).bit_length(),
        int(pages.stamp[row]),
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> types.SimpleNamespace:
    """1 to 20 pages; no two share a stamp."""
    count = draw(st.integers(1, 20))
    column = st.lists(st.integers(0, 9999), min_size=count, max_size=count)
    stamps = st.lists(st.integers(1, 2**40), min_size=count, max_size=count, unique=True)
    uses = st.lists(st.integers(0, 5) | st.just(CLASS_MAX), min_size=count, max_size=count)
    levels = st.lists(st.integers(-3, 3) | st.just(-(2**15)), min_size=count, max_size=count)
    return types.SimpleNamespace(
        stamp=np.array(draw(stamps), np.uint64),
        created=np.array(draw(stamps), np.uint64),
        uses=np.array(draw(uses), np.uint16),
        priority=np.array(draw(levels), np.int16),
        sealed_second=np.array(draw(column), np.uint32),
        segment_pages=np.array(draw(column), np.uint32) + 1,
        page=np.array(draw(column), np.uint32),
        bytes=np.array(draw(column), np.uint64) + 1,
    )


def rows_of(pages: types.SimpleNamespace) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.arange(len(pages.stamp), dtype=np.uint32)


def fixed(name: str, pages: Any) -> Policy:
    return POLICIES[name]().fixed(pages, rows_of(pages), NOW)


@pytest.mark.parametrize("name", sorted(PLAIN))
@given(pages=tables())
def test_policy_orders_as_plain_tuples_do(name: str, pages: types.SimpleNamespace) -> None:
    policy, rows = fixed(name, pages), rows_of(pages)
    order = np.argsort(policy.keys(pages, rows), kind="stable").tolist()
    assert order == sorted(rows.tolist(), key=lambda row: PLAIN[name](pages, row))


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pages=tables())
def test_policy_one_page_has_the_key_it_has_among_many(
    name: str, pages: types.SimpleNamespace
) -> None:
    policy, rows = fixed(name, pages), rows_of(pages)
    keys = policy.keys(pages, rows)
    assert keys.dtype == np.uint64
    assert [policy.key(pages, row) for row in rows.tolist()] == keys.tolist()


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pages=tables(), often=st.integers(1, 3))
def test_policy_a_use_never_lowers_a_key(
    name: str, pages: types.SimpleNamespace, often: int
) -> None:
    policy, rows = fixed(name, pages), rows_of(pages)
    before = policy.keys(pages, rows)
    room = np.minimum(CLASS_MAX - pages.uses.astype(np.int64), often)
    pages.uses += room.astype(np.uint16)
    pages.stamp[:] = rows.astype(np.uint64) + np.uint64(NOW.tick + 1)
    assert (policy.keys(pages, rows) >= before).all()


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(pages=tables())
def test_policy_reads_the_columns_that_it_names(name: str, pages: types.SimpleNamespace) -> None:
    policy, rows = fixed(name, pages), rows_of(pages)
    only = types.SimpleNamespace(**{c: getattr(pages, c) for c in policy.columns})
    assert policy.fixed(only, rows, NOW) == policy
    assert policy.keys(only, rows).tolist() == policy.keys(pages, rows).tolist()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policy_that_does_not_drift_is_its_own_measure(name: str) -> None:
    policy = POLICIES[name]()
    empty = types.SimpleNamespace()
    moved = policy.fixed(empty, np.zeros(0, np.uint32), NOW) != policy
    assert moved == (policy.drifts and name != "segment-length")


@given(pages=tables(), alpha=st.floats(0, 2))
def test_flop_aware_scores_as_the_paper_does(pages: types.SimpleNamespace, alpha: float) -> None:
    rows = rows_of(pages)
    policy = FlopAware(alpha=alpha, balance_pages=100.0).fixed(pages, rows, NOW)
    recency = [1 / (NOW.tick + 1 - int(stamp)) for stamp in pages.stamp]
    saving = [
        (1 + int(page) / 100) / int(size)
        for page, size in zip(pages.page, pages.bytes, strict=True)
    ]

    def share(values: list[float], row: int) -> float:
        width = max(values) - min(values)
        return (values[row] - min(values)) / (width or 1.0)

    scores = [share(recency, row) + alpha * share(saving, row) for row in rows.tolist()]
    assert policy.keys(pages, rows).tolist() == sortable(np.array(scores)).tolist()


def test_flop_aware_alpha_moves_weight_from_recency_to_work() -> None:
    pages = types.SimpleNamespace(
        stamp=np.array([10, 90], np.uint64),
        page=np.array([5000, 0], np.uint32),
        bytes=np.array([100, 100], np.uint64),
    )
    rows, now = np.arange(2, dtype=np.uint32), Moment(100)
    first = [
        int(np.argmin(FlopAware(alpha=alpha).fixed(pages, rows, now).keys(pages, rows)))
        for alpha in (0.0, 2.0)
    ]
    assert first == [0, 1], "the old page goes first, unless its work counts for more"


@given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=2))
def test_sortable_bits_sort_like_numbers(pair: list[float]) -> None:
    low, high = sortable(np.array(pair)).tolist()
    assert (low < high) == (pair[0] < pair[1]) or pair == [0.0, 0.0]
    assert [low, high] == [sortable_one(number) for number in pair]


def test_slru_and_ttl_take_their_threshold() -> None:
    pages = types.SimpleNamespace(
        stamp=np.array([1, 2, 3], np.uint64),
        uses=np.array([1, 2, 3], np.uint16),
        sealed_second=np.array([0, 50, 90], np.uint32),
    )
    rows = np.arange(3, dtype=np.uint32)
    assert (Slru(protected_uses=3).keys(pages, rows) >> np.uint64(48)).tolist() == [0, 0, 1]
    ttl = Ttl(seconds=60.0).fixed(pages, rows, Moment(4, 100.0))
    assert (ttl.keys(pages, rows) >> np.uint64(48)).tolist() == [0, 1, 1]


def test_priority_beyond_16_bits_counts_as_the_extreme() -> None:
    pages = types.SimpleNamespace(
        stamp=np.array([7, 7], np.uint64), priority=np.array([-(2**31), 2**31 - 1], np.int64)
    )
    keys = Priority().keys(pages, np.arange(2, dtype=np.uint32)).tolist()
    assert keys == [7, (CLASS_MAX << 48) | 7]


def test_private_pages_count_up_to_the_last_branch() -> None:
    """1 - 2 - 3 - 4, and 5 - 6 behind 2; 7 alone."""
    table = types.SimpleNamespace(
        parent=np.array([0, 0, 1, 2, 3, 2, 5, 0], np.uint32),
        children=np.array([0, 1, 2, 1, 0, 1, 0, 0], np.uint32),
    )
    column = PrivatePages(table)
    assert column[np.arange(1, 8, dtype=np.uint32)].tolist() == [1, 2, 1, 2, 1, 2, 1]
    assert [column.item(row) for row in range(1, 8)] == [1, 2, 1, 2, 1, 2, 1]


def test_private_pages_of_a_long_path_stop_at_the_limit() -> None:
    count = 3 * SEGMENT_PAGES_MAX
    table = types.SimpleNamespace(
        parent=np.r_[0, np.arange(count)].astype(np.uint32),
        children=np.r_[0, np.ones(count - 1), 0].astype(np.uint32),
    )
    column = PrivatePages(table)
    assert column[np.array([count], np.uint32)].tolist() == [SEGMENT_PAGES_MAX]
    assert column.item(count) == SEGMENT_PAGES_MAX


def test_admissions_let_pass_what_they_say() -> None:
    pages = types.SimpleNamespace(
        uses=np.array([0, 1, 2, 9], np.uint16), bytes=np.array([0, 4096, 8192, 2**20], np.uint64)
    )
    rows = np.array([3, 1, 2], np.uint32)
    assert Always().admits(pages, rows).tolist() == [True, True, True]
    assert SecondSight().admits(pages, rows).tolist() == [True, False, True]
    assert SecondSight(uses=3).admits(pages, rows).tolist() == [True, False, False]
    assert Size(8192, 2**16).admits(pages, rows).tolist() == [False, False, True]
    assert sorted(ADMISSIONS) == ["always", "second-sight", "size"]
