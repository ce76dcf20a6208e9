"""Which page goes next: leaf-first, least recently used, exact.

A page is used when a lookup hits it, a writer offers it, or it is sealed; each use of a path
stamps its pages with the next ticks, no two alike.  Victims are *leaves* (no page continues
them), oldest stamp first, so a path shrinks from its end and never gets a hole in the middle.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, Bools

if TYPE_CHECKING:
    from anchorstore.server.core.state import State

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

    def blocks_in(self, state: State, blocks: U32) -> Bools:
        """Which of these block rows [n] count as room made.  Row 0 does not."""
        table = state.blocks
        if self.field is Field.SLOT_CLASS:
            owners: Numbers = state.registry.class_of_kind.take(table.kind.take(blocks))
        elif self.field is Field.COMPONENT:
            owners = state.registry.component_of_kind.take(table.kind.take(blocks))
        else:
            owners = state.index.namespace.take(table.page.take(blocks))
        inside: Bools = (owners == self.value) & (blocks != 0)
        return inside

    def pages_in(self, state: State, pages: U32) -> Bools:
        """Which of these pages [n] have a block in the scope."""
        if self.field is Field.NAMESPACE:
            return np.asarray(state.index.namespace.take(pages) == self.value)
        inside = np.zeros(len(pages), np.bool_)
        current = state.index.first_block.take(pages)
        while current.any():
            inside |= self.blocks_in(state, current)
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

    def scan(self, state: State) -> None:
        """Adds the oldest leaves beyond the horizon and moves the horizon past them."""
        index = state.index
        top = index.rows.top
        leaf = (index.children[:top] == 0) & (index.first_block[:top] != 0)
        leaf &= index.stamp[:top] > self.horizon
        leaf[0] = False
        if self.scope.field is Field.NAMESPACE:
            leaf &= index.namespace[:top] == self.scope.value
        pages = np.flatnonzero(leaf).astype(np.uint32)
        pages = pages[self.scope.pages_in(state, pages)]
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
    """One queue a scope, made when first needed.  Only a cache: dropping them loses nothing."""

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


def take_leaves(state: State, scope: Scope, want_bytes: int, before: int) -> list[int]:
    """Unlinks pages to evict, in order, until slots of `want_bytes` in the scope go with them.

    Only pages last used before tick `before`; a page with a leased block is passed over.  The
    caller forgets the pages at once (`State.forget_unlinked`).
    """
    queue = state.queues.of(scope)
    chosen: list[int] = []
    seen: set[int] = set()
    passed: list[tuple[int, int]] = []
    while want_bytes > 0:
        if not queue.heap:
            if queue.horizon >= state.tick:
                break
            queue.scan(state)
            continue
        stamp, page = heapq.heappop(queue.heap)
        if stamp >= before:
            passed.append((stamp, page))
            break
        if page in seen or not _is_leaf(state, stamp, page):
            continue
        seen.add(page)
        room_bytes, leased = _room(state, scope, page)
        if leased:
            passed.append((stamp, page))
        elif room_bytes:
            want_bytes -= room_bytes
            state.unlink_leaf(page, chosen)
    for entry in passed:
        heapq.heappush(queue.heap, entry)
    return chosen


def oldest_leaf_stamp(state: State, scope: Scope) -> int | None:
    """Last use of the scope's oldest leaf, leased or not; None where it has no leaf."""
    queue = state.queues.of(scope)
    while True:
        if not queue.heap:
            if queue.horizon >= state.tick:
                return None
            queue.scan(state)
            continue
        stamp, page = queue.heap[0]
        if _is_leaf(state, stamp, page) and _room(state, scope, page)[0]:
            return stamp
        heapq.heappop(queue.heap)


def _is_leaf(state: State, stamp: int, page: int) -> bool:
    """Whether a heap entry still tells the truth: not touched since, there, nothing behind it."""
    index = state.index
    return (
        int(index.stamp[page]) == stamp
        and bool(index.namespace[page])
        and not index.children[page]
        and bool(index.first_block[page])
    )


def _room(state: State, scope: Scope, page: int) -> tuple[int, bool]:
    """Bytes of slots in the scope on this page, and whether a lease protects the page.  One page
    at a time: reading cell by cell is faster than arrays here."""
    table, registry = state.blocks, state.registry
    owner = int(state.index.namespace[page])
    room_bytes, leased = 0, False
    block = int(state.index.first_block[page])
    while block:
        kind = int(table.kind[block])
        leased = leased or bool(table.leases[block])
        match scope.field:
            case Field.SLOT_CLASS:
                inside = registry.class_of_kind[kind] == scope.value
            case Field.COMPONENT:
                inside = registry.component_of_kind[kind] == scope.value
            case Field.NAMESPACE:
                inside = owner == scope.value
        if inside:
            room_bytes += int(registry.slot_bytes_of_kind[kind])
        block = int(table.next[block])
    return room_bytes, leased


def oldest_inner_blocks(state: State, scope: Scope, want_bytes: int, before: int) -> U32:
    """Blocks of the scope on pages that others continue, least recently used pages first, until
    `want_bytes` of slots: unleased ones alone."""
    index, blocks = state.index, state.blocks
    top = index.rows.top
    inner = (index.children[:top] != 0) & (index.first_block[:top] != 0)
    inner &= index.stamp[:top] < before
    inner[0] = False
    rows = blocks.of_pages(index, np.flatnonzero(inner).astype(np.uint32))
    rows = rows[scope.blocks_in(state, rows) & (blocks.leases.take(rows) == 0)]
    pages = blocks.page.take(rows)
    rows = rows[np.lexsort((rows, index.stamp.take(pages)))]
    sizes = state.registry.slot_bytes_of_kind.take(blocks.kind.take(rows))
    enough = int(np.searchsorted(np.cumsum(sizes), want_bytes)) + 1
    oldest: U32 = rows[:enough]
    return oldest
