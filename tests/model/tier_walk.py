"""A walk over a store with two tiers, beside what lies outside of it (tier_world.py).

Every step is checked three ways: `check()` finds nothing; every lookup that hits finds in memory
what was sealed under that key, and a leased block stays what it is; what the journal names is what
the core says lies in nvme.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from anchorstore.keys import Namespace
from anchorstore.layout import AnchorLayout, Component, KvLayout, Layout, StateLayout
from anchorstore.server.core.planning import Reach
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import (
    LookupResult,
    Miss,
    Need,
    NeedAll,
    NeedLast,
    NeedWindow,
    NvmeShape,
    Sealed,
    SealWork,
    StoreConfig,
)
from anchorstore.server.core.work import DemoteWork, PromoteWork
from tests.model.tier_oracle import Picture, where
from tests.model.tier_world import Content, Disk, Memory

LAYOUTS: list[Layout] = [
    KvLayout(1, 1, 16, "bfloat16", 0, 1),  # 4 KiB: 8 KiB in nvme
    AnchorLayout(1, 4, 64, "bfloat16"),  # 512 bytes: 4 KiB in either
    StateLayout(8192, "exact"),  # 12 KiB in nvme
]
SHARES = {Component.KV: 0.7, Component.ANCHOR: 0.4, Component.STATE: 0.3}
SPACES = [Namespace("acme", "m", b"w" * 32), Namespace("globex", "m", b"w" * 32)]
SEGMENT_BYTES = 5 * 4096
DEPTH = 6
HALVES = (range(1, 6), range(6, 11))  # segments of the two devices
CONFIG = StoreConfig(
    segments=8,
    segment_bytes=SEGMENT_BYTES,
    component_share=SHARES,
    high_watermark=0.9,
    low_watermark=0.5,
    quotas={("globex", "m"): 12 * 4096},
    nvme=NvmeShape(
        segments=10,
        segment_bytes=6 * 4096,
        component_share=SHARES,
        high_watermark=0.9,
        low_watermark=0.6,
        queue_blocks=24,
        devices=(5, 5),
        quotas={("globex", "m"): 10 * 8192},
    ),
)

Key = tuple[bytes, bytes, int]  # root, path hash, layout


@dataclasses.dataclass(eq=False)
class Engine:
    """One session on one namespace."""

    session_id: bytes
    space: Namespace
    root: bytes
    leases: dict[int, list[tuple[int, int, int, Content]]] = dataclasses.field(default_factory=dict)
    """Lease -> (segment, slot, generation, content) of each block."""


class TierWalk:
    """A store, the world around it, and what was ever sealed."""

    def __init__(self, draw: Callable[[int], int], config: StoreConfig = CONFIG) -> None:
        self.draw, self.config = draw, config
        self.disk = Disk()
        self.ever: dict[Key, set[int]] = collections.defaultdict(set)
        self.made = 0
        self.counted: collections.Counter[str] = collections.Counter()
        self.lately: collections.deque[list[bytes]] = collections.deque(maxlen=6)
        self.start()

    def start(self) -> None:
        """A new store, nothing in flight."""
        self.store = Store(self.config, b"boot" * 4, b"secret")
        self.memory = Memory(SEGMENT_BYTES)
        self.engines: list[Engine] = []
        self.seals: list[tuple[Engine, SealWork, list[Key]]] = []
        self.writes: list[DemoteWork] = []
        self.reads: list[PromoteWork] = []

    # ---- drawing ----

    def engine(self) -> Engine:
        """One of two sessions."""
        if len(self.engines) < 2:
            space = SPACES[len(self.engines)]
            self.made += 1
            session_id = self.made.to_bytes(16, "big")
            grant = self.store.open_session(session_id, space, LAYOUTS, now=0.0)
            self.engines.append(Engine(session_id, space, grant.root_digest))
        return self.engines[self.draw(len(self.engines))]

    def path(self, engine: Engine) -> list[bytes]:
        """Often one asked for lately, else one of a small tree."""
        known = [path for path in self.lately if path[0] == engine.root]
        if known and self.draw(3):
            path = known[self.draw(len(known))][1:]
            return path[: 1 + self.draw(len(path))]
        path, parent = [], engine.root
        for _ in range(1 + self.draw(DEPTH)):
            parent = hashlib.sha256(parent + bytes([max(0, self.draw(5) - 2)])).digest()
            path.append(parent)
        self.lately.append([engine.root, *path])
        return path

    def one_of(self, parts: list[int]) -> int:
        """Any."""
        return parts[self.draw(len(parts))]

    # ---- writing ----

    def begin_seal(self) -> None:
        engine = self.engine()
        path = self.path(engine)
        first = self.draw(len(path)) if self.draw(2) else 0
        parents = [engine.root, *path]
        layouts = [at for at in range(len(LAYOUTS)) if self.draw(3)] or [0]
        reserved = self.store.reserve(
            engine.session_id,
            parents[first],
            first,
            b"".join(path[first:]),
            layouts,
            self.draw(3),
            0.0,
        )
        if not reserved.reservation_id:
            return
        asked = [(page, at) for page in range(len(path) - first) for at in range(len(layouts))]
        work = self.store.begin_seal(
            engine.session_id,
            reserved.reservation_id,
            np.array([page for page, _ in asked], np.uint32),
            np.array([at for _, at in asked], np.uint8),
            False,
            0.0,
        )
        self.memory.format(work.formats)
        keys = [(engine.root, path[first + page], layouts[at]) for page, at in asked]
        self.seals.append((engine, work, keys))

    def finish_seal(self) -> None:
        if not self.seals:
            return
        _, work, keys = self.seals.pop(self.draw(len(self.seals)))
        count = len(work.copies)
        ok = np.array([bool(self.draw(8)) for _ in range(count)], np.bool_)
        checksums = np.arange(self.made + 1, self.made + 1 + count, dtype=np.uint64)
        self.made += count
        for i in range(count):
            self.memory.seal(work.copies, i, int(checksums[i]))
        results = self.store.finish_seal(work.ticket, ok, checksums, 0.0)
        for i, at in enumerate(work.copies.request_index.tolist()):
            if results[at] == Sealed.SEALED:
                self.ever[keys[at]].add(int(checksums[i]))

    # ---- reading ----

    def needs(self) -> list[Need]:
        """One to three needs."""
        shapes: list[Need] = [
            NeedAll(0, self.draw(2)),
            NeedWindow(1, (0.02, 0.05, 1.0)[self.draw(3)], 16, 4, self.draw(2) * 3),
            NeedLast(2),
        ]
        return [need for need in shapes if self.draw(2)] or shapes[:1]

    def lookup(self) -> None:
        engine = self.engine()
        path, needs = self.path(engine), self.needs()
        bound, margin = (0, 255)[self.draw(2)], self.draw(2)
        alone = self.ask(engine, path, needs, bound, margin, Reach.DRAM)
        result = self.ask(engine, path, needs, bound, margin, Reach.ALL)
        if result.promotion is None:
            assert result.boundary_pages >= alone.boundary_pages or alone.miss is Miss.COLD
            self.hold(engine, path, result)
        else:
            assert result.promotion.boundary_pages > alone.boundary_pages or alone.lease_id
            assert set(result.promotion.tickets) <= {
                *(work.ticket for work in self.reads),
                *([result.promotion.work.ticket] if result.promotion.work else []),
            }
            self.counted["promotions"] += 1
            self.counted["joined"] += result.promotion.work is None
            if (work := result.promotion.work) is not None:
                self.memory.format(work.formats)
                self.memory.begin_read(work)
                self.reads.append(work)
        self.hold(engine, path, alone)

    def ask(
        self,
        engine: Engine,
        path: list[bytes],
        needs: list[Need],
        bound: int,
        margin: int,
        reach: Reach,
    ) -> LookupResult:
        """One lookup."""
        return self.store.lookup(
            engine.session_id,
            b"".join(path),
            needs,
            max_lineage=bound,
            margin_pages=margin,
            now=0.0,
            reach=reach,
        )

    def hold(self, engine: Engine, path: list[bytes], result: LookupResult) -> None:
        """What a hit names is what was sealed, and stays so while the lease is held."""
        held = []
        for columns in result.columns:
            for at, place in enumerate(columns.places.tolist()):
                segment, slot, generation, checksum = place
                page = path[columns.first_page + at]
                assert self.memory.at(segment, slot) == (generation, (page, checksum))
                assert checksum in self.ever[engine.root, page, columns.layout]
                held.append((segment, slot, generation, (page, checksum)))
        self.counted["hits"] += bool(held)
        if result.lease_id and self.draw(2):
            engine.leases[result.lease_id] = held
        elif result.lease_id:
            self.store.release(engine.session_id, [result.lease_id], 0.0)

    def finish_read(self) -> None:
        if not self.reads:
            return
        work = self.reads.pop(self.draw(len(self.reads)))
        tried = np.array([bool(self.draw(8)) for _ in range(len(work))], np.bool_)
        proven = np.array([self.disk.proves(work, i) for i in range(len(work))], np.bool_)
        ok = tried & proven
        for i in np.flatnonzero(ok).tolist():
            self.memory.end_read(work, i)
        came = self.store.finish_promote(work.ticket, ok, tried & ~proven, 0.0)
        assert not (came & ~ok).any()
        self.counted["late"] += int((~tried).sum())
        self.counted["lost"] += int((tried & ~proven).sum())

    def release(self) -> None:
        engine = self.engine()
        ids = [lease for lease in engine.leases if self.draw(3)]
        self.store.release(engine.session_id, ids, 0.0)
        for lease in ids:
            del engine.leases[lease]

    # ---- nvme ----

    def begin_write(self) -> None:
        room = [self.draw(6), self.draw(6)] if self.draw(2) else None
        for work in self.store.begin_demote(1 + self.draw(8), 0.0, room):
            assert room is None or 0 < len(work) <= room[work.device]
            assert set(self.segments_of(work)) <= set(HALVES[work.device])
            self.writes.append(work)

    def segments_of(self, work: DemoteWork) -> list[int]:
        """Where each block of a work goes."""
        assert self.config.nvme is not None
        return [unit // self.config.nvme.segment_units for unit in work.unit.tolist()]

    def finish_write(self) -> None:
        if not self.writes:
            return
        work = self.writes.pop(self.draw(len(self.writes)))
        ok = np.array([bool(self.draw(8)) for _ in range(len(work))], np.bool_)
        for i in range(len(work)):
            self.disk.write(work, i, self.memory, torn=not ok[i])
        stands = self.store.finish_demote(work.ticket, ok, 0.0)
        assert not (stands & ~ok).any()
        self.note_gone()
        for i in np.flatnonzero(stands).tolist():
            self.disk.note(work, i)

    def note_gone(self) -> None:
        """The journal hears what is no more."""
        for unit in self.store.take_cold_gone().tolist():
            self.disk.journal.pop(unit, None)

    def tear(self) -> None:
        """A slot is damaged behind everybody's back."""
        if self.disk.slots and not self.draw(3):
            del self.disk.slots[self.one_of(list(self.disk.slots))]
            self.counted["torn"] += 1

    # ---- pressure, operators, restarts ----

    def evict_step(self) -> None:
        state, limit = self.store._state, 1 + self.draw(6)
        picture, before = Picture(state), where(state)
        for tier in state.tiers:
            picture.step(tier, limit)
        assert state.nvme is not None
        uncovered = state.nvme.pages_uncovered
        self.store.evict_step(0.0, limit)
        after = where(state)
        if state.nvme.pages_uncovered == uncovered:
            assert after == picture.where()
        self.counted["drained"] += after != before

    def device(self) -> None:
        """One of two devices stops taking blocks, takes them again, or is gone and replaced."""
        half = HALVES[self.draw(2)]
        match self.draw(10):
            case 0:
                self.store.close_segments(half)
            case 1 | 2 | 3:
                units = self.config.nvme.segment_units if self.config.nvme else 0
                for unit in [unit for unit in self.disk.slots if unit // units in half]:
                    del self.disk.slots[unit]
                self.counted["devices"] += self.store.lose_segments(half) > 0
            case _:
                self.store.reopen_segments(half)

    def pause(self) -> None:
        self.store.pause_demotion(not self.draw(5))

    def remove(self) -> None:
        if self.draw(4):
            return
        engine = self.engine()
        whole = not self.draw(3)
        before = self.pages(engine)
        self.store.remove(engine.root, None if whole else self.path(engine)[-1])
        gone = before - self.pages(engine)
        for key in [key for key in self.ever if key[:2] in {(engine.root, page) for page in gone}]:
            del self.ever[key]

    def pages(self, engine: Engine) -> set[bytes]:
        """Hashes of pages that hold something."""
        found = self.store.list_pages(engine.root, 0, 1000).pages
        return {page.path_hash for page in found if page.blocks}

    def crash(self) -> None:
        """kill -9, at a moment when writes may lie on the disk that no journal names."""
        if self.draw(2):
            return
        for work in self.writes:
            for i in range(len(work)):
                if self.draw(2):
                    self.disk.write(work, i, self.memory, torn=not self.draw(2))
        told = self.disk.entries()
        self.start()
        restored = self.store.restore(self.disk.namespaces, self.disk.layouts, told, 0.0)
        assert restored.blocks + sum(restored.dropped.values()) == len(told)
        for unit in restored.lost_units.tolist():
            del self.disk.journal[unit]
        self.counted["restarts"] += 1
        self.counted["restored"] += restored.blocks
        self.counted["dropped"] += len(restored.lost_units)

    # ---- comparing ----

    def check(self) -> None:
        """No invariant broken; leased blocks stand; the journal is what nvme holds."""
        assert self.store.check() == []
        for engine in self.engines:
            for held in engine.leases.values():
                for segment, slot, generation, content in held:
                    assert self.memory.at(segment, slot) == (generation, content)
        self.note_gone()
        state = self.store._state
        assert state.nvme is not None
        rows = state.blocks.live_rows()
        rows = rows[state.nvme.holds(rows) & (state.blocks.page[rows] != 0)]
        assert set(state.blocks.cold[rows].tolist()) == set(self.disk.journal)


OPERATIONS: dict[str, int] = {
    "begin_seal": 20,
    "finish_seal": 20,
    "lookup": 24,
    "finish_read": 16,
    "release": 8,
    "begin_write": 12,
    "finish_write": 12,
    "tear": 5,
    "evict_step": 3,
    "device": 2,
    "pause": 1,
    "remove": 2,
    "crash": 1,
}
"""Operation -> how often a walk takes it."""
