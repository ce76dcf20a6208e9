"""Our side of the comparison: the index of pages, a policy, the order of its leaves, runs.

What the store does around them (sessions, slots, leases in time) is left out: pages are stored,
used, protected and evicted, and nothing else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.index import PageIndex
from anchorstore.server.core.leaf_order import LeafOrder
from anchorstore.server.core.policies import POLICIES, Moment
from anchorstore.server.core.runs import Runs
from anchorstore.server.core.types import U16, U32, U64

NAMESPACE = 1
COLUMNS = (
    ("uses", np.uint16, 1),
    ("priority", np.int16, 1),
    ("created", np.uint64, 1),
    ("onward", np.uint32, 1),
)


def _columns(packed: bytes) -> U64:
    return np.frombuffer(packed, np.uint64).reshape(-1, 4)


class Table(PageIndex):
    """The index, with the columns that some policies need."""

    uses: U16
    priority: npt.NDArray[np.int16]
    created: U64


class Twin:
    """Pages by path hash.  A use that counts is an insert, as in SGLang's tree."""

    in_order = True

    def __init__(self, policy: str, *, refresh_rest: bool = True) -> None:
        """`refresh_rest` False leaves out what runs.py is for."""
        self.refresh_rest = refresh_rest
        self.index = Table(b"twin", COLUMNS)
        self.runs = Runs(self.index)
        self.order = LeafOrder(POLICIES[policy](), self.index, self, scan_leaves=16)
        self.leases: dict[int, int] = {}  # page row -> locks on it
        self.tick = 1

    # ---- the leaves, for LeafOrder ----

    def has(self, page: int) -> bool:
        return bool(self.index.namespace[page]) and not self.index.children[page]

    def rows(self) -> U32:
        top = self.index.rows.top
        leaf = (self.index.namespace[:top] != 0) & (self.index.children[:top] == 0)
        return np.flatnonzero(leaf).astype(np.uint32)

    # ---- steps ----

    def _use(self, path: U32) -> None:
        """Stamps a path, and before it the rest of the run that it ends in."""
        rest = self.runs.cut(int(path[-1])) if len(path) else path
        for rows in (rest if self.refresh_rest else path[:0], path):
            ticks = np.arange(self.tick + 1, self.tick + 1 + len(rows), dtype=np.uint64)
            self.index.stamp[rows] = ticks
            self.tick += len(rows)

    def _known(self, hashes: U64) -> U32:
        path = self.index.find(NAMESPACE, hashes)
        return path[: np.count_nonzero(path)]

    @property
    def pages(self) -> int:
        """How many are held."""
        return len(self.index)

    def insert(self, packed: bytes, priority: int) -> None:
        """Stores a path of n path hashes [32 n]; what is there already is used."""
        index, hashes = self.index, _columns(packed)
        path = self._known(hashes)
        self._use(path)
        known = len(path)
        numbers = np.arange(known, len(hashes), dtype=np.uint32)
        fresh = index.insert(NAMESPACE, hashes[known:], numbers, self.tick)
        index.children[fresh] = index.uses[fresh] = 0
        index.priority[fresh] = priority
        index.created[fresh] = self.tick
        if len(fresh):
            self.runs.grow(fresh)
            _, parents = index.link(np.r_[path[-1:], fresh].astype(np.uint32))
            np.add.at(index.children, parents, 1)
            self._use(fresh)
            self.order.announce(int(fresh[-1]))
        whole = np.r_[path, fresh].astype(np.uint32)
        index.uses[whole] += np.uint16(1)
        index.priority[whole] = np.maximum(index.priority[whole], priority)

    def match(self, packed: bytes) -> int:
        """Uses the longest stored prefix; how many pages that is."""
        path = self._known(_columns(packed))
        self._use(path)
        return len(path)

    def lock(self, packed: bytes) -> U32:
        """The same, and protects it until `unlock` gets what this returns."""
        path = self._known(_columns(packed))
        self._use(path)
        for page in path.tolist():
            self.leases[page] = self.leases.get(page, 0) + 1
        return path

    def unlock(self, path: U32) -> None:
        for page in path.tolist():
            self.leases[page] -= 1

    def evict(self, count: int) -> list[bytes]:
        """Evicts `count` pages, or as many as may go; their path hashes, in order."""
        gone: list[bytes] = []
        with self.order.walk(Moment(self.tick)) as walk:
            while len(gone) < count and (page := next(walk, 0)):
                if self.leases.get(page):
                    walk.keep(page)
                    continue
                gone.append(self.index.hash_of(page))
                self._forget(page)
        return gone

    def _forget(self, page: int) -> None:
        index = self.index
        parent = int(index.parent[page])
        self.runs.forget(page, parent)
        index.remove(np.array([page], np.uint32))
        if parent:
            index.children[parent] -= np.uint32(1)
            if not index.children[parent]:
                self.order.announce(parent)

    def held(self) -> set[bytes]:
        """Path hashes of all pages."""
        return {self.index.hash_of(page) for page in self.index.live_rows().tolist()}
