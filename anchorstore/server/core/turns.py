"""Whose turn it is: deficit round robin over bounded lines, one an owner.  Small and pure.

::

    put(acme, 4 MiB) ... -> acme    [ 4 | 4 | 4 | 4 ]   credit 0      next() -> acme's, globex's,
    put(globex, 1 MiB)   -> globex  [ 1 ]               credit 3              acme's, acme's, ...

Each time it is an owner's turn he is given a quantum; what that cannot pay for waits until the turn
comes round again.  So owners who always have something waiting get equal costs in the long run,
whatever the sizes and however many they put.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Owner = int


class Turns(Generic[Item]):
    """Items that wait.

    Args:
        limit: of the counts of all of them together.
        quantum: cost that a turn pays for.
    """

    def __init__(self, limit: int, quantum: int) -> None:
        assert limit > 0 and quantum > 0, (limit, quantum)
        self._limit, self._quantum = limit, quantum
        self._lines: collections.OrderedDict[Owner, Line[Item]] = collections.OrderedDict()
        self._credit: collections.Counter[Owner] = collections.Counter()
        self._counts: collections.Counter[Owner] = collections.Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def room(self, owner: Owner) -> int:
        """What the owner may still put: where others wait, they have half of all to themselves."""
        room = self._limit - len(self)
        if self._lines.keys() - {owner}:
            room = min(room, self._limit // 2 - self._counts[owner])
        return max(0, room)

    def put(self, owner: Owner, item: Item, cost: int, count: int = 1) -> None:
        """Appends an item to the owner's line; there is room for its count."""
        self._lines.setdefault(owner, collections.deque()).append((item, cost, count))
        self._counts[owner] += count

    def next(self) -> Item | None:
        """The item whose turn it is; None where nothing waits."""
        while self._lines:
            owner, line = next(iter(self._lines.items()))
            item, cost, count = line[0]
            if self._credit[owner] < cost:
                self._credit[owner] += self._quantum
                self._lines.move_to_end(owner)
                continue
            self._credit[owner] -= cost
            line.popleft()
            self._counts[owner] -= count
            self._forget_if_empty(owner)
            return item
        return None

    def drop(self, which: Callable[[Item], bool]) -> list[Item]:
        """Takes these items out, wherever they wait."""
        dropped = []
        for owner, line in list(self._lines.items()):
            kept: Line[Item] = collections.deque()
            for item, cost, count in line:
                if which(item):
                    dropped.append(item)
                    self._counts[owner] -= count
                else:
                    kept.append((item, cost, count))
            self._lines[owner] = kept
            self._forget_if_empty(owner)
        return dropped

    def _forget_if_empty(self, owner: Owner) -> None:
        """Nobody saves up for a time when he wants nothing."""
        if not self._lines[owner]:
            del self._lines[owner], self._credit[owner], self._counts[owner]


Line = collections.deque[tuple[Item, int, int]]
"""Items with their costs and counts."""
