"""Goal: taking the end of a path at once takes exactly the pages that page by page would go.
Method: two stores that the same random calls reach; one takes runs from two pages on, the other
never.  Long paths that branch, leases, nvme that holds a part, steps of any size.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from anchorstore.keys import Namespace
from anchorstore.layout import Component, KvLayout
from anchorstore.server.core import leaf_runs, taking
from anchorstore.server.core.policies import POLICIES
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import NeedAll, NvmeShape, StoreConfig, Verdict
from anchorstore.units import MIB

SESSION = b"0123456789abcdef"
SHARES = {Component.ANCHOR: 0.1, Component.KV: 0.8, Component.STATE: 0.1}
LAYOUTS = [KvLayout(1, 1, size, "uint8", 0, 1) for size in (32, 64)]  # two blocks a page


class Side:
    """A store, and what was done with it."""

    def __init__(self, runs_from: int, config: StoreConfig) -> None:
        self.runs_from, self.store = runs_from, Store(config, bytes(16))
        space = Namespace("default", "model", bytes(32), page_tokens=64)
        grant = self.store.open_session(SESSION, space, LAYOUTS, now=0.0)
        self.store.connection_opened(SESSION, "default")
        self.root = grant.root_digest

    def put(self, hashes: bytes, first: int, lineage: int, layouts: list[int]) -> None:
        own = hashes[32 * first :]
        parent = hashes[32 * (first - 1) : 32 * first] if first else self.root
        got = self.store.reserve(SESSION, parent, first, own, layouts, lineage, 0.0)
        if not got.reservation_id:
            return
        wanted = np.frombuffer(got.verdicts, np.uint8).reshape(-1, len(layouts)) == Verdict.TAKE
        rows, columns = np.nonzero(wanted)
        taken = (rows.astype(np.uint32), columns.astype(np.uint8))
        work = self.store.begin_seal(SESSION, got.reservation_id, *taken, False, 0.0)
        count = len(work.copies)
        sums = np.arange(count).astype(np.uint64)
        self.store.finish_seal(work.ticket, np.ones(count, np.bool_), sums, 0.0)

    def act(self, word: str, *arguments: Any) -> Any:
        leaf_runs.RUN_PAGES_MIN = self.runs_from
        return getattr(self, word)(*arguments)

    def look(self, hashes: bytes) -> int:
        found = self.store.lookup(
            SESSION, hashes, [NeedAll(0, 0)], max_lineage=255, margin_pages=0, now=0.0
        )
        if found.promotion is not None and found.promotion.work is not None:
            count = len(found.promotion.work.unit)
            ok = np.ones(count, np.bool_)
            self.store.finish_promote(found.promotion.work.ticket, ok, ~ok, 0.0)
        return found.lease_id

    def release(self, lease_id: int) -> None:
        self.store.release(SESSION, [lease_id], 0.0)

    def demote(self, limit: int, fails: bool) -> None:
        for work in self.store.begin_demote(limit, 0.0):
            self.store.finish_demote(work.ticket, np.full(len(work), not fails), 0.0)
        self.store.take_cold_gone()

    def evict(self, limit: int) -> int:
        return self.store.evict_step(0.0, limit)

    def picture(self) -> tuple[Any, ...]:
        assert not self.store.check()
        table, index = self.store._state.blocks, self.store._state.index
        rows = table.live_rows()
        cold = table.cold[rows].tolist() if hasattr(table, "cold") else []
        counters = dict(self.store.counters)
        return (
            *(rows.tolist(), table.page[rows].tolist(), table.place[rows].tolist(), cold),
            *(index.stamp.tolist(), index.children.tolist(), counters),
        )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the path ends that were looked at."""
    lengths: list[int] = []

    def noted(*arguments: Any) -> Any:
        pages = leaf_runs.path_end(*arguments)
        lengths.append(len(pages))
        return pages

    monkeypatch.setattr(leaf_runs, "RUN_PAGES_MIN", leaf_runs.RUN_PAGES_MIN)  # as it was, after
    monkeypatch.setattr(taking, "path_end", noted)
    return lengths


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "segment-length"])
@pytest.mark.parametrize("has_nvme", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_runs_take_what_page_by_page_would_go(
    found: list[int], seed: int, has_nvme: bool, policy: str
) -> None:
    nvme = NvmeShape(24, MIB // 4, SHARES) if has_nvme else None
    order = None if policy == "lru" else POLICIES[policy]()
    config = StoreConfig(
        *(12, MIB // 8, SHARES),
        high_watermark=0.7,
        low_watermark=0.3,
        policy=order,
        nvme=nvme,
    )
    dice, sides = random.Random(seed), [Side(2, config), Side(10**9, config)]
    paths: list[bytes] = [dice.randbytes(32 * dice.randint(4, 60)) for _ in range(4)]
    leases: list[int] = []

    def both(word: str, *arguments: Any) -> Any:
        first, second = (side.act(word, *arguments) for side in sides)
        assert first == second, (word, arguments)
        return first

    for _ in range(160):
        path = dice.choice(paths)
        match dice.choice(["put", "put", "branch", "look", "release", "demote", "evict", "evict"]):
            case "put":
                both("put", path, 0, 0, dice.choice([[0], [1], [0, 1]]))
            case "branch":
                kept = dice.randrange(len(path) // 32)
                paths.append(path[: 32 * kept] + dice.randbytes(32 * dice.randint(1, 50)))
            case "look":
                leases.append(both("look", path[: 32 * dice.randint(1, len(path) // 32)]))
            case "release":
                both("release", leases.pop() if leases else 0)
            case "demote":
                both("demote", dice.choice([3, 40]), dice.random() < 0.2)
            case "evict":
                both("evict", dice.choice([1, 7, 64, 1000]))
        assert sides[0].picture() == sides[1].picture()
    assert sides[0].store.counters["pages_left_dram_for_watermark"] > 20 and max(found) >= 5
