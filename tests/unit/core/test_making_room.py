"""Making room comes to an end: a round that says it made room has gained a slot, or is the last.

Goal: whatever is leased, being written, detached or worn out, a seal on a full pool ends, and no
step of it lies.  Method: random steps over pools of a few slots, every round of the ladder counted;
then each rung made to lie.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from anchorstore.errors import AnchorStoreError
from anchorstore.layout import KvLayout
from anchorstore.server.core import evicting
from anchorstore.server.core.types import NeedAll, NeedLast, SealWork
from anchorstore.tiers import slab
from tests.unit.core.small import ANCHOR, KV, STATE, Engine, Small

SEALED, DECLINED = 1, 3
STEPS = 1200
LAYOUTS = [KV, ANCHOR, STATE, KvLayout(2, 1, 16, "bfloat16", 0, 1)]  # 4, 4, 8 and 8 KiB a slot


class Rounds:
    """Counts the rungs that one call of take_slots climbs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = self.most = 0
        climb = evicting._make_room

        def counted(*arguments: Any) -> bool:
            self.here += 1
            self.most = max(self.most, self.here)
            return climb(*arguments)

        monkeypatch.setattr(evicting, "_make_room", counted)


class Crowd:
    """Engines of two domains that write, read and hold on a small pool."""

    def __init__(self, source: random.Random, segments: int) -> None:
        self.source = source
        self.small = Small(segments=segments, max_leases=64)
        self.engines = [
            self.small.session(domain, layouts=LAYOUTS, model=model)
            for domain, model in (("acme", "a"), ("acme", "b"), ("globex", "a"))
        ]
        self.writing: list[tuple[Engine, SealWork]] = []

    def path(self, engine: Engine) -> bytes:
        """One of a bush of paths with common beginnings."""
        source = self.source
        return engine.path(1 + source.randrange(5), source.choice("abcd"), source.randrange(3))

    def step(self) -> None:
        """One of: begin a seal, finish one, look up and hold, remove, let time pass."""
        source, engine = self.source, self.source.choice(self.engines)
        path, layout = self.path(engine), source.randrange(len(LAYOUTS))
        match source.choice(["begin"] * 4 + ["finish"] * 3 + ["hold"] * 3 + ["remove", "wait"]):
            case "begin":
                self.begin(engine, path, [layout, source.randrange(len(LAYOUTS))])
            case "finish" if self.writing:
                writer, work = self.writing.pop(source.randrange(len(self.writing)))
                writer.finish(work, ok=bool(source.randrange(4)))
            case "hold":
                need = NeedLast(layout) if source.randrange(2) else NeedAll(layout, 0)
                engine.lookup(path, [need])
            case "remove":
                self.small.store.remove(engine.root, path[-32:])
            case "wait":
                self.small.now += source.choice([0.5, 3.0])
                self.small.store.expire(self.small.now)

    def begin(self, engine: Engine, path: bytes, layouts: list[int]) -> None:
        """Reserves a whole path and begins to seal some of it."""
        chosen = sorted(set(layouts))
        reserved = engine.reserve(path, layouts=chosen, lineage=self.source.randrange(3))
        if reserved.reservation_id:
            pages, width = len(path) // 32, len(chosen)
            units = [(page, at) for page in range(pages) for at in range(width)]
            count = 1 + self.source.randrange(len(units))
            work = engine.begin(reserved.reservation_id, units[-count:])
            self.writing.append((engine, work))


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    yield Rounds(monkeypatch)


@pytest.mark.parametrize("generations", [slab.GENERATION_LIMIT, 6], ids=["new", "worn"])
@pytest.mark.parametrize("segments", [1, 2, 4, 7])
def test_every_round_gains_a_slot_whatever_is_held(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, segments: int, generations: int
) -> None:
    monkeypatch.setattr(slab, "GENERATION_LIMIT", generations)
    crowd = Crowd(random.Random(f"{segments} {generations}"), segments)
    slots = 4 * segments
    for number in range(STEPS):
        rounds.here = 0
        try:
            crowd.step()
        except AnchorStoreError:
            pass  # a limit: sessions' leases and reservations are few
        assert rounds.here <= 2 * (5 + slots), "a seal of five pages and two kinds went on and on"
        if number % 100 == 0:
            assert crowd.small.store.check() == []
    assert rounds.most >= 1, "the pool was never full"
    assert crowd.small.store.check() == []


@pytest.mark.parametrize("rung", ["evict", "thin", "take_colder", "take_oldest"])
def test_rung_that_lies_stops_the_daemon_instead_of_spinning(
    monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    small = Small(segments=1)
    engine = small.session(layouts=[KV, STATE] if rung == "take_oldest" else [STATE])
    layout = 1 if rung == "take_oldest" else 0
    engine.put(engine.path(4))
    engine.lookup(engine.path(4))
    assert engine.put(engine.path(1, "b"), layouts=[layout]) == [DECLINED], "all of it is leased"
    monkeypatch.setattr(evicting, rung, lambda *_: True)
    with pytest.raises(AssertionError, match=r"room was made for class \d+.*\nlast events:"):
        engine.put(engine.path(1, "b"), layouts=[layout])


def test_eviction_that_only_wears_slots_out_goes_on_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slab, "GENERATION_LIMIT", 2)  # a slot serves once
    engine = Small(segments=1).session()
    old = engine.path(4)
    engine.put(old)
    assert engine.put(engine.path(1, "b")) == [SEALED]
    assert engine.present(old) == [False] * 4
    assert engine.store.check() == []


def test_worn_segment_gets_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generations cannot rise any further, and none is ever shown twice."""
    monkeypatch.setattr(slab, "GENERATION_LIMIT", 4)
    small = Small(segments=1)
    engine = small.session(layouts=[KV])
    for turn in range(8):
        assert engine.put(engine.path(1, str(turn))) == [SEALED]
        small.store.remove(engine.root, None)
    reserved = engine.reserve(engine.path(1))
    work = engine.begin(reserved.reservation_id, [(0, 0)])
    assert [(f.fresh_memory, f.first_generation) for f in work.formats] == [(True, 0)]
    assert engine.finish(work) == [SEALED]
    assert small.store.check() == []
