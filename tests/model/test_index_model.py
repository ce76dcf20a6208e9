"""The page index against a dict, with hostile hashes.

Goal: find, insert, remove and parent links are right at every fill, through growth and deletion,
also where an attacker chose the hashes.  Method: 45,000 seeded steps against a plain dict, each
followed by a probe of everything that must and must not be there; keys share their first 8, or
first 24, bytes, or differ only in the highest bits of their words.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from anchorstore.server.core.index import WAYS, PageIndex

STEPS = 15_000
Keys = npt.NDArray[np.uint64]
Key = tuple[int, ...]
Make = Callable[[random.Random], Key]


def plain(source: random.Random) -> Key:
    return tuple(source.randrange(2**64) for _ in range(4))


def equal_first_bytes(source: random.Random) -> Key:
    return (7, 7, source.randrange(2) * 7, source.randrange(2**64))


def high_bits(source: random.Random) -> Key:
    return tuple(source.randrange(256) << 56 for _ in range(4))


def keys_of(keys: list[Key]) -> Keys:
    return np.array(keys, np.uint64).reshape(-1, 4)


class IndexWalk:
    """An index and the dict it must agree with: (namespace, key) -> (row, page, parent key)."""

    def __init__(self, source: random.Random, make: Make) -> None:
        self.source = source
        self.make = make
        self.index = PageIndex(b"secret")
        self.pages: dict[tuple[int, Key], int] = {}
        self.target = 0

    def insert(self) -> None:
        namespace = 1 + self.source.randrange(2)
        count = 1 + self.source.randrange(12)
        wanted = {self.make(self.source) for _ in range(count)}
        fresh = [key for key in wanted if (namespace, key) not in self.pages]
        pages = np.arange(len(fresh), dtype=np.uint32)
        rows = self.index.insert(namespace, keys_of(fresh), pages, 1)
        assert len(set(rows.tolist()) - {0}) == len(fresh)
        assert not set(rows.tolist()) & set(self.pages.values())
        for key, row in zip(fresh, rows.tolist(), strict=True):
            self.pages[namespace, key] = row

    def remove(self) -> None:
        count = min(len(self.pages), 1 + self.source.randrange(12))
        gone = self.source.sample(list(self.pages), count)
        rows = np.array([self.pages.pop(key) for key in gone], np.uint32)
        self.index.remove(rows)

    def step(self) -> None:
        if self.source.random() < 0.01:
            self.target = self.source.choice([0, 100, 400, 900])
        if len(self.pages) < self.target or not self.pages:
            self.insert()
        else:
            self.remove()

    def check(self) -> None:
        """A sample of keys is found, in its namespace alone; absent ones are not."""
        some = self.source.sample(list(self.pages), min(20, len(self.pages)))
        absent = [self.make(self.source) for _ in range(5)]
        for namespace in (1, 2):
            asked = [key for _, key in some] + absent
            found = self.index.find(namespace, keys_of(asked)).tolist()
            assert found == [self.pages.get((namespace, key), 0) for key in asked]
        assert len(self.index) == len(self.pages) == self.index.filed_rows()


@pytest.mark.parametrize("make", [plain, equal_first_bytes, high_bits])
def test_index_random_walk_agrees_with_dict(make: Make) -> None:
    walk = IndexWalk(random.Random(5), make)
    for _ in range(STEPS):
        walk.step()
        walk.check()
    every = list(walk.pages)
    for namespace in (1, 2):
        mine = [key for n, key in every if n == namespace]
        if mine:
            found = walk.index.find(namespace, keys_of(mine)).tolist()
            assert found == [walk.pages[namespace, key] for key in mine]


def test_index_paths_with_runs_broken_anywhere_agree_with_dict() -> None:
    source = random.Random(7)
    index, rows = PageIndex(b"secret"), dict[tuple[int, Key], int]()
    paths = [[plain(source) for _ in range(60)] for _ in range(20)]
    for _ in range(400):
        namespace, path = 1 + source.randrange(2), source.choice(paths)
        start = source.randrange(60)
        piece = path[start : start + 1 + source.randrange(60)]
        stored = [key for key in piece if (namespace, key) in rows]
        if stored and source.random() < 0.4:
            gone = [rows.pop((namespace, key)) for key in stored]
            index.remove(np.array(gone, np.uint32))
        fresh = [key for key in piece if (namespace, key) not in rows]
        pages = np.arange(len(fresh), dtype=np.uint32)
        made = index.insert(namespace, keys_of(fresh), pages, 1).tolist()
        rows |= {(namespace, key): row for key, row in zip(fresh, made, strict=True)}
        asked = path + source.choice(paths)[:30] + [plain(source)] + piece + path[::-1]
        for asker in (1, 2, 3):
            expected = [rows.get((asker, key), 0) for key in asked]
            assert index.find(asker, keys_of(asked)).tolist() == expected
            assert index.probe(asker, keys_of(asked)).tolist() == expected


@pytest.mark.parametrize("make", [equal_first_bytes, high_bits])
def test_index_chosen_hashes_spread_over_buckets(make: Make) -> None:
    source = random.Random(9)
    keys = list({make(source) for _ in range(20_000)})
    index = PageIndex(b"secret")
    index.insert(1, keys_of(keys), np.zeros(len(keys), np.uint32), 1)
    full = index.overflowed_buckets()
    assert full < 0.15, f"{full:.0%} of the {WAYS}-way buckets overflowed: keys cluster"


def test_index_other_secret_places_keys_elsewhere() -> None:
    keys = keys_of([plain(random.Random(3)) for _ in range(1)])
    homes = {PageIndex(bytes([secret])).home_bucket(1, keys) for secret in range(8)}
    assert len(homes) > 1
