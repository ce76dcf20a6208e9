"""The leaves of a scope in a policy's order, exact, without sorting them all.

::

    all leaves of a scope   o o o o o o o o o o o o     by key
    scan                    [ lowest ones ]| horizon
    heap                    pop, look again: still a leaf, key still the same?

A scan takes every leaf up to the horizon key into a heap; pops drain it before the next scan.  An
entry is a hint: what it says is looked up again when it comes out.  Exact, because

- a use never lowers a key: an entry comes out early rather than late, and goes back in where the
  page's key is still within the horizon;
- a page whose key may be within the horizon without an entry is *announced*: it became a leaf, it
  was just stored, or its key was lowered.

A page that is `early` goes before all that are not, whatever the policy says; it becomes so by an
announcement, and ceases by itself.

A policy that drifts is measured anew by every walk, or by every one after `patience_ticks`: a scan
reads all leaves, so exactness to the tick has its price.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from anchorstore.server.core.policies import Moment, Pages, Policy
from anchorstore.server.core.types import U32, U64, Bools

SCAN_LEAVES_MIN = 1024
NOTHING = -1  # below every key: nothing was scanned
ENTRIES_MIN = 65_536
"""A heap of so many entries, or twice the leaves of the last scan, is dropped: most say the same
page again."""

Rows = U32 | int
Early = Callable[[Rows], Any]
"""Which of these page rows, an array or one, are early."""
ONE, TOP = np.uint64(1), np.uint64(63)


def early_first(keys: U64, early: Any) -> U64:
    """Keys among which those of early pages are the lower half: neighbouring ticks, no more, may
    become one."""
    late: U64 = (~early).astype(np.uint64)
    return (keys >> ONE) | (late << TOP)


class Leaves(Protocol):
    """The leaves of a scope."""

    def rows(self) -> U32:
        """All of them, in any order."""
        ...

    def has(self, page: int) -> bool:
        """Whether the page is one of them now.  Any row number may be asked for."""
        ...


class LeafOrder:
    """The leaves of one scope, the smallest key first.  Only a cache: dropping it loses nothing.

    A scan takes an eighth of the leaves, `scan_leaves` at least.
    """

    def __init__(
        self,
        policy: Policy,
        pages: Pages,
        leaves: Leaves,
        *,
        patience_ticks: int = 0,
        scan_leaves: int = SCAN_LEAVES_MIN,
        early: Early | None = None,
    ) -> None:
        self.policy = policy  # as the last scan fixed it
        self._pages, self._leaves, self._early = pages, leaves, early
        self._entries_max = ENTRIES_MIN
        self._patience_ticks, self._scan_leaves = patience_ticks, scan_leaves
        self._heap: list[tuple[int, int]] = []  # (key, page row)
        self._horizon = NOTHING
        self._measured = NOTHING  # tick at which a policy that drifts was fixed
        self._exhausted = NOTHING  # tick at which a scan found nothing beyond the horizon

    def key(self, page: int) -> int:
        """A page's key, as the last scan measures."""
        key = self.policy.key(self._pages, page)
        return key if self._early is None else key >> 1 | (not self._early(page)) << 63

    def lowest_key(self, pages: U32) -> int:
        """Of these pages [n], at least one."""
        return int(self._keys(pages).min())

    def _keys(self, pages: U32) -> U64:
        keys = self.policy.keys(self._pages, pages)
        return keys if self._early is None else early_first(keys, self._early(pages))

    def are_next(self, pages: U32) -> Bools:
        """Which of these pages [n] would be the next one to go, were it a leaf."""
        keys = self._keys(pages)
        if self._horizon == NOTHING:
            return np.zeros(len(pages), np.bool_)
        found: Bools = keys <= np.uint64(self._horizon)
        if self._heap:
            found &= keys < np.uint64(self._heap[0][0])
        return found

    def are_below(self, pages: U32, limit: int) -> Bools:
        """Which of these pages [n] have a key below that."""
        return np.asarray(self._keys(pages) < np.uint64(limit))

    def announce(self, page: int) -> None:
        """`page` may have become a leaf of this scope, or its key may have fallen."""
        self._enter(self.key(page), page)

    def announce_all(self, pages: U32) -> None:
        """The same of many pages at once."""
        self._exhausted = NOTHING
        if self._horizon == NOTHING:
            return
        keys = self._keys(pages)
        near = keys <= np.uint64(self._horizon)
        for entry in zip(keys[near].tolist(), pages[near].tolist(), strict=True):
            heapq.heappush(self._heap, entry)
        if len(self._heap) > self._entries_max:
            self._forget()

    def _forget(self) -> None:
        """The next walk scans anew."""
        self._heap.clear()
        self._horizon = self._exhausted = NOTHING

    def first(self, now: Moment) -> int:
        """The page that would go first, busy or not; 0 where there is none."""
        with self.walk(now) as walk:
            page = next(walk, 0)
            if page:
                walk.keep(page)
        return page

    def walk(self, now: Moment) -> Walk:
        """Goes through the leaves in order; see Walk."""
        if self.policy.drifts and now.tick > self._measured + self._patience_ticks:
            self._measured = now.tick
            self._forget()
        return Walk(self, now)

    def _enter(self, key: int, page: int) -> None:
        """Puts a page into the heap, or leaves it to the next scan."""
        if key <= self._horizon:
            heapq.heappush(self._heap, (key, page))
        else:
            self._exhausted = NOTHING

    def _pop(self, now: Moment) -> tuple[int, int] | None:
        """Takes the next leaf out."""
        while self._heap or self._scan(now):
            key, page = heapq.heappop(self._heap)
            if not self._leaves.has(page):
                continue
            actual = self.key(page)
            if actual == key:
                return key, page
            self._enter(actual, page)
        return None

    def _scan(self, now: Moment) -> bool:
        """Adds the lowest leaves beyond the horizon and moves the horizon to the last of them;
        whether there were any."""
        if self._exhausted == now.tick:
            return False
        rows = self._leaves.rows()
        if self._horizon == NOTHING:
            self.policy = self.policy.fixed(self._pages, rows, now)
        keys = self._keys(rows)
        self._entries_max = max(ENTRIES_MIN, 2 * len(rows))
        if self._horizon != NOTHING:
            beyond = keys > np.uint64(self._horizon)
            rows, keys = rows[beyond], keys[beyond]
        if not len(rows):
            self._exhausted = now.tick
            return False
        count = max(self._scan_leaves, len(rows) // 8)
        if len(rows) > 2 * count:
            near = keys <= np.partition(keys, count)[count]
            rows, keys = rows[near], keys[near]
        self._horizon = int(keys.max())
        self._heap += zip(keys.tolist(), rows.tolist(), strict=True)
        heapq.heapify(self._heap)
        return True


class Walk(Iterator[int]):
    """Leaves of an order, one after another, while the caller evicts them::

        with order.walk(now) as walk:
            for page in walk:
                if busy(page):
                    walk.keep(page)
                else:
                    unlink(page)        # and announce the parent, if that is a leaf now

    What is kept is there again for the next walk; what is neither kept nor gone may be missing.
    Each page comes once a walk.
    """

    def __init__(self, order: LeafOrder, now: Moment) -> None:
        self._order, self._now = order, now
        self._seen: dict[int, int] = {}  # pages that came as leaves: their keys
        self._kept: list[int] = []
        self._exposed: list[tuple[int, int]] = []

    def __enter__(self) -> Walk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for page in self._kept:
            self._order._enter(self._seen[page], page)

    def __next__(self) -> int:
        while (entry := self._order._pop(self._now)) is not None:
            if entry[1] in self._seen:
                continue
            if self._exposed and self._exposed[0] < entry:
                heapq.heappush(self._order._heap, entry)
                break
            key, page = entry
            self._seen[page] = key
            return page
        if not self._exposed:
            raise StopIteration
        return heapq.heappop(self._exposed)[1]

    def keep(self, page: int) -> None:
        """Passes the page over for the rest of this walk: it stays."""
        if page in self._seen:  # else it was exposed, and is no leaf yet
            self._kept.append(page)

    def skip(self, pages: Iterable[int]) -> None:
        """Pages that the caller has taken without their having come: they do not come any more."""
        self._seen.update(dict.fromkeys(pages, NOTHING))

    def expose(self, page: int) -> None:
        """Takes a page for a leaf in this walk alone, as if those behind it were gone already:
        for looking ahead."""
        heapq.heappush(self._exposed, (self._order.key(page), page))
