"""Taking the leaves of a scope, in a policy's order, for who wants room: which pages go.

::

    LeafOrder --walk--> leaf: may it go? --> taken --> its parent is a leaf now
                                              ^            |
                                              +-- a run of its path that would go next, at once

Nothing goes here yet: the caller takes the blocks out (State.leave).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from anchorstore.server.core.leaf_order import LeafOrder, Walk
from anchorstore.server.core.leaf_runs import first_false, path_end, room_of
from anchorstore.server.core.policy import Scope, ScopeLeaves
from anchorstore.server.core.types import U32, Bools

if TYPE_CHECKING:
    from anchorstore.server.core.state import State
    from anchorstore.server.core.tier import Tier

PASSED_MAX = 4_096
"""Pages that a rule keeps from going before a walk gives up."""

PAGES_MAX = 2**32
"""No bound: of pages that one eviction takes."""

RUN_PAGES_MAX = 256
"""Taken at once: more are looked at in several goes."""


class Rule(Protocol):
    """Which pages may go now."""

    def allows(self, page: int) -> bool:
        """Whether one may."""
        ...

    def allow(self, pages: U32) -> Bools:
        """Which of these [n] may."""
        ...


class Shares:
    """What namespaces may lose to others in one go: all beyond their reserved shares."""

    def __init__(self, state: State, tier: Tier) -> None:
        self._state, self._tier = state, tier
        self._spare: dict[int, int] = {}

    def give(self, page: int) -> bool:
        """Whether a page may go; then it counts as gone."""
        state, tier = self._state, self._tier
        owner = int(state.index.namespace[page])
        if owner not in self._spare:
            self._spare[owner] = tier.spare_bytes(state.registry.by_namespace_id[owner])
        rows = state.blocks.of_pages(state.index, np.array([page], np.uint32))
        left = self._spare[owner] - tier.bytes_of(rows[tier.holds(rows)])
        if left < 0:
            return False
        self._spare[owner] = left
        return True


def take_leaves(
    state: State,
    tier: Tier,
    scope: Scope,
    want_bytes: int,
    before: int,
    rule: Rule | None = None,
    rather_than: U32 | None = None,
    pages_max: int = PAGES_MAX,
) -> tuple[list[int], list[int]]:
    """Pages to evict from the tier, in order, until slots of `want_bytes` in the scope go with
    them, `pages_max` at most; and the holes that go with those.

    Only pages last used before tick `before`, or, where `rather_than` names pages, those that would
    go before any of these; a page with a busy block, one that `rule` refuses, and one of a
    namespace's reserved share, is passed over: where there is a rule, at most PASSED_MAX.  They
    count as out of the tier; the caller takes their blocks out at once (`State.leave`).

    A path goes page by page, each a leaf once the one behind it is gone, or several pages at once
    where that comes to the same; only where that ends matters to other scopes.
    """
    if want_bytes <= 0:
        return [], []
    order, leaves = tier.queues.of(state, tier, scope)
    taking = _Taking(state, tier, scope, order, leaves, rule, want_bytes, pages_max)
    passed = 0
    with order.walk(state.moment) as walk:
        for page in walk:
            if rather_than is not None:
                if taking.limit is None:
                    taking.limit = order.lowest_key(rather_than)
                if order.key(page) >= taking.limit:
                    walk.keep(page)
                    break
            elif state.index.stamp.item(page) >= before:
                walk.keep(page)
                if tier.queues.is_by_use:
                    break  # all that follow were used later still
                continue
            if leaves.busy or not taking.may_go(page):
                walk.keep(page)
                passed += rule is not None
                if passed >= PASSED_MAX:
                    break
            else:
                taking.take(page, before, walk)
                if taking.is_over:
                    break
    tier.queues.announce_to_others(order, taking.exposed)
    return taking.chosen, taking.holes


class _Taking:
    """What one call of `take_leaves` has taken so far.

    Attributes:
        limit: the key that all taken must be below; None where stamps decide.
        exposed: pages that are leaves now.
    """

    def __init__(
        self,
        state: State,
        tier: Tier,
        scope: Scope,
        order: LeafOrder,
        leaves: ScopeLeaves,
        rule: Rule | None,
        want_bytes: int,
        pages_max: int,
    ) -> None:
        self._state, self._tier, self._order, self._leaves = state, tier, order, leaves
        self._rule, self._want_bytes, self._pages_max = rule, want_bytes, pages_max
        self._shares = Shares(state, tier) if tier.has_reserves and scope.is_of_all else None
        self.limit: int | None = None
        self.chosen: list[int] = []
        self.holes: list[int] = []
        self.exposed: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether enough is taken."""
        return self._want_bytes <= 0 or len(self.chosen) >= self._pages_max

    def may_go(self, page: int) -> bool:
        """Whether the rules let this page go; then it counts as gone."""
        if self._rule is not None and not self._rule.allows(page):
            return False
        return self._shares is None or self._shares.give(page)

    def take(self, page: int, before: int, walk: Walk) -> None:
        """Takes a leaf, that the leaves were asked about last, and what of its path would go next
        after it."""
        self.chosen.append(page)
        self._want_bytes -= self._leaves.room_bytes
        self.exposed.discard(page)
        leaf = self._state.retreat(self._tier, page, self.holes)
        while leaf and not self.is_over and len(run := self._run_from(leaf, before)):
            self.chosen += (pages := run.tolist())
            walk.skip(pages)
            self._tier.children[run[1:]] = 0
            leaf = self._state.retreat(self._tier, pages[-1], self.holes)
        if leaf:
            self._order.announce(leaf)
            self.exposed.add(leaf)

    def _run_from(self, leaf: int, before: int) -> U32:
        """The pages that would go next, one after another; empty where they are few."""
        none = np.zeros(0, np.uint32)
        if self._shares is not None:
            return none
        most = min(self._pages_max - len(self.chosen), RUN_PAGES_MAX)
        pages = path_end(self._leaves, leaf, most)
        if not len(pages):
            return none
        room, busy = room_of(self._leaves, pages)
        go = (room > 0) & ~busy & self._order.are_next(pages)
        if self.limit is not None:
            go &= self._order.are_below(pages, self.limit)
        else:
            go &= self._state.index.stamp.take(pages) < before
        count = first_false(go)
        if self._rule is not None and count:
            count = first_false(self._rule.allow(pages[:count]))
        enough = int(np.searchsorted(np.cumsum(room[:count]), self._want_bytes)) + 1
        count = min(count, enough)
        self._want_bytes -= int(room[:count].sum())
        return pages[:count]
