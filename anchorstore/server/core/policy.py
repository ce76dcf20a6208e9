"""Which page of a tier goes next: leaves first, in the policy's order, exact.

A page is used when a lookup hits it, a writer offers it, or it is sealed; each use of a path
stamps its pages with the next ticks, no two alike.  Victims are *leaves* of a tier (no page in the
tier continues them), so a path shrinks from its end and never gets a hole in the middle.

::

    Scope        what room is wanted for: a slot class, a component, a namespace
    LeafQueues   a tier's: one LeafOrder a scope (leaf_order.py), in the tier's policy (policies.py)
                 but for what no engine holds any more: that may leave dram first (events.py)
                       |
    take_leaves  walks it and takes what may go: taking.py
    next_leaves  what that would be, and no more
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.leaf_order import Early, LeafOrder
from anchorstore.server.core.policies import Lru, Policy
from anchorstore.server.core.types import U32, Bools

if TYPE_CHECKING:
    from anchorstore.server.core.state import State
    from anchorstore.server.core.tier import Tier

Numbers = npt.NDArray[np.unsignedinteger[Any]]

QUEUES_MAX = 64
PATIENCE_TICKS = 16_384
"""How long an order holds whose keys drift: measuring anew reads all leaves."""


class Field(enum.Enum):
    """What a scope selects by."""

    SLOT_CLASS = "slot class"
    COMPONENT = "component"
    NAMESPACE = "namespace"


@dataclasses.dataclass(frozen=True)
class Scope:
    """Pages that may be evicted for one purpose: those with a block of a slot class (room for
    one), of a component (watermark), or all of a namespace (quota)."""

    field: Field
    value: int

    @property
    def is_of_all(self) -> bool:
        """Whether it spans namespaces: then one may lose pages to another."""
        return self.field is not Field.NAMESPACE

    def blocks_in(self, state: State, tier: Tier, blocks: U32) -> Bools:
        """Which of these block rows [n] count as room made in the tier.  Row 0 does not."""
        table = state.blocks
        if self.field is Field.SLOT_CLASS:
            owners: Numbers = tier.class_of_kind.take(table.kind.take(blocks))
        elif self.field is Field.COMPONENT:
            owners = state.registry.component_of_kind.take(table.kind.take(blocks))
        else:
            owners = state.index.namespace.take(table.page.take(blocks))
        inside: Bools = (owners == self.value) & tier.holds(blocks)
        if self.field is Field.SLOT_CLASS and tier.has_closed:
            inside[inside] = ~tier.closed(blocks[inside])
        return inside

    def pages_in(self, state: State, tier: Tier, pages: U32) -> Bools:
        """Which of these pages [n], all on the tier, have a block in the scope."""
        if self.field is Field.NAMESPACE:
            return np.asarray(state.index.namespace.take(pages) == self.value)
        inside = np.zeros(len(pages), np.bool_)
        current = state.index.first_block.take(pages)
        while current.any():
            inside |= self.blocks_in(state, tier, current)
            current = state.blocks.next.take(current)
        return inside


class ScopeLeaves:
    """The leaves of one scope in one tier, for their order.

    Attributes:
        room_bytes: slots in the scope on the page asked about last, 0 where it is not on the tier.
        busy: whether a block of that page protects it.
    """

    def __init__(self, state: State, tier: Tier, scope: Scope) -> None:
        self.state, self.tier, self.scope = state, tier, scope
        self.room_bytes, self.busy = 0, False

    def rows(self) -> U32:
        """All of them."""
        state, index = self.state, self.state.index
        leaf = self.tier.leaves()
        if self.scope.field is Field.NAMESPACE:
            leaf &= index.namespace[: len(leaf)] == self.scope.value
        pages = np.flatnonzero(leaf).astype(np.uint32)
        found: U32 = pages[self.scope.pages_in(state, self.tier, pages)]
        return found

    def has(self, page: int) -> bool:
        """Whether the page is one now."""
        if not self.state.index.namespace.item(page) or self.tier.children.item(page):
            return False
        return self.look_at(page)

    def look_at(self, page: int) -> bool:
        """Whether a page has blocks in the scope.  One page at a time: reading cell by cell is
        faster than arrays here."""
        tier, table = self.tier, self.state.blocks
        self.room_bytes, self.busy = 0, False
        block = self.state.index.first_block.item(page)
        while block:
            if tier.holds_one(block):
                kind = table.kind.item(block)
                self.busy = self.busy or tier.busy_one(block)
                if self._is_room(page, block, kind):
                    self.room_bytes += tier.slot_bytes_of_kind.item(kind)
            block = table.next.item(block)
        return self.room_bytes > 0

    def _is_room(self, page: int, block: int, kind: int) -> bool:
        """Whether the page's block counts as room made."""
        tier, scope = self.tier, self.scope
        match scope.field:
            case Field.SLOT_CLASS:
                inside = tier.class_of_kind.item(kind) == scope.value
                if inside and tier.has_closed:
                    return not tier.closed(np.array([block], np.uint32))[0]
                return inside
            case Field.COMPONENT:
                return self.state.registry.component_of_kind.item(kind) == scope.value
            case Field.NAMESPACE:
                return self.state.index.namespace.item(page) == scope.value


