"""Engines that tell of their caches, beside a plain dict: who holds what, and what is let go.

Goal: after any mix of events, uses, evictions, ends of engines and restarts, each page is held by
the engines that said so last and have not ended since, and let go exactly where one held it and
none does; only such pages as nvme has whole go first, which the walk's oracle of evictions checks
victim by victim.  Method: a walk over two tiers (tier_walk.py) in which four sessions tell random
things in random batches; a page counts as used where its stamp has changed.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable

import numpy as np

from anchorstore.server.core.engines import LetGo
from anchorstore.server.core.types import Event
from tests.model.tier_walk import CONFIG, LAYOUTS, OPERATIONS, SPACES, Engine, TierWalk

MIRRORED = dataclasses.replace(CONFIG, mirrors_engines=True, max_pins=5, pin_share=0.2)
OFTEN = {**OPERATIONS, "tell": 40, "end": 1, "sweep": 4}
STEPS = 1_200
TELLERS = 4

Page = tuple[bytes, bytes]  # root, path hash
Teller = tuple[int, int]  # number of the session, how often it was cleared


class EventsWalk(TierWalk):
    """A walk with sessions that tell, and what they have told."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        super().__init__(draw, MIRRORED)

    def start(self) -> None:
        super().start()
        self.tellers: dict[Teller, Engine] = {}
        self.holders: dict[Page, set[Teller]] = {}
        self.let_go: set[Page] = set()
        self.ended: list[Teller] = []
        self.stamps: dict[Page, int] = {}

    def rows(self) -> dict[Page, int]:
        """Pages that are there, and their rows."""
        state = self.store._state
        roots = {i: r.root_digest for i, r in state.registry.by_namespace_id.items()}
        return {
            (roots[int(state.index.namespace[row])], state.index.hash_of(row)): row
            for row in state.index.live_rows().tolist()
        }

    # ---- steps ----

    def tell(self) -> None:
        """A batch of up to eight events, seldom none; now and then the engine begins anew."""
        if len(self.tellers) < TELLERS:
            self.made += 1
            space = SPACES[len(self.tellers) % 2]
            session_id = self.made.to_bytes(16, "big")
            grant = self.store.open_session(session_id, space, LAYOUTS, now=0.0)
            self.tellers[self.made, 0] = Engine(session_id, space, grant.root_digest)
        teller = sorted(self.tellers)[self.draw(len(self.tellers))]
        is_cleared = not self.draw(12)
        if is_cleared:
            engine = self.tellers.pop(teller)
            if self.store._state.registry.sessions[engine.session_id].engine is not None:
                self.ended.append(teller)
            teller = teller[0], teller[1] + 1
            self.tellers[teller] = engine
        engine = self.tellers[teller]
        path = self.path(engine)
        said = [(Event(1 + self.draw(5)), path[self.draw(len(path))]) for _ in range(self.draw(9))]
        self.store.note_events(
            engine.session_id,
            np.array([event for event, _ in said], np.uint8),
            b"".join(path_hash for _, path_hash in said),
            is_cleared,
            0.0,
        )
        self.note(teller, [(event, (engine.root, path_hash)) for event, path_hash in said])

    def note(self, teller: Teller, said: list[tuple[Event, Page]]) -> None:
        """The same, in the dict, one by one."""
        there = self.rows()
        for event, page in said:
            if page in there and event is Event.TOUCHED:
                self.let_go.discard(page)
        last = {page: event for event, page in said if event <= Event.TOUCHED and page in there}
        for page, event in last.items():
            held = self.holders.setdefault(page, set())
            if event is Event.REMOVED:
                held.discard(teller)
                self.let_go |= set() if held else {page}
            else:
                held.add(teller)
                self.let_go.discard(page)
        self.look(there)

    def end(self) -> None:
        """A session ends; a bit that it has had is nobody's from now on."""
        if not self.tellers:
            return
        teller = sorted(self.tellers)[self.draw(len(self.tellers))]
        engine = self.tellers.pop(teller)
        self.store.end_session(engine.session_id, 0.0)
        self.ended.append(teller)
        self.counted["ended"] += 1

    def sweep(self) -> None:
        """The first bit that is nobody's is cleared."""
        self.store.expire(0.0)
        if self.ended:
            teller = self.ended.pop(0)
            for page, held in self.holders.items():
                if teller in held:
                    held.discard(teller)
                    self.let_go |= set() if held else {page}
        self.look(self.rows())

    # ---- comparing ----

    def look(self, there: dict[Page, int]) -> None:
        """Remembers when each page was used last, as of now."""
        stamps = self.store._state.index.stamp
        self.stamps = {page: int(stamps[row]) for page, row in there.items()}

    def check(self) -> None:
        super().check()
        state, there = self.store._state, self.rows()
        for page, row in there.items():
            if self.stamps.get(page) != state.index.stamp[row]:
                self.let_go.discard(page)
        self.holders = {page: self.holders.get(page, set()) for page in there}
        self.let_go &= there.keys()
        self.look(there)
        for page, row in there.items():
            count = int(state.index.holders[row]).bit_count()
            assert count == len(self.holders[page]), (page, self.holders[page])
            assert (state.index.let_go[row] != LetGo.NOT) == (page in self.let_go)
            self.counted["let go"] += page in self.let_go
            self.counted["safe"] += state.index.let_go[row] == LetGo.SAFE
            self.counted["shared"] += count > 1
        self.counted["pins"] += self.store.status(0.0).counters["pinned_pages"]


def walked(seed: int) -> collections.Counter[str]:
    """What a walk came to."""
    source = random.Random(seed)
    walk = EventsWalk(source.randrange)
    names, often = list(OFTEN), list(OFTEN.values())
    for step in range(STEPS):
        operation = source.choices(names, often)[0]
        try:
            getattr(walk, operation)()
            walk.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {step}: {operation}")
            raise
    return walk.counted


def test_events_long_walks_agree_with_a_dict() -> None:
    came_to = sum(map(walked, (1, 2, 3)), collections.Counter[str]())
    for name in ("let go", "safe", "shared", "ended", "pins", "drained", "restarts"):
        assert came_to[name] > 0, f"the walks never came to {name}"
