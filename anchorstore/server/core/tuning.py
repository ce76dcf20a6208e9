"""How much FlopAware's second term counts: chosen by replaying a window of requests.

::

    requests, from the first on  -->  Bootstrap  -- is_full -->  tune  -->  alpha
    the first eviction at n            until 5 n                 each alpha of a grid serves the
                                                                 window once; the most work saved

It is the last tier's: what leaves memory for nvme costs no work, only a read, so recency is right
there.  A cache that is not full yet says nothing about eviction, so the window runs to five times
the requests that came before the first eviction (as in Marconi, arXiv 2411.19379), or to its
bounds.  Replaying takes a second or so: the shell does it away from the requests, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anchorstore.server.core.leaf_order import LeafOrder
from anchorstore.server.core.policies import FlopAware, Moment, Policy
from anchorstore.server.core.types import U32, U64

WINDOW = 5
ALPHAS = tuple(step / 10 for step in range(21))


@dataclasses.dataclass(frozen=True)
class Window:
    """What was asked for.  `paths` are arrays of page numbers, from page 0 of a prefix on; `sizes`
    [pages] bytes by page number."""

    paths: Sequence[U32]
    sizes: U64


class Bootstrap:
    """Records the first requests: `requests_min` at least, `requests_max` at most, and until
    `pages_max` pages are named in them."""

    def __init__(
        self, requests_min: int = 100, requests_max: int = 5_000, pages_max: int = 100_000
    ) -> None:
        self._requests_min, self._requests_max = requests_min, requests_max
        self._pages_left = pages_max
        self._numbers: dict[bytes, int] = {}
        self._sizes: list[int] = []
        self._paths: list[U32] = []

    def note(self, hashes: U64, page_bytes: int) -> None:
        """One request: the path hashes [n, 4] that it used or stored, and what a page of its
        takes.  Once the window is full nothing more is noted."""
        if self.is_full:
            return
        path = np.zeros(len(hashes), np.uint32)
        for place, key in enumerate(hashes):
            number = self._numbers.setdefault(key.tobytes(), len(self._numbers))
            if number == len(self._sizes):
                self._sizes.append(page_bytes)
            path[place] = number
        self._paths.append(path)
        self._pages_left -= len(path)

    def evicted(self) -> None:
        """An eviction; at the first one, the window ends at five times the requests until now."""
        wanted = max(self._requests_min, WINDOW * len(self._paths))
        self._requests_max = min(self._requests_max, wanted)

    @property
    def is_full(self) -> bool:
        """Whether the window is complete."""
        return len(self._paths) >= self._requests_max or self._pages_left <= 0

    def window(self) -> Window:
        """What was noted."""
        return Window(self._paths, np.array(self._sizes, np.uint64))


class _Cache:
    """Pages of a window under one policy: columns by page number plus 1."""

    def __init__(self, policy: Policy, sizes: U64) -> None:
        count = len(sizes) + 1
        self.stamp = np.zeros(count, np.uint64)
        self.page = np.zeros(count, np.uint32)
        self.parent = np.zeros(count, np.uint32)
        self.children = np.zeros(count, np.uint32)
        self.bytes = np.r_[np.uint64(0), sizes]
        self.resident = np.zeros(count, np.bool_)
        self.used_bytes = 0
        self.tick = 1
        self.order = LeafOrder(policy, self, self)

    def has(self, page: int) -> bool:
        return bool(self.resident[page]) and not self.children[page]

    def rows(self) -> U32:
        return np.flatnonzero(self.resident & (self.children == 0)).astype(np.uint32)

    def serve(self, path: U32, capacity_bytes: int) -> int:
        """Uses what is there of a path, stores the rest, evicts; pages that were there."""
        there = self.resident.take(path)
        known = int(np.argmin(there)) if not there.all() else len(path)
        fresh = path[known:]
        self.resident[fresh] = True
        self.page[path] = np.arange(len(path), dtype=np.uint32)
        self.parent[path[1:]] = path[:-1]
        np.add.at(self.children, path[max(known, 1) - 1 : -1], 1)
        self.used_bytes += int(self.bytes.take(fresh).sum())
        first = self.tick + 1
        self.tick += len(path)
        self.stamp[path] = np.arange(first, self.tick + 1, dtype=np.uint64)
        if len(path):
            self.order.announce(int(path[-1]))
        if self.used_bytes > capacity_bytes:
            self._evict(capacity_bytes, first)
        return known

    def _evict(self, capacity_bytes: int, before: int) -> None:
        with self.order.walk(Moment(self.tick)) as walk:
            for page in walk:
                if self.stamp[page] >= before:
                    walk.keep(page)
                    continue
                self.resident[page] = False
                self.used_bytes -= int(self.bytes[page])
                if parent := int(self.parent[page]):
                    self.children[parent] -= np.uint32(1)
                    if not self.children[parent]:
                        self.order.announce(parent)
                if self.used_bytes <= capacity_bytes:
                    return


def work_saved(policy: Policy, window: Window, capacity_bytes: int, balance_pages: float) -> float:
    """What a cache of `capacity_bytes` spares the window's requests under this policy, in pages
    computed at the start of a prefix."""
    cache = _Cache(policy, window.sizes)
    saved = 0.0
    for path in window.paths:
        known = cache.serve(path + np.uint32(1), capacity_bytes)
        saved += known + known * (known - 1) / 2 / balance_pages
    return saved


def tune(
    window: Window, capacity_bytes: int, balance_pages: float, alphas: Sequence[float] = ALPHAS
) -> FlopAware:
    """The policy with the alpha that would have saved the most work; the smallest of equals."""
    policies = [FlopAware(alpha=alpha, balance_pages=balance_pages) for alpha in alphas]
    return max(
        policies, key=lambda policy: work_saved(policy, window, capacity_bytes, balance_pages)
    )
