"""The order of the leaves against a plain sort, over random steps.

Goal: whatever is stored, used, leased, marked down and evicted, in two scopes at once, each walk
takes exactly the leaves that sorting all of them before every victim would take.  Method: a forest
of a few dozen rows; scans of one leaf at least, so that horizons matter; a forgotten announcement
shows as a wrong victim, which one test proves by leaving them out.
"""

from __future__ import annotations

import random
import types
from typing import Any

import numpy as np
import pytest

from anchorstore.server.core.leaf_order import LeafOrder
from anchorstore.server.core.policies import POLICIES, Moment, PrivatePages
from anchorstore.server.core.types import U32

ROWS = 96
STEPS = 1500


class Forest:
    """A table of pages: row 0 is none; a page with parent 0 is a root."""

    def __init__(self) -> None:
        self.columns = types.SimpleNamespace(
            stamp=np.zeros(ROWS, np.uint64),
            created=np.zeros(ROWS, np.uint64),
            uses=np.zeros(ROWS, np.uint16),
            priority=np.zeros(ROWS, np.int16),
            sealed_second=np.zeros(ROWS, np.uint32),
            page=np.zeros(ROWS, np.uint32),
            bytes=np.zeros(ROWS, np.uint64),
            parent=np.zeros(ROWS, np.uint32),
            children=np.zeros(ROWS, np.uint32),
        )
        self.columns.segment_pages = PrivatePages(self.columns)
        self.live: set[int] = set()
        self.leased: set[int] = set()
        self.tick = 1

    @property
    def now(self) -> Moment:
        return Moment(self.tick, self.tick / 4)

    def path_of(self, page: int) -> list[int]:
        path = []
        while page:
            path.append(page)
            page = int(self.columns.parent[page])
        return path[::-1]

    def use(self, path: list[int], priority: int) -> None:
        for page in path:
            self.tick += 1
            self.columns.stamp[page] = self.tick
            self.columns.uses[page] += np.uint16(1)
            self.columns.priority[page] = max(int(self.columns.priority[page]), priority)

    def store(self, parent: int, rows: list[int], priority: int, size: int) -> None:
        """New pages in a row behind `parent`."""
        columns = self.columns
        for page in rows:
            columns.parent[page], columns.children[page] = parent, 0
            columns.children[parent] += np.uint32(1)
            columns.page[page] = columns.page[parent] + np.uint32(1) if parent else 0
            columns.uses[page], columns.priority[page] = 0, priority
            columns.bytes[page] = size
            columns.created[page] = self.tick + 1
            columns.sealed_second[page] = self.now.seconds
            self.live.add(page)
            self.use([page], priority)
            parent = page

    def remove(self, page: int) -> int:
        """Takes a leaf out; returns its parent where that is a leaf now, else 0."""
        self.live.remove(page)
        parent = int(self.columns.parent[page])
        self.columns.parent[page] = 0
        if parent:
            self.columns.children[parent] -= np.uint32(1)
        return parent if parent and not self.columns.children[parent] else 0


class Scope:
    """Leaves whose row number leaves no rest when divided by `step`."""

    def __init__(self, forest: Forest, step: int) -> None:
        self._forest, self._step = forest, step

    def has(self, page: int) -> bool:
        forest = self._forest
        inside = page in forest.live and page % self._step == 0
        return inside and not forest.columns.children[page]

    def rows(self) -> U32:
        return np.array([p for p in self._forest.live if self.has(p)], np.uint32)


