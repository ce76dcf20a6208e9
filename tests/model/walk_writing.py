"""The writing half of a walk: reserve, seal in two steps, abort, and what each must answer."""

from __future__ import annotations

import numpy as np

from anchorstore.server.core.types import (
    Sealed,
    Verdict,
)
from tests.model.naive import Block, Kind, Page, Space
from tests.model.walk_state import Reservation, Session, Ticket, WalkState


class WritingWalk(WalkState):
    """Reserve, begin_seal, finish_seal, abort."""

    # ---- writing ----

    def reserve(self) -> None:
        if (session := self.pick_session()) is None:
            return
        hashes = self.path(session.space)
        first = self.draw(len(hashes)) if self.draw(2) else 0
        parents = [session.space.root, *hashes]
        positions = [p for p in range(len(session.kinds)) if self.draw(3)] or [0]
        lineage = (0, 0, 1, 1, 2, 3)[self.draw(6)]
        result = self.store.reserve(
            session.session_id,
            parents[first],
            first,
            b"".join(hashes[first:]),
            positions,
            lineage,
            self.now,
        )
        kinds = [session.kinds[p] for p in positions]
        units, reason = self._expected_units(session, parents[first:], kinds, lineage)
        names = {Verdict.TAKE: "open", Verdict.KNOWN: "known", Verdict.DECLINED: "declined"}
        answered = [names[Verdict(v)] for v in result.verdicts]
        assert answered == list(units.values()), (answered, units)
        assert result.reason == reason
        assert bool(result.reservation_id) == ("open" in answered)
        if result.reservation_id:
            reservation = Reservation(
                first,
                parents[first:],
                kinds,
                lineage,
                units,
                self.now + self.config.write_ttl_seconds,
            )
            session.reservations[result.reservation_id] = reservation
            self._charge(session, reservation)

    def _charge(self, session: Session, reservation: Reservation) -> None:
        for (_, position), unit in reservation.units.items():
            if unit == "open":
                session.space.reserved += reservation.kinds[position].slot_bytes

    def _known(self, session: Session, digest: bytes, kind: Kind, lineage: int) -> bool:
        page = self.naive.pages.get((session.space.root, digest))
        block = page.blocks.get(kind) if page is not None else None
        return block is not None and block.lineage <= lineage

    def _expected_units(
        self, session: Session, hashes: list[bytes], kinds: list[Kind], lineage: int
    ) -> tuple[dict[tuple[int, int], str], str]:
        space, naive = session.space, self.naive
        keys = [(space.root, digest) for digest in hashes]
        naive.heal(keys)
        before = naive.touch(keys)
        units = {
            (page, position): "known" if self._known(session, digest, kind, lineage) else "open"
            for page, digest in enumerate(hashes[1:])
            for position, kind in enumerate(kinds)
        }
        wanted = [unit for unit, state in units.items() if state == "open"]
        reason = ""
        if wanted and not space.enabled:
            reason = "disabled"
        elif wanted and lineage > space.max_lineage:
            reason = "lineage"
        elif wanted and len(session.reservations) >= self.config.max_reservations:
            reason = "limit"
        if reason:
            return units | dict.fromkeys(wanted, "declined"), reason
        if wanted and space.quota:
            sizes = [kinds[position].slot_bytes for _, position in wanted]
            over = sum(sizes) + space.used + space.reserved - space.quota
            naive.evict(
                lambda block: block.page is not None and block.page[0] == space.root, over, before
            )
            room = space.quota - space.used - space.reserved
            for unit, size in zip(wanted, sizes, strict=True):
                room -= size
                if room < 0:
                    units[unit], reason = "declined", "quota"
        return units, reason

    def begin_seal(self) -> None:
        if (session := self.pick_session()) is None or not session.reservations:
            return
        ids = list(session.reservations)
        reservation_id = ids[self.draw(len(ids))]
        reservation = session.reservations[reservation_id]
        asked = [u for u, s in reservation.units.items() if s != "writing" and self.draw(4)]
        if not asked:
            return
        keep_open = self.draw(2) == 0
        work = self.store.begin_seal(
            session.session_id,
            reservation_id,
            np.array([page for page, _ in asked], np.uint32),
            np.array([position for _, position in asked], np.uint8),
            keep_open,
            self.now,
        )
        results, segments = self._expected_seal(session, reservation, asked)
        assert list(work.results) == results, (list(work.results), results)
        copies = work.copies
        assert copies.segment_id.tolist() == segments
        for form in work.formats:
            segment = self.naive.pool.segments.get(form.segment_id)
            assert segment is None or (form.index, form.slots) == (segment.index, segment.slots)
        columns = (copies.segment_id, copies.slot, copies.generation + 1)
        places = list(zip(*(column.tolist() for column in columns), strict=True))
        self.tickets[work.ticket] = Ticket(
            session,
            reservation,
            [
                (index, *asked[index], place)
                for index, place in zip(copies.request_index.tolist(), places, strict=True)
            ],
            results,
        )
        if keep_open:
            reservation.deadline = self.now + self.config.write_ttl_seconds
        else:
            self.uncharge(session, reservation)
            del session.reservations[reservation_id]

    def _expected_seal(
        self, session: Session, reservation: Reservation, asked: list[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        """Results at once, and the segment of each copy, in order."""
        space, units = session.space, reservation.units
        names = {"open": 0, "known": 2, "declined": 3, "done": 2}
        results = [names[units[unit]] for unit in asked]
        if not space.enabled:
            results = [Sealed.DECLINED if r == 0 else r for r in results]
        pages = [page for page, _ in asked]
        keys = [(space.root, h) for h in reservation.hashes[min(pages) : max(pages) + 2]]
        before = self.naive.touch(keys)
        segments: list[int] = []
        for position, kind in enumerate(reservation.kinds):
            here = []
            for i, (page, p) in enumerate(asked):
                if p == position and results[i] == 0:
                    digest = reservation.hashes[page + 1]
                    if self._known(session, digest, kind, reservation.lineage):
                        results[i] = Sealed.KNOWN
                    else:
                        here.append(i)
            taken = self.naive.take_slots(kind, len(here), before)
            segments += taken
            for i in here[len(taken) :]:
                results[i] = Sealed.DECLINED
        for unit, result in zip(asked, results, strict=True):
            if units[unit] == "open":
                if result != 0:
                    space.reserved -= reservation.kinds[unit[1]].slot_bytes
                units[unit] = {0: "writing", 2: "known", 3: "declined"}[int(result)]
        return [int(r) for r in results], segments

    def finish_seal(self) -> None:
        if not self.tickets:
            return
        ids = list(self.tickets)
        ticket_id = ids[self.draw(len(ids))]
        ticket = self.tickets.pop(ticket_id)
        copied = [self.draw(6) != 0 for _ in ticket.copies]
        first = self.made + 1
        self.made += len(copied)
        checksums = list(range(first, first + len(copied)))
        answer = self.store.finish_seal(
            ticket_id, np.array(copied, np.bool_), np.array(checksums, np.uint64), self.now
        )
        self._expect_finish(ticket, copied, checksums)
        self.findable |= {
            place[:2] for index, *_, place in ticket.copies if answer[index] == Sealed.SEALED
        }
        assert list(answer) == ticket.results, (list(answer), ticket.results)

    def _expect_finish(self, ticket: Ticket, copied: list[bool], checksums: list[int]) -> None:
        session, reservation, naive = ticket.session, ticket.reservation, self.naive
        space = session.space
        for *_, (segment_id, _, _) in ticket.copies:
            naive.pool.segments[segment_id].writing -= 1
        dead = ticket.cancelled or not session.alive or not space.enabled
        good = [page for (_, page, _, _), ok in zip(ticket.copies, copied, strict=True) if ok]
        if good and not dead:
            self._enter_pages(space, reservation, sorted(set(good)))
        outcomes: dict[int, int] = {}
        for wanted in range(len(reservation.kinds)):
            for copy, ok, checksum in zip(ticket.copies, copied, checksums, strict=True):
                if copy[2] == wanted:
                    outcomes[copy[0]] = self._enter_block(ticket, copy, ok, dead, checksum)
        if good and not dead:
            for page in set(good):
                naive.drop_if_bare((space.root, reservation.hashes[page + 1]))
        for index, page, position, _ in ticket.copies:
            result = ticket.results[index] = outcomes[index]
            space.reserved -= reservation.kinds[position].slot_bytes
            still_open = reservation in session.reservations.values()
            if still_open:
                names = {1: "done", 2: "done", 3: "declined", 4: "open"}
                reservation.units[page, position] = names[result]
                if result == Sealed.MISMATCH:
                    space.reserved += reservation.kinds[position].slot_bytes

    def _enter_pages(self, space: Space, reservation: Reservation, pages: list[int]) -> None:
        naive = self.naive
        stop = min(pages[-1] + 2, len(reservation.hashes) - 1)
        keys = [(space.root, h) for h in reservation.hashes[pages[0] : stop + 1]]
        for page in pages:
            key = (space.root, reservation.hashes[page + 1])
            if key not in naive.pages:
                naive.pages[key] = Page(key, reservation.first + page, None, 0, {})
        naive.heal(keys)
        naive.touch(keys)

    def _enter_block(
        self,
        ticket: Ticket,
        copy: tuple[int, int, int, tuple[int, int, int]],
        ok: bool,
        dead: bool,
        checksum: int,
    ) -> int:
        _, page, position, place = copy
        reservation, space, naive = ticket.reservation, ticket.session.space, self.naive
        kind = reservation.kinds[position]
        key = (space.root, reservation.hashes[page + 1])
        result = Sealed.SEALED if ok else Sealed.MISMATCH
        if dead:
            result = Sealed.DECLINED
        if result is Sealed.SEALED:
            older = naive.pages[key].blocks.get(kind)
            if older is not None and older.lineage <= reservation.lineage:
                result = Sealed.KNOWN
            else:
                if older is not None:
                    naive.drop_block(older)
                block = Block(kind, key, place[0], place, checksum, reservation.lineage)
                naive.pages[key].blocks[kind] = block
                space.used += kind.slot_bytes
        if result is not Sealed.SEALED:
            naive.pool.segments[place[0]].used -= 1
        return int(result)

    def abort(self) -> None:
        session = self.pick_session()
        if session is not None and session.reservations:
            ids = list(session.reservations)
            reservation_id = ids[self.draw(len(ids))]
            self.store.abort(session.session_id, reservation_id, self.now)
            reservation = session.reservations.pop(reservation_id)
            self.cancel(reservation)
            self.uncharge(session, reservation)
