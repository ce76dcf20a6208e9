"""Random steps that drive a tree of nodes, as engines keep, and an index of pages.

Time is the order of the steps.  The tree evicts whole nodes, ours evicts pages: ours is asked for
as many as the tree let go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from anchorstore.keys import Namespace, path_hashes

PAGE_TOKENS = 4
STEPS = 10_000
HELD_MAX = 1200
PATH_PAGES_MAX = 24
LOCKS_MAX = 12
NAMESPACE = Namespace("domain", "model", b"w" * 32, page_tokens=PAGE_TOKENS)


class Tree(Protocol):
    """Theirs.  `pages` are numbers, each of which names a page and all before it."""

    def insert(self, tokens: Sequence[int], pages: Sequence[int], priority: int) -> None:
        """Stores a path; `pages` has one number a full page of `tokens`."""

    def match(self, tokens: Sequence[int]) -> tuple[int, Any]:
        """Pages of the longest stored prefix, and the node where it ends."""

    def lock(self, node: Any) -> Any:
        """Protects the path down to a node; what `unlock` takes."""

    def unlock(self, lock: Any) -> None: ...

    def evict(self, pages: int) -> list[int]:
        """Evicts whole nodes until so many pages are free, or none can go; the pages, in order,
        the last of a node first."""

    def held(self) -> set[int]:
        """Every page in the tree."""


class Pages(Protocol):
    """Ours.  Paths are path hashes, 32 bytes each."""

    in_order: bool
    """Whether `evict` names the pages in the order in which they went."""

    @property
    def pages(self) -> int:
        """How many are held."""

    def insert(self, hashes: bytes, priority: int) -> None:
        """Stores a path; what is there already is used."""

    def match(self, hashes: bytes) -> int:
        """Uses the longest stored prefix; how many pages that is."""

    def lock(self, hashes: bytes) -> Any:
        """The same, and protects it until `unlock` gets what this returns."""

    def unlock(self, lock: Any) -> None: ...

    def evict(self, count: int) -> list[bytes]:
        """Evicts `count` pages, or as many as may go; their path hashes."""

    def held(self) -> set[bytes]:
        """Path hashes of all pages."""


class Trace:
    """Both sides, one random source, the same steps."""

    def __init__(self, theirs: Tree, ours: Pages, seed: int) -> None:
        self.theirs, self.ours = theirs, ours
        self.random = random.Random(seed)
        self.root = NAMESPACE.root_digest()
        self.paths: list[list[int]] = [[]]  # tokens of paths that were inserted
        self.numbers: dict[bytes, int] = {}  # path hash -> the number that SGLang knows it by
        self.locks: list[tuple[Any, Any]] = []
        self.evicted = 0
        self.evictions = 0

    def step(self) -> None:
        verbs = [self.insert] * 6 + [self.match] * 4 + [self.lock, self.unlock]
        self.random.choice(verbs)()
        if self.ours.pages > HELD_MAX or self.random.random() < 0.02:
            self.evict()

    def tokens(self) -> list[int]:
        """A prefix of some path, and often something new behind it."""
        old = self.random.choice(self.paths)
        cut = self.random.choice([len(old), self.random.randint(0, len(old))])
        new = self.random.choice([0, 1, 3, 8]) * PAGE_TOKENS + self.random.randint(0, 3)
        tail = [self.random.randint(0, 2) for _ in range(new)]
        return (old[:cut] + tail)[: PATH_PAGES_MAX * PAGE_TOKENS]

    def hashes(self, tokens: list[int]) -> bytes:
        return path_hashes(self.root, tokens, PAGE_TOKENS)

    def insert(self) -> None:
        tokens, priority = self.tokens(), self.random.choice([0, 0, 0, 1, 5, -2])
        packed = self.hashes(tokens)
        keys = [packed[start : start + 32] for start in range(0, len(packed), 32)]
        pages = [self.numbers.setdefault(key, len(self.numbers)) for key in keys]
        self.theirs.insert(tokens, pages, priority)
        self.ours.insert(packed, priority)
        self.paths.append(tokens)
        del self.paths[:-400]

    def match(self) -> None:
        tokens = self.tokens()
        assert self.ours.match(self.hashes(tokens)) == self.theirs.match(tokens)[0]

    def lock(self) -> None:
        tokens = self.tokens()
        pages, node = self.theirs.match(tokens)
        if pages and len(self.locks) < LOCKS_MAX:
            self.locks.append((self.theirs.lock(node), self.ours.lock(self.hashes(tokens))))
        else:
            assert self.ours.match(self.hashes(tokens)) == pages

    def unlock(self) -> None:
        if self.locks:
            theirs, ours = self.locks.pop(self.random.randrange(len(self.locks)))
            self.theirs.unlock(theirs)
            self.ours.unlock(ours)

    def evict(self, pages: int = 0) -> None:
        gone = self.theirs.evict(pages or self.random.choice([1, 5, 40, 200]))
        mine = [self.numbers[key] for key in self.ours.evict(len(gone))]
        assert set(mine) == set(gone)
        assert mine == gone or not self.ours.in_order
        self.evicted += len(gone)
        self.evictions += 1

    def compare(self) -> None:
        assert {self.numbers[key] for key in self.ours.held()} == self.theirs.held()

    def run(self, steps: int = STEPS) -> None:
        """All of it; in the end everything goes."""
        for number in range(steps):
            self.step()
            if number % 1000 == 0:
                self.compare()
        while self.locks:
            self.unlock()
        self.compare()
        self.evict(self.ours.pages)
        assert not self.ours.held() and not self.theirs.held()
