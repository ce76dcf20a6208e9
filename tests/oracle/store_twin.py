"""Our side of the comparison once more: the whole store, kv only, one session.

What its operators and engines call is called here: reserve and seal, lookup, release, and eviction
of a component.  Slots are a few bytes long, and there are more than the trace fills.
"""

from __future__ import annotations

import numpy as np

from anchorstore.keys import Namespace
from anchorstore.layout import Component, KvLayout
from anchorstore.server.core.evicting import evict
from anchorstore.server.core.policies import POLICIES
from anchorstore.server.core.policy import Field, Scope
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import NeedAll, StoreConfig

LAYOUT = KvLayout(1, 1, 16, "bfloat16", 0, 1, page_tokens=4)
SLOTS = 4096
SESSION = b"s" * 16


class StoreTwin:
    """The store under one policy, in the order of SGLang's tree."""

    in_order = False

    def __init__(self, policy: str, namespace: Namespace) -> None:
        config = StoreConfig(
            segments=1,
            segment_bytes=(SLOTS + 16) * 8192,
            component_share={Component.KV: 1.0},
            high_watermark=1.0,
            low_watermark=0.5,
            policy=POLICIES[policy](),
            mirrors_sglang=True,
        )
        self.store = Store(config, b"b" * 16)
        grant = self.store.open_session(SESSION, namespace, [LAYOUT], now=0.0)
        self.root, [self.slot_bytes] = grant.root_digest, grant.slot_bytes

    def insert(self, hashes: bytes, priority: int) -> None:
        """Offers a path from its first page on, and seals what the store takes."""
        if not hashes:
            return
        offered = self.store.reserve(
            SESSION, self.root, 0, hashes, [0], 0, now=0.0, priority=priority
        )
        pages = np.flatnonzero(np.frombuffer(offered.verdicts, np.uint8) == 1).astype(np.uint32)
        if len(pages):
            work = self.store.begin_seal(
                SESSION, offered.reservation_id, pages, np.zeros(len(pages), np.uint8), False, 0.0
            )
            count = len(work.copies)
            assert count == len(pages), "the pool is too small for the trace"
            copied = np.ones(count, np.bool_)
            self.store.finish_seal(work.ticket, copied, np.zeros(count, np.uint64), 0.0)

    def match(self, hashes: bytes) -> int:
        """Uses the longest stored prefix; how many pages that is."""
        pages, lease_id = self._lookup(hashes)
        self.unlock(lease_id)
        return pages

    def lock(self, hashes: bytes) -> int:
        """The same, and protects it until `unlock` gets what this returns."""
        return self._lookup(hashes)[1]

    def unlock(self, lease_id: int) -> None:
        self.store.release(SESSION, [lease_id], 0.0)

    def _lookup(self, hashes: bytes) -> tuple[int, int]:
        if not hashes:
            return 0, 0
        found = self.store.lookup(
            SESSION, hashes, [NeedAll(0, 0)], max_lineage=0, margin_pages=0, now=0.0
        )
        return found.boundary_pages, found.lease_id

    def evict(self, count: int) -> list[bytes]:
        """Evicts `count` pages, or as many as may go; their path hashes, in no order."""
        state, before = self.store._state, self.held()
        scope = Scope(Field.COMPONENT, int(Component.KV))
        evict(state, state.dram, scope, count * self.slot_bytes, state.tick + 1)
        return list(before - self.held())

    @property
    def pages(self) -> int:
        """How many are held."""
        return len(self.store._state.index)

    def held(self) -> set[bytes]:
        """Path hashes of all pages."""
        index = self.store._state.index
        return {index.hash_of(page) for page in index.live_rows().tolist()}
