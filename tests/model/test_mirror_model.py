"""Goal: over any sequence of events, a copy is found for exactly the blocks that have one.
Method: random walks against a plain dictionary from block to copy, with check() after each step.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.server.core.mirror import Mirror, MirrorConfig, MirrorWork
from anchorstore.server.core.types import Gone
from anchorstore.transport.segment import PLACE, Places

SEGMENT_BYTES = 9 * 4096
SIZES = {1: 4096, 2: 4096, 3: 12_288}  # block size by dram segment
SLOTS = 12
STEPS = 40

Block = tuple[int, int, int]  # dram segment, slot, generation


class Walk:
    """A mirror, the dram blocks that stand, and what the model believes of both."""

    def __init__(self, seed: int, segments: int, sightings: int) -> None:
        self.random = np.random.default_rng(seed)
        self.mirror = Mirror(MirrorConfig(segments, SEGMENT_BYTES, sightings, batch_blocks=5))
        self.sightings = sightings
        self.generation = {(s, slot): 2 for s in SIZES for slot in range(SLOTS)}
        self.seen: dict[Block, int] = {}
        self.slots: dict[tuple[int, int], Block] = {}  # hbm (index, slot) -> block
        self.ids: dict[int, int] = {}  # hbm index -> segment id
        self.open: list[tuple[MirrorWork, set[Block]]] = []
        self.lost: set[Block] = set()

    def asked(self, segment: int) -> tuple[list[Block], Places]:
        count = int(self.random.integers(1, 7))
        slots = sorted(self.random.choice(SLOTS, count, replace=False).tolist())
        blocks = [(segment, slot, self.generation[segment, slot]) for slot in slots]
        made = np.array([(*block, 5) for block in blocks], PLACE)
        return blocks, made

    def lookup(self) -> None:
        segment = int(self.random.choice(list(SIZES)))
        blocks, places = self.asked(segment)
        hot = self.mirror.find(places)
        sealed = {block for block in self.slots.values() if not self._is_open(block)}
        for block, place in zip(blocks, hot, strict=True):
            assert bool(place["segment"]) == (block in sealed), (block, place)
            if place["segment"]:
                where = next(at for at, held in self.slots.items() if held == block)
                assert (self.ids[where[0]], where[1]) == (place["segment"], place["slot"])
        work = self.mirror.see(places, SIZES[segment])
        for block in blocks:
            self.seen[block] = self.seen.get(block, 0) + 1
        if work is not None:
            self._begin(work, set(blocks), set(hot["segment"].tolist()))

    def _is_open(self, block: Block) -> bool:
        return any(block in blocks for _, blocks in self.open)

    def _begin(self, work: MirrorWork, asked: set[Block], used: set[int]) -> None:
        for order in work.formats:
            self.ids[order.index] = order.segment_id
            for at in [at for at in self.slots if at[0] == order.index]:
                assert not self._is_open(self.slots[at]), "a segment that is written was taken"
                self.seen.pop(self.slots.pop(at), None)
        taken = set()
        for source, index, slot in zip(
            work.sources.tolist(), work.segment_indices.tolist(), work.slots.tolist(), strict=True
        ):
            block: Block = tuple(source[:3])
            assert block in asked and self.seen[block] >= self.sightings
            old = self.slots.pop((index, slot), None)
            if old is not None:
                assert old not in asked, "used right now, and given up"
                self.seen.pop(old, None)
            self.slots[index, slot] = block
            taken.add(block)
        self.open.append((work, taken))
        self._notice_evictions()

    def _notice_evictions(self) -> None:
        """Which copies were given up is the mirror's choice: it may only ever be sealed ones."""
        for at, block in list(self.slots.items()):
            if not self._is_open(block):
                place = np.array([(*block, 5)], PLACE)
                known = self.mirror._known.get(block[0])
                if known is None or not known.home[place["slot"][0]]:
                    del self.slots[at]
                    self.seen.pop(block, None)

    def finish(self) -> None:
        if not self.open:
            return
        work, blocks = self.open.pop(int(self.random.integers(len(self.open))))
        moved = self.random.random(len(work)) < 0.8
        self.mirror.finish(work.ticket, moved)
        columns = (work.sources.tolist(), work.segment_indices.tolist(), work.slots.tolist())
        for ok, source, index, slot in zip(moved, *columns, strict=True):
            block: Block = tuple(source[:3])
            if not ok and block in blocks:
                del self.slots[index, slot]
                self.seen.pop(block, None)

    def evict_from_dram(self) -> None:
        segment = int(self.random.choice(list(SIZES)))
        blocks, places = self.asked(segment)
        self.mirror.forget([Gone("acme", segment, places["slot"].copy())])
        for block in blocks:
            self.generation[block[:2]] += 2
            self.seen.pop(block, None)
            for _, open_blocks in self.open:
                open_blocks.discard(block)
            for at in [at for at, held in self.slots.items() if held == block]:
                del self.slots[at]

    def step(self) -> None:
        acts = (self.lookup, self.finish, self.evict_from_dram)
        acts[int(self.random.choice(3, p=[0.6, 0.25, 0.15]))]()
        assert self.mirror.check() == []
        assert self.mirror.blocks == sum(not self._is_open(b) for b in self.slots.values())


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3))
def test_copies_found_are_those_of_the_model(seed: int, segments: int, sightings: int) -> None:
    walk = Walk(seed, segments, sightings)
    for _ in range(STEPS):
        walk.step()


def test_walk_meets_everything_that_can_happen_to_a_copy() -> None:
    walk = Walk(seed=1, segments=3, sightings=2)
    for _ in range(10 * STEPS):
        walk.step()
    counts = walk.mirror.counters
    assert min(counts[f"copies_{name}"] for name in ("made", "found", "failed", "evicted")) > 10
