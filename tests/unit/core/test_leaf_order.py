"""Details of the leaves' order that the random walks of tests/model do not aim at.

Goal: what is kept comes back whatever ends a walk; an order that drifts is measured when its
patience ends, and not before.  Method: a handful of pages that are all leaves.
"""

from __future__ import annotations

import types

import numpy as np
import pytest

from anchorstore.server.core import leaf_order
from anchorstore.server.core.leaf_order import LeafOrder
from anchorstore.server.core.policies import Lru, Moment, Ttl
from anchorstore.server.core.types import U32


class Flat:
    """Pages 1 to n, all leaves; stamps as given."""

    def __init__(self, stamps: list[int]) -> None:
        count = len(stamps) + 1
        self.columns = types.SimpleNamespace(
            stamp=np.array([0, *stamps], np.uint64), sealed_second=np.zeros(count, np.uint32)
        )
        self.live = set(range(1, count))
        self.scans = 0

    def rows(self) -> U32:
        self.scans += 1
        return np.array(sorted(self.live), np.uint32)

    def has(self, page: int) -> bool:
        return page in self.live


def walked(order: LeafOrder) -> list[int]:
    """All pages in order; they stay."""
    pages = []
    with order.walk(Moment(31)) as walk:
        for page in walk:
            walk.keep(page)
            pages.append(page)
    return pages


def test_walk_kept_pages_are_there_again_after_an_error() -> None:
    pages = Flat([30, 10, 20])
    order = LeafOrder(Lru(), pages.columns, pages)
    with pytest.raises(ZeroDivisionError), order.walk(Moment(31)) as walk:
        for page in walk:
            walk.keep(page)
            assert 1 // (page - 3)
    assert order.first(Moment(31)) == 2


def test_walk_announced_twice_comes_once() -> None:
    pages = Flat([30, 10, 20])
    order = LeafOrder(Lru(), pages.columns, pages)
    assert order.first(Moment(31)) == 2
    order.announce(2)
    order.announce(2)
    assert walked(order) == [2, 3, 1]
    assert walked(order) == [2, 3, 1]


def test_walk_in_vain_reads_all_leaves_once_a_tick() -> None:
    pages = Flat([])
    order = LeafOrder(Lru(), pages.columns, pages)
    assert [order.first(Moment(tick)) for tick in (1, 1, 1, 2)] == [0] * 4
    assert pages.scans == 2


def test_order_that_drifts_is_measured_when_its_patience_ends() -> None:
    pages = Flat([10, 20])
    pages.columns.sealed_second[:] = [0, 100, 0]
    order = LeafOrder(Ttl(seconds=50.0), pages.columns, pages, patience_ticks=5)
    assert order.first(Moment(21, 60.0)) == 2, "sealed long ago, though used last"
    pages.columns.sealed_second[1] = 0
    assert order.first(Moment(26, 61.0)) == 2, "as it was measured"
    assert order.first(Moment(27, 61.0)) == 1, "now both are old, and this was used first"


def test_early_pages_come_first_once_announced_and_late_again_by_themselves() -> None:
    pages, early = Flat([30, 10, 20, 40]), np.zeros(5, np.bool_)
    order = LeafOrder(Lru(), pages.columns, pages, early=lambda rows: early[rows])
    assert walked(order) == [2, 3, 1, 4]
    early[[1, 4]] = True
    order.announce_all(np.array([1, 4], np.uint32))
    assert walked(order) == [1, 4, 2, 3]
    early[1] = False
    assert walked(order) == [4, 2, 3, 1]


def test_order_told_the_same_for_ever_stays_within_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaf_order, "ENTRIES_MIN", 8)
    pages = Flat([30, 10, 20])
    order = LeafOrder(Lru(), pages.columns, pages)
    assert order.first(Moment(31)) == 2
    for _ in range(100):
        order.announce_all(np.array([1, 2, 3], np.uint32))
        assert len(order._heap) <= 8
    assert walked(order) == [2, 3, 1]


def test_order_one_page_has_the_key_it_has_among_many_early_or_not() -> None:
    pages = Flat([30, 10, 2**40])
    order = LeafOrder(Lru(), pages.columns, pages, early=lambda rows: np.asarray(rows != 2))
    keys = [order.lowest_key(np.array([page], np.uint32)) for page in (1, 2, 3)]
    assert keys == [order.key(page) for page in (1, 2, 3)]
    assert max(keys) == keys[1], "the only one that is not early"