class Trial:
    """One forest, two orders of one policy over it, and random steps."""

    def __init__(self, name: str, seed: int, *, silent: bool = False) -> None:
        self.random = random.Random(seed)
        self.forest = Forest()
        self.silent = silent
        self.scopes = [Scope(self.forest, step) for step in (1, 3)]
        self.orders = [
            LeafOrder(POLICIES[name](), self.forest.columns, scope, scan_leaves=1)
            for scope in self.scopes
        ]
        self.victims = 0

    def announce(self, page: int) -> None:
        for order in () if self.silent else self.orders:
            order.announce(page)

    def step(self) -> None:
        verb = self.random.choice(
            [self.store, self.store, self.use, self.use, self.lease, self.mark_down, self.evict]
        )
        verb()

    def store(self) -> None:
        forest = self.forest
        free = sorted(set(range(1, ROWS)) - forest.live)[: self.random.randint(1, 5)]
        if not free:
            return self.evict()
        parent = self.random.choice([0, *sorted(forest.live)])
        priority = self.random.randint(-2, 2)
        forest.use(forest.path_of(parent), priority)
        forest.store(parent, free, priority, self.random.choice([100, 150, 400]))
        self.announce(free[-1])
        return None

    def use(self) -> None:
        if self.forest.live:
            page = self.random.choice(sorted(self.forest.live))
            self.forest.use(self.forest.path_of(page), self.random.randint(-2, 2))

    def lease(self) -> None:
        """Leases one path, ends another's lease."""
        leased = self.forest.leased
        leased &= self.forest.live
        if self.forest.live:
            page = self.random.choice(sorted(self.forest.live))
            leased.update(self.forest.path_of(page))
        leased -= set(self.random.sample(sorted(leased), len(leased) // 2))

    def mark_down(self) -> None:
        if self.forest.live:
            page = self.random.choice(sorted(self.forest.live))
            self.forest.columns.priority[page] -= np.int16(2)
            self.announce(page)

    def evict(self) -> None:
        which = self.random.randrange(2)
        order, scope, count = self.orders[which], self.scopes[which], self.random.randint(1, 6)
        self.forest.tick += 1
        policy = order.policy.fixed(self.forest.columns, scope.rows(), self.forest.now)
        with order.walk(self.forest.now) as walk:
            while count:
                expected = self.expected(policy, scope)
                page = next((p for p in walk if not self.kept(walk, p)), 0)
                assert page == expected, f"{policy.name}: {page} goes, {expected} ought to"
                if not page:
                    return
                parent = self.forest.remove(page)
                if parent:
                    self.announce(parent)
                count -= 1
                self.victims += 1

    def kept(self, walk: Any, page: int) -> bool:
        if page in self.forest.leased:
            walk.keep(page)
        return page in self.forest.leased

    def expected(self, policy: Any, scope: Scope) -> int:
        rows = [p for p in scope.rows().tolist() if p not in self.forest.leased]
        keys = {page: policy.key(self.forest.columns, page) for page in rows}
        return min(rows, key=lambda page: (keys[page], page), default=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_order_takes_what_a_full_sort_would(name: str, seed: int) -> None:
    trial = Trial(name, seed)
    for _ in range(STEPS):
        trial.step()
    assert trial.victims > STEPS // 4


@pytest.mark.parametrize("name", ["lfu", "priority"])
def test_order_without_announcements_takes_a_wrong_one(name: str) -> None:
    with pytest.raises(AssertionError, match="ought to"):
        for seed in range(3):
            trial = Trial(name, seed, silent=True)
            for _ in range(STEPS):
                trial.step()


def test_order_looks_ahead_without_taking() -> None:
    """What walks with `expose` name in advance is what goes then."""
    trial = Trial("lru", 5)
    for _ in range(STEPS):
        trial.step()
    forest, order = trial.forest, trial.orders[0]
    forest.leased.clear()
    left = {page: int(forest.columns.children[page]) for page in forest.live}
    foreseen = []
    with order.walk(forest.now) as walk:
        for page in walk:
            foreseen.append(page)
            walk.keep(page)
            parent = int(forest.columns.parent[page])
            if parent:
                left[parent] -= 1
                if not left[parent]:
                    walk.expose(parent)
    assert sorted(foreseen) == sorted(forest.live)
    assert order.first(forest.now) == foreseen[0]
    for page in foreseen:
        assert order.first(forest.now) == page
        if parent := forest.remove(page):
            trial.announce(parent)
    assert order.first(forest.now) == 0