class LeafQueues:
    """A tier's orders: one a scope, made when first needed.  Only a cache: dropping them loses
    nothing."""

    def __init__(self, policy: Policy, early: Early | None = None) -> None:
        self.policy, self._early = policy, early
        self.is_by_use = isinstance(policy, Lru) and early is None
        self.by_scope: dict[Scope, tuple[LeafOrder, ScopeLeaves]] = {}

    def of(self, state: State, tier: Tier, scope: Scope) -> tuple[LeafOrder, ScopeLeaves]:
        """The scope's order, and its leaves."""
        if scope not in self.by_scope:
            if len(self.by_scope) >= QUEUES_MAX:
                self.by_scope.clear()
            leaves = ScopeLeaves(state, tier, scope)
            order = LeafOrder(
                self.policy,
                tier.columns_of(self.policy),
                leaves,
                patience_ticks=PATIENCE_TICKS,
                early=self._early,
            )
            self.by_scope[scope] = order, leaves
        return self.by_scope[scope]

    def follow(self, policy: Policy) -> None:
        """Another policy from now on, which reads the same columns."""
        self.policy = policy
        self.forget()

    def forget(self) -> None:
        """Drops all orders: what counts as room is another matter now."""
        self.by_scope.clear()

    def announce(self, page: int) -> None:
        """`page` has become a leaf, or got a block without being used, or its key has fallen: in
        this scope or another, the orders look."""
        for order, _ in self.by_scope.values():
            order.announce(page)

    def announce_to_others(self, than: LeafOrder, pages: Iterable[int]) -> None:
        """These pages have become leaves, which one order knows."""
        others = [order for order, _ in self.by_scope.values() if order is not than]
        for page in pages:
            for order in others:
                order.announce(page)

    def announce_all(self, pages: U32) -> None:
        """The same of many pages [n]."""
        for order, _ in self.by_scope.values() if len(pages) else ():
            order.announce_all(pages)


def next_leaves(state: State, tier: Tier, scope: Scope, pages_max: int, before: int) -> list[int]:
    """The pages that `take_leaves` would take next, at most so many; nothing changes.

    Busy ones are named too: they may be idle by then.
    """
    order, leaves = tier.queues.of(state, tier, scope)
    found: list[int] = []
    followers: dict[int, int] = {}
    with order.walk(state.moment) as walk:
        for page in walk:
            walk.keep(page)
            if state.index.stamp.item(page) >= before:
                if tier.queues.is_by_use:
                    break
                continue
            found.append(page)
            if len(found) >= pages_max:
                break
            freed = _freed_by(state, tier, page, followers)
            if freed and leaves.look_at(freed):
                walk.expose(freed)
    return found


def _freed_by(state: State, tier: Tier, page: int, followers: dict[int, int]) -> int:
    """The page that becomes a leaf where `page` leaves, in a game of its own; 0 for none."""
    index = state.index
    while parent := index.parent.item(page):
        left = followers.get(parent, tier.children.item(parent)) - 1
        followers[parent] = left
        if left:
            return 0
        if tier.is_on(parent):
            return parent
        page = parent
    return 0


def first_leaf_stamp(state: State, tier: Tier, scope: Scope) -> int | None:
    """Last use of the scope's next victim, busy or not; None where it has no leaf."""
    order, _ = tier.queues.of(state, tier, scope)
    page = order.first(state.moment)
    return int(state.index.stamp[page]) if page else None


def oldest_inner_blocks(
    state: State,
    tier: Tier,
    scope: Scope,
    want_bytes: int,
    before: int,
    among: Callable[[U32], Bools] | None = None,
) -> U32:
    """Blocks of the scope on pages that others continue, least recently used pages first, until
    `want_bytes` of slots: idle ones alone, and of those `among`."""
    index, blocks = state.index, state.blocks
    inner = tier.inner()
    inner &= index.stamp[: len(inner)] < before
    rows = blocks.of_pages(index, np.flatnonzero(inner).astype(np.uint32))
    rows = rows[scope.blocks_in(state, tier, rows) & ~tier.busy(rows)]
    rows = rows if among is None else rows[among(rows)]
    if tier.has_reserves:
        rows = rows[_beyond_shares(state, tier, rows)]
    pages = blocks.page.take(rows)
    rows = rows[np.lexsort((rows, index.stamp.take(pages)))]
    sizes = tier.slot_bytes_of_kind.take(blocks.kind.take(rows))
    enough = int(np.searchsorted(np.cumsum(sizes), want_bytes)) + 1
    oldest: U32 = rows[:enough]
    return oldest


def _beyond_shares(state: State, tier: Tier, blocks: U32) -> Bools:
    """Which blocks are of namespaces that hold more than their reserved shares."""
    owners = state.index.namespace.take(state.blocks.page.take(blocks))
    rich = [
        owner
        for owner in np.unique(owners).tolist()
        if tier.spare_bytes(state.registry.by_namespace_id[owner]) > 0
    ]
    return np.asarray(np.isin(owners, np.array(rich, np.uint32)))
