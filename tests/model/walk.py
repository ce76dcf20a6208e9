"""One walk over the store and the naive store side by side.

A walk is a sequence of operations whose details are drawn from `draw(n) -> 0..n-1`: a seeded
generator in the long walks, Hypothesis in the state machine.  Every answer is compared with the
naive store's, and after every step `check()` must find nothing and both must hold the same pages.
"""

from __future__ import annotations

from anchorstore.errors import CapacityFull, InvalidRequest, LeaseExpired
from anchorstore.server.core.types import (
    BlockColumns,
    Miss,
    Need,
    NeedAll,
    NeedLast,
    NeedWindow,
)
from tests.model.naive import Block
from tests.model.walk_state import Draw, Session
from tests.model.walk_writing import WritingWalk

__all__ = ["OPERATIONS", "Draw", "Walk"]


class Walk(WritingWalk):
    """Both stores, and every operation on them."""

    # ---- reading ----

    def need(self, session: Session) -> Need:
        layout = self.draw(len(session.kinds))
        shape = self.draw(4)
        if shape <= 1:
            return NeedAll(layout, self.draw(3))
        if shape == 2:
            ratio = (0.0, 0.02, 0.05, 1.0)[self.draw(4)]
            return NeedWindow(layout, ratio, (6, 512)[self.draw(2)], 4, self.draw(3) * 3)
        return NeedLast(layout)

    def lookup(self) -> None:
        if (session := self.pick_session()) is None:
            return
        if session.asked and self.draw(2):  # the same again: the plan may be remembered
            hashes, needs, deep, margin = session.asked
        else:
            hashes = self.path(session.space)
            needs = [self.need(session) for _ in range(1 + self.draw(3))]
            deep = (0, 1, 255, 255)[self.draw(4)]
            margin = self.draw(3)
        session.asked = (hashes, needs, deep, margin)
        full = len(session.leases) >= self.config.max_leases
        try:
            result = self.store.lookup(
                session.session_id,
                b"".join(hashes),
                needs,
                max_lineage=deep,
                margin_pages=margin,
                now=self.now,
            )
        except CapacityFull:
            result = None
        space, naive = session.space, self.naive
        asked = [(need, session.kinds[need.layout]) for need in needs]
        if not space.enabled:
            assert result is not None and result.miss is Miss.DISABLED
            return
        naive.heal([(space.root, h) for h in hashes])
        boundary, reads = naive.boundary(space, hashes, asked, deep, margin)
        if full and boundary:
            assert result is None
            return
        assert result is not None
        assert result.boundary_pages == boundary, (result, boundary)
        if not boundary:
            assert result.miss is naive.why(space, hashes, asked, deep, margin)
            assert (result.lease_id, result.resume_pages, result.columns) == (0, 0, [])
            return
        assert result.resume_pages == boundary - margin and result.miss is Miss.HIT
        naive.touch(
            [
                (space.root, h)
                if (page := naive.pages.get((space.root, h))) is None or page.index == place
                else (b"", b"")
                for place, h in enumerate(hashes[:boundary])
            ]
        )
        blocks = [
            [naive.pages[space.root, hashes[page]].blocks[kind] for page in pages]
            for (_, kind), pages in zip(asked, reads, strict=True)
        ]
        self._expect_columns(result.columns, blocks, reads)
        flat = [block for part in blocks for block in part]
        assert result.lineage == max((block.lineage for block in flat), default=0)
        assert bool(result.lease_id) == bool(flat)
        if result.lease_id:
            for block in set(flat):
                block.leases += 1
            session.leases[result.lease_id] = (blocks, self.now + self.config.read_ttl_seconds)

    def _expect_columns(
        self,
        columns: list[BlockColumns],
        blocks: list[list[Block]],
        reads: list[range],
    ) -> None:
        for found, part, pages in zip(columns, blocks, reads, strict=True):
            assert found.first_page == pages.start
            expected = [(*block.place, block.checksum) for block in part]
            assert found.places.tolist() == expected

    def release(self) -> None:
        if (session := self.pick_session()) is not None:
            ids = [lease_id for lease_id in session.leases if self.draw(2)]
            foreign = [i for s in self.sessions.values() if s is not session for i in s.leases]
            self.store.release(session.session_id, [*ids, *foreign, 999_999], self.now)
            for lease_id in ids:
                self.lease_ended(session, lease_id)

    def renew(self) -> None:
        if (session := self.pick_session()) is not None:
            ids = [lease_id for lease_id in session.leases if self.draw(2)]
            assert self.store.renew(session.session_id, [*ids, 999_999], self.now) == [999_999]
            for lease_id in ids:
                blocks, _ = session.leases[lease_id]
                session.leases[lease_id] = (blocks, self.now + self.config.read_ttl_seconds)

    def read_leased(self) -> None:
        session = self.pick_session()
        if session is None:
            return
        for lease_id, (blocks, _) in session.leases.items():
            for need, part in enumerate(blocks):
                found, _ = self.store.leased_columns(session.session_id, lease_id, need, self.now)
                checksums = found.places["checksum"].tolist()
                assert checksums == [block.checksum for block in part]
        refused = False
        try:
            self.store.leased_columns(session.session_id, 999_999, 0, self.now)
        except LeaseExpired:
            refused = True
        assert refused

    def map_segments(self) -> None:
        if (session := self.pick_session()) is None:
            return
        for segment_id, segment in self.naive.pool.segments.items():
            own = segment.slot_class[0] == session.space.domain
            try:
                found = self.store.map_segments(session.session_id, [segment_id], self.now)
            except InvalidRequest:
                assert not own
            else:
                assert own and found == [segment.index]
                segment.holders.add(session.session_id)

    # ---- time, pressure, operators ----

    def advance(self) -> None:
        self.now += float(self.draw(7))
        self.store.expire(self.now)
        for session in list(self.sessions.values()):
            for lease_id, (_, deadline) in list(session.leases.items()):
                if deadline <= self.now:
                    self.lease_ended(session, lease_id)
            for reservation_id, reservation in list(session.reservations.items()):
                if reservation.deadline <= self.now:
                    self.uncharge(session, reservation)
                    del session.reservations[reservation_id]
            if not session.connections and session.deadline <= self.now:
                self.ended(session)
        end = self.store.next_deadline()
        assert end is None or end > self.now

    def evict_step(self) -> None:
        limit = 1 + self.draw(6)
        gone = self.store.evict_step(self.now, limit)
        assert gone == self.naive.evict_step(limit)

    def remove(self) -> None:
        if (session := self.pick_session()) is None or self.draw(6):
            return
        space, naive = session.space, self.naive
        hashes = self.path(space)
        whole = self.draw(4) == 0
        removed = self.store.remove(space.root, None if whole else hashes[-1])
        for ticket in self.tickets.values():
            ticket.cancelled |= ticket.session.space is space
        keys = [key for key in naive.pages if key[0] == space.root]
        if not whole:
            keys = self._below((space.root, hashes[-1]))
        assert (removed.blocks_removed, removed.blocks_leased) == naive.drop_pages(keys)

    def _below(self, key: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        if key not in self.naive.pages:
            return []
        found = [key]
        for child in self.naive.children(key):
            found += self._below(child.key)
        return found

    def switch(self) -> None:
        if (session := self.pick_session()) is not None:
            enabled = not session.space.enabled or self.draw(4) != 0
            self.store.set_enabled(session.space.root, enabled)
            session.space.enabled = enabled

    # ---- comparing ----

    def check(self) -> None:
        """No invariant broken, and what readers may find is what the index holds."""
        assert self.store.check() == []
        for gone in self.store.take_gone():
            self.findable -= {(gone.segment_id, slot) for slot in gone.slots.tolist()}
        blocks = (block for page in self.naive.pages.values() for block in page.blocks.values())
        assert self.findable == {block.place[:2] for block in blocks}

    def compare(self) -> None:
        """No invariant broken, the same pages on both sides, the same bytes charged."""
        self.check()
        known = {status.root_digest: status for status in self.store.status(self.now).namespaces}
        for root, space in list(self.naive.spaces.items()):
            if root not in known:  # idle: the store has forgotten it, switches and all
                assert not space.used and not space.reserved
                assert not any(key[0] == root for key in self.naive.pages)
                del self.naive.spaces[root]
                continue
            assert known[root].bytes == space.used + space.reserved
            self._compare_pages(root)
        assert set(known) <= set(self.naive.spaces)

    def _compare_pages(self, root: bytes) -> None:
        mine = {key[1]: page for key, page in self.naive.pages.items() if key[0] == root}
        listed = self.store.list_pages(root, 0, 1000).pages
        assert {page.path_hash for page in listed} == set(mine)
        for found in listed:
            page = mine[found.path_hash]
            assert found.page == page.index
            assert found.children == len(self.naive.children(page.key))
            blocks = sorted((b.component, b.bytes, b.lineage, b.leases) for b in found.blocks)
            assert blocks == sorted(
                (b.kind.component, b.kind.slot_bytes, b.lineage, b.leases)
                for b in page.blocks.values()
            )


OPERATIONS: dict[str, int] = {
    "open_session": 4,
    "connect": 1,
    "disconnect": 1,
    "end_session": 1,
    "reserve": 20,
    "begin_seal": 16,
    "finish_seal": 16,
    "abort": 1,
    "lookup": 24,
    "release": 6,
    "renew": 1,
    "read_leased": 1,
    "map_segments": 1,
    "advance": 3,
    "evict_step": 2,
    "remove": 2,
    "switch": 2,
}
"""Operation -> how often the long walks take it."""
