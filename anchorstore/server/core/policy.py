"""Which page goes next: leaf-first, least recently used, exact.

A page is used when a lookup hits it, a writer offers it, or it is sealed; each use of a path
stamps its pages with the next ticks, no two alike.  Victims are *leaves* of a tier (no page in the
tier continues them), oldest stamp first, so a path shrinks from its end and never gets a hole in
the middle.

Exact, but without a linked list (512 pages of a path are touched in one numpy statement)::

    all leaves of a scope   o o o o o o o o o o o o     by stamp
    scan                    [ oldest ones ]| horizon
    heap                    pop, look again: still there, still a leaf, not touched since?

A scan takes every leaf up to the horizon stamp into a heap; pops drain it before the next scan.
That stays exact because every use gives a stamp beyond the horizon, and because a page that
*becomes* a leaf is announced (`LeafQueues.announce`) and joins where it is older than the horizon.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, Bools

if TYPE_CHECKING:
    from anchorstore.server.core.state import State
    from anchorstore.server.core.tier import Tier

Numbers = npt.NDArray[np.unsignedinteger[Any]]

SCAN_LEAVES_MIN = 1024
QUEUES_MAX = 64


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


class LeafQueue:
    """The leaves of one scope, oldest first."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.horizon = 0
        self.heap: list[tuple[int, int]] = []  # (stamp, page row)

    def announce(self, state: State, page: int) -> None:
        """`page` has just become a leaf, of this scope or another: `take_leaves` looks."""
        stamp = int(state.index.stamp[page])
        if stamp <= self.horizon:
            heapq.heappush(self.heap, (stamp, page))

    def scan(self, state: State, tier: Tier) -> None:
        """Adds the oldest leaves beyond the horizon and moves the horizon past them."""
        index = state.index
        top = index.rows.top
        leaf = tier.leaves()
        leaf &= index.stamp[:top] > self.horizon
        if self.scope.field is Field.NAMESPACE:
            leaf &= index.namespace[:top] == self.scope.value
        pages = np.flatnonzero(leaf).astype(np.uint32)
        pages = pages[self.scope.pages_in(state, tier, pages)]
        stamps = index.stamp.take(pages)
        count = max(SCAN_LEAVES_MIN, len(pages) // 8)
        self.horizon = state.tick
        if len(pages) > 2 * count:
            self.horizon = int(np.partition(stamps, count)[count])
            near = stamps <= self.horizon
            pages, stamps = pages[near], stamps[near]
        self.heap += zip(stamps.tolist(), pages.tolist(), strict=True)
        heapq.heapify(self.heap)


class LeafQueues:
    """A tier's queues: one a scope, made when first needed.  Only a cache: dropping them loses
    nothing."""

    def __init__(self) -> None:
        self.by_scope: dict[Scope, LeafQueue] = {}

    def of(self, scope: Scope) -> LeafQueue:
        """The scope's queue."""
        if scope not in self.by_scope:
            if len(self.by_scope) >= QUEUES_MAX:
                self.by_scope.clear()
            self.by_scope[scope] = LeafQueue(scope)
        return self.by_scope[scope]

    def announce(self, state: State, page: int) -> None:
        """Tells every queue that `page` has become a leaf."""
        for queue in self.by_scope.values():
            queue.announce(state, page)


def take_leaves(
    state: State,
    tier: Tier,
    scope: Scope,
    want_bytes: int,
    before: int,
    may_go: Callable[[int], bool] | None = None,
) -> tuple[list[int], list[int]]:
    """Pages to evict from the tier, in order, until slots of `want_bytes` in the scope go with
    them; and the holes that go with those.

    Only pages last used before tick `before`; a page with a busy block, and one that `may_go`
    refuses, is passed over.  They count as out of the tier; the caller takes their blocks out at
    once (`State.leave`).
    """
    queue = tier.queues.of(scope)
    chosen: list[int] = []
    holes: list[int] = []
    seen: set[int] = set()
    passed: list[tuple[int, int]] = []
    while want_bytes > 0:
        if not queue.heap:
            if queue.horizon >= state.tick:
                break
            queue.scan(state, tier)
            continue
        stamp, page = heapq.heappop(queue.heap)
        if stamp >= before:
            passed.append((stamp, page))
            break
        if page in seen or not _is_leaf(state, tier, stamp, page):
            continue
        seen.add(page)
        room_bytes, busy = _room(state, tier, scope, page)
        if busy or (room_bytes and may_go is not None and not may_go(page)):
            passed.append((stamp, page))
        elif room_bytes:
            want_bytes -= room_bytes
            chosen.append(page)
            state.retreat(tier, page, holes)
    for entry in passed:
        heapq.heappush(queue.heap, entry)
    return chosen, holes


def next_leaves(state: State, tier: Tier, scope: Scope, pages_max: int, before: int) -> list[int]:
    """The pages that `take_leaves` would take next, at most so many; nothing changes.

    Busy ones are named too: they may be idle by then.
    """
    queue = tier.queues.of(scope)
    found: list[int] = []
    seen: set[int] = set()
    looked_at: list[tuple[int, int]] = []
    freed: list[tuple[int, int]] = []  # leaves once what has been found is gone
    followers: dict[int, int] = {}
    while len(found) < pages_max:
        if not queue.heap and not freed:
            if queue.horizon >= state.tick:
                break
            queue.scan(state, tier)
            continue
        if freed and (not queue.heap or freed[0] < queue.heap[0]):
            stamp, page = heapq.heappop(freed)
        else:
            stamp, page = heapq.heappop(queue.heap)
            if page in seen or not _is_leaf(state, tier, stamp, page):
                continue
            looked_at.append((stamp, page))
        if stamp >= before:
            break
        seen.add(page)
        if _room(state, tier, scope, page)[0]:
            found.append(page)
            _follow_up(state, tier, page, followers, freed)
    for entry in looked_at:
        heapq.heappush(queue.heap, entry)
    return found


def _follow_up(
    state: State,
    tier: Tier,
    page: int,
    followers: dict[int, int],
    freed: list[tuple[int, int]],
) -> None:
    """What becomes a leaf where `page` leaves, in a game of its own."""
    index = state.index
    while parent := int(index.parent[page]):
        left = followers.get(parent, int(tier.children[parent])) - 1
        followers[parent] = left
        if left:
            return
        if tier.is_on(parent):
            heapq.heappush(freed, (int(index.stamp[parent]), parent))
            return
        page = parent


def oldest_leaf_stamp(state: State, tier: Tier, scope: Scope) -> int | None:
    """Last use of the scope's oldest leaf, leased or not; None where it has no leaf."""
    queue = tier.queues.of(scope)
    while True:
        if not queue.heap:
            if queue.horizon >= state.tick:
                return None
            queue.scan(state, tier)
            continue
        stamp, page = queue.heap[0]
        if _is_leaf(state, tier, stamp, page) and _room(state, tier, scope, page)[0]:
            return stamp
        heapq.heappop(queue.heap)


def _is_leaf(state: State, tier: Tier, stamp: int, page: int) -> bool:
    """Whether a heap entry still tells the truth: not touched since, there, nothing behind it."""
    index = state.index
    return (
        int(index.stamp[page]) == stamp
        and bool(index.namespace[page])
        and not tier.children[page]
        and tier.is_on(page)
    )


def _room(state: State, tier: Tier, scope: Scope, page: int) -> tuple[int, bool]:
    """Bytes of slots in the scope on this page, and whether a busy block protects the page.  One
    page at a time: reading cell by cell is faster than arrays here."""
    table, registry = state.blocks, state.registry
    owner = int(state.index.namespace[page])
    room_bytes, busy = 0, False
    block = int(state.index.first_block[page])
    while block:
        if tier.holds_one(block):
            kind = int(table.kind[block])
            busy = busy or tier.busy_one(block)
            match scope.field:
                case Field.SLOT_CLASS:
                    inside = tier.class_of_kind[kind] == scope.value
                case Field.COMPONENT:
                    inside = registry.component_of_kind[kind] == scope.value
                case Field.NAMESPACE:
                    inside = owner == scope.value
            if inside:
                room_bytes += int(tier.slot_bytes_of_kind[kind])
        block = int(table.next[block])
    return room_bytes, busy


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
    pages = blocks.page.take(rows)
    rows = rows[np.lexsort((rows, index.stamp.take(pages)))]
    sizes = tier.slot_bytes_of_kind.take(blocks.kind.take(rows))
    enough = int(np.searchsorted(np.cumsum(sizes), want_bytes)) + 1
    oldest: U32 = rows[:enough]
    return oldest
