"""One segment's slots against two sets, 25,000 seeded steps with check() after each.

Goal: no slot is handed out twice, none is lost, generations rise and never repeat, and a worn-out
slot retires.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from anchorstore.tiers.slab import GENERATION_LIMIT, Slab

STEPS = 25_000


def test_slab_random_walk_agrees_with_sets() -> None:
    source = random.Random(1)
    slots = 37
    slab, taken = Slab(slots, 8), set[int]()
    shown: dict[int, int] = {}
    for _ in range(STEPS):
        if source.random() < 0.5:
            count = source.randrange(slab.free + 1)
            got, generations = slab.take(count)
            assert len(got) == len(set(got.tolist())) == count and not set(got.tolist()) & taken
            for slot, generation in zip(got.tolist(), generations.tolist(), strict=True):
                assert generation % 2 == 1 and generation > shown.get(slot, 8)
                shown[slot] = generation + 1
            taken |= set(got.tolist())
        else:
            gone = source.sample(sorted(taken), source.randrange(len(taken) + 1))
            slab.give(np.array(gone, np.uint32))
            taken -= set(gone)
        assert (slab.used, slab.free) == (len(taken), slots - len(taken))
        assert slab.check(np.array(sorted(taken), np.uint32)) == []
    assert slab.ceiling() == max(shown.values())


def test_slab_last_freed_slot_comes_first() -> None:
    slab = Slab(4, 0)
    first, _ = slab.take(2)
    slab.give(first[:1])
    again, _ = slab.take(1)
    assert again.tolist() == first[:1].tolist()


def test_slab_worn_slot_is_retired() -> None:
    slab = Slab(2, GENERATION_LIMIT - 2)
    slots, generations = slab.take(2)
    assert generations.tolist() == [GENERATION_LIMIT - 1] * 2
    slab.give(slots)
    assert (slab.retired, slab.free, slab.used) == (2, 0, 0)
    assert slab.check(np.zeros(0, np.uint32)) == []


def test_slab_check_names_a_slot_taken_twice() -> None:
    slab = Slab(4, 0)
    slots, _ = slab.take(2)
    assert slab.check(slots) == []
    assert "taken twice" in slab.check(np.array([*slots, slots[0]], np.uint32))[0]
    assert "lost" in slab.check(slots[:1])[0]


def test_slab_more_than_free_is_refused() -> None:
    slab = Slab(4, 0)
    with pytest.raises(AssertionError, match="5 slots wanted, 4 free"):
        slab.take(5)
    with pytest.raises(AssertionError, match="1 slots given back, 0 taken"):
        slab.give(np.zeros(1, np.uint32))
