"""Two tiers, random steps: copies that fail or come late, lost devices, removals and restarts.

Goal: never another block's bytes, nothing lost to a reader who holds it, no slot leaked in either
tier, whatever the order in which copies end; and the pages that leave a tier are the right ones.
Method: seeded walks (tier_walk.py), every step checked against the world around the store, what
drains a tier against plain loops (tier_oracle.py); they must come to everything that matters.
"""

from __future__ import annotations

import collections
import random

import pytest

from tests.model.tier_walk import OPERATIONS, TierWalk

STEPS = 1_500
SEEDS = (1, 2, 3)
WALKS_TO = (
    *("restarts", "restored", "joined", "lost", "late", "torn", "hits", "drained", "devices"),
)
MUST_COME_TO = (
    *("pages_evicted", "pages_demoted", "pages_evicted_nvme", "blocks_promoted"),
    *("blocks_corrupt", "nvme_blocks_written", "nvme_blocks_write_failed"),
    *("nvme_blocks_read_late", "nvme_blocks_refused", "promotions_refused", "blocks_replaced"),
)


def walked(seed: int, steps: int) -> tuple[TierWalk, dict[str, int]]:
    """The walk at its end, and the counters of all its boots."""
    source = random.Random(seed)
    walk, total = TierWalk(source.randrange), dict[str, int]()
    names, often = list(OPERATIONS), list(OPERATIONS.values())
    for step in range(steps):
        operation = source.choices(names, often)[0]
        store = walk.store
        try:
            getattr(walk, operation)()
            walk.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}: {operation}")
            raise
        if walk.store is not store or step == steps - 1:
            for name, count in store.counters.items():
                total[name] = total.get(name, 0) + count
    return walk, total


def test_tiers_long_walks_serve_only_what_was_sealed() -> None:
    came_to: collections.Counter[str] = collections.Counter()
    for seed in SEEDS:
        walk, counters = walked(seed, STEPS)
        came_to.update(walk.counted)
        came_to.update(counters)
    for name in (*WALKS_TO, *MUST_COME_TO):
        assert came_to[name] > 0, f"the walks never came to {name}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_tiers_very_long_walk_serves_only_what_was_sealed(seed: int) -> None:
    walked(seed, 20 * STEPS)
