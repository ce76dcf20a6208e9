"""Our order of eviction against SGLang's own tree.

Goal: for lru, lfu, slru, priority and fifo, 10,000 random steps of insert, match, lock, unlock and
evict make SGLang's unified radix tree and our index evict the same pages, in the same order, and
hold the same pages afterwards.  Method: one seeded trace drives both; time is the order of the
steps.  SGLang evicts whole nodes, we evict pages: ours is asked for as many as SGLang let go.
A control without the one rule of SGLang's that is not obvious (runs.py) must fail.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from anchorstore.keys import Namespace, path_hashes
from anchorstore.server.core.types import U32, U64
from tests.oracle.twin import Twin

if TYPE_CHECKING:
    from tests.oracle.sglang_tree import SglangTree

PAGE_TOKENS = 4
STEPS = 10_000
HELD_MAX = 1200
PATH_PAGES_MAX = 24


class Trace:
    """Both sides, one random source, the same steps."""

    def __init__(self, theirs: SglangTree, ours: Twin, seed: int) -> None:
        self.theirs, self.ours = theirs, ours
        self.random = random.Random(seed)
        self.root = Namespace("domain", "model", b"w" * 32, page_tokens=PAGE_TOKENS).root_digest()
        self.paths: list[list[int]] = [[]]  # tokens of paths that were inserted
        self.numbers: dict[bytes, int] = {}  # path hash -> the number that SGLang knows it by
        self.locks: list[tuple[Any, U32]] = []
        self.evicted = 0
        self.evictions = 0

    def step(self) -> None:
        verbs = [self.insert] * 6 + [self.match] * 4 + [self.lock, self.unlock]
        self.random.choice(verbs)()
        if len(self.ours.index) > HELD_MAX or self.random.random() < 0.02:
            self.evict()

    def tokens(self) -> list[int]:
        """A prefix of some path, and often something new behind it."""
        old = self.random.choice(self.paths)
        cut = self.random.choice([len(old), self.random.randint(0, len(old))])
        new = self.random.choice([0, 1, 3, 8]) * PAGE_TOKENS + self.random.randint(0, 3)
        tail = [self.random.randint(0, 2) for _ in range(new)]
        return (old[:cut] + tail)[: PATH_PAGES_MAX * PAGE_TOKENS]

    def hashes(self, tokens: list[int]) -> U64:
        packed = path_hashes(self.root, tokens, PAGE_TOKENS)
        return np.frombuffer(packed, np.uint64).reshape(-1, 4)

    def insert(self) -> None:
        tokens, priority = self.tokens(), self.random.choice([0, 0, 0, 1, 5, -2])
        hashes = self.hashes(tokens)
        pages = [self.numbers.setdefault(key.tobytes(), len(self.numbers)) for key in hashes]
        self.theirs.insert(tokens, pages, priority)
        self.ours.insert(hashes, priority)
        self.paths.append(tokens)
        del self.paths[:-400]

    def match(self) -> tuple[Any, U32]:
        tokens = self.tokens()
        length, node = self.theirs.match(tokens)
        path = self.ours.match(self.hashes(tokens))
        assert len(path) == length
        return node, path

    def lock(self) -> None:
        node, path = self.match()
        if len(path) and len(self.locks) < 12:
            self.locks.append((self.theirs.lock(node), path))
            self.ours.lock(path)

    def unlock(self) -> None:
        if self.locks:
            lock, path = self.locks.pop(self.random.randrange(len(self.locks)))
            self.theirs.unlock(lock)
            self.ours.unlock(path)

    def evict(self) -> None:
        gone = self.theirs.evict(self.random.choice([1, 5, 40, 200]))
        mine = [self.numbers[key] for key in self.ours.evict(len(gone))]
        assert mine == gone
        self.evicted += len(gone)
        self.evictions += 1

    def compare(self) -> None:
        assert {self.numbers[key] for key in self.ours.held()} == self.theirs.held()


def run(trace: Trace) -> None:
    for number in range(STEPS):
        trace.step()
        if number % 1000 == 0:
            trace.compare()
    while trace.locks:
        trace.unlock()
    trace.compare()
    rest = len(trace.ours.index)
    assert [trace.numbers[key] for key in trace.ours.evict(rest)] == trace.theirs.evict(rest)
    assert not trace.ours.held() and not trace.theirs.held()


@pytest.mark.parametrize("core", ["python", "rust"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority", "fifo"])
def test_order_same_steps_same_victims(
    tree_class: type[SglangTree], policy: str, core: str
) -> None:
    theirs = tree_class(policy, core, PAGE_TOKENS)
    assert theirs.is_rust == (core == "rust"), "SGLang fell back to its other core"
    trace = Trace(theirs, Twin(policy), seed=len(policy))
    run(trace)
    assert trace.evictions > 200 and trace.evicted > STEPS


def test_order_without_the_rule_of_split_nodes_differs(tree_class: type[SglangTree]) -> None:
    ours = Twin("lru", refresh_rest=False)
    trace = Trace(tree_class("lru", "python", PAGE_TOKENS), ours, seed=1)
    with pytest.raises(AssertionError):
        run(trace)
