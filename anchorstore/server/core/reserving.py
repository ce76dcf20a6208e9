"""Reserve: which blocks of a run of pages are worth writing.  Takes no slot, charges the quota.

::

    page x layout    known (sealed, lineage at most the offered) -> known
                     kill switch, lineage, quota, ...            -> declined, with the reason
                     else                                        -> take: an open unit

    unit    open --begin_seal--> writing --finish_seal--> done | open again (mismatch)
            open --abort, expiry, end of the reservation--> gone
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from anchorstore.errors import CapacityFull, LeaseExpired
from anchorstore.server.core import requests
from anchorstore.server.core.demoting import not_admitted, note_sealed
from anchorstore.server.core.evicting import evict
from anchorstore.server.core.policy import Field, Scope
from anchorstore.server.core.sessions import Kind, Reservation, Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import (
    DEEPEST_LINEAGE,
    U32,
    U64,
    Bools,
    Declined,
    ReserveResult,
    Verdict,
)


class Unit(enum.IntEnum):
    """Condition of one page's block of one layout in a reservation."""

    OPEN = 0
    KNOWN = 1
    DECLINED = 2
    WRITING = 3
    DONE = 4


def reserve(
    state: State,
    session: Session,
    parent_hash: bytes,
    first_page: int,
    hashes: bytes,
    layouts: Sequence[int],
    lineage: int,
    now: float,
    priority: int = 0,
) -> ReserveResult:
    """Answers page by page and layout by layout; see the module's drawing."""
    keys = requests.hash_columns(state.config, hashes)
    requests.check_layouts(session, layouts)
    requests.check_run(session, parent_hash, first_page, keys, lineage)
    _check_room(state, len(keys))
    priority = max(-(2**15), min(2**15 - 1, priority))
    record = session.record
    kinds = tuple(session.kinds[layout] for layout in layouts)
    path = np.concatenate([np.frombuffer(parent_hash, np.uint64).reshape(1, 4), keys])
    pages = state.index.find(record.namespace_id, path)
    state.heal(pages)
    before = state.touch(pages)
    waiting = not_admitted(state, pages[1:])
    state.history.used(pages[1:])
    state.history.raised(pages[1:], priority)
    if len(waiting):
        note_sealed(state, waiting)
    known = known_units(state, pages[1:], kinds, lineage)
    take, reason = _admit(state, session, kinds, ~known, lineage, before)
    verdicts = np.full(known.shape, Verdict.DECLINED, np.uint8)
    verdicts[known] = Verdict.KNOWN
    verdicts[take] = Verdict.TAKE
    reservation_id = 0
    if take.any():
        reservation_id = state.new_id()
        units = np.where(take, Unit.OPEN, np.where(known, Unit.KNOWN, Unit.DECLINED))
        reservation = Reservation(
            reservation_id,
            session,
            first_page,
            path,
            kinds,
            min(lineage, DEEPEST_LINEAGE),
            units.astype(np.uint8),
            _slot_bytes(kinds),
            priority,
        )
        record.reserved_bytes += open_bytes(reservation)
        session.reservations[reservation_id] = reservation
        state.reservation_by_id[reservation_id] = reservation
        state.reserved_pages += reservation.pages
        state.reservations.use(reservation_id, now)
    state.counters["blocks_offered"] += known.size
    state.counters["blocks_offered_known"] += int(known.sum())
    if reason:
        state.counters[f"blocks_declined_{reason}"] += int((~take & ~known).sum())
    return ReserveResult(reservation_id, verdicts.tobytes(), reason)


def _check_room(state: State, pages: int) -> None:
    """CapacityFull where the pages of all reservations would be too many."""
    pages += state.reserved_pages
    if pages > state.config.max_reserved_pages:
        raise CapacityFull(
            f"reserve: {pages} pages in open reservations, limit {state.config.max_reserved_pages} "
            "(limits.reserved_pages)"
        )


def known_units(state: State, pages: U32, kinds: Sequence[Kind], lineage: int) -> Bools:
    """Per page row and kind [n, kinds]: whether a block at most as deep is sealed."""
    found = state.blocks.find(state.index, pages, [kind.kind_id for kind in kinds])
    columns = [(rows != 0) & (state.blocks.lineage.take(rows) <= lineage) for rows in found]
    return np.stack(columns, axis=1)


def _slot_bytes(kinds: Sequence[Kind]) -> U64:
    return np.array([kind.slot_bytes for kind in kinds], np.uint64)


def _admit(
    state: State,
    session: Session,
    kinds: Sequence[Kind],
    wanted: Bools,
    lineage: int,
    before: int,
) -> tuple[Bools, Declined]:
    """Which of the wanted units are taken, and why the others are not."""
    record = session.record
    nothing = np.zeros_like(wanted)
    if not wanted.any():
        return nothing, Declined.NOTHING
    if not record.enabled:
        return nothing, Declined.DISABLED
    if not record.stores(lineage):
        return nothing, Declined.LINEAGE
    if len(session.reservations) >= state.config.max_reservations:
        return nothing, Declined.LIMIT
    reason = Declined.NOTHING
    allowed = [state.pool.allowed_segments(kind.component) > 0 for kind in kinds]
    if not all(allowed):
        wanted, reason = wanted & np.array(allowed), Declined.CAPACITY
    if record.quota_bytes:
        fits = _within_quota(state, session, wanted, _slot_bytes(kinds), before)
        if (wanted & ~fits).any():
            wanted, reason = wanted & fits, Declined.QUOTA
    return wanted, reason


def _within_quota(
    state: State, session: Session, wanted: Bools, slot_bytes: U64, before: int
) -> Bools:
    """The leading units that fit the namespace's quota, its own oldest leaves evicted first."""
    record = session.record
    sizes = np.cumsum((wanted * slot_bytes).ravel()).reshape(wanted.shape)
    over_bytes = int(sizes[-1, -1]) + record.used_bytes + record.reserved_bytes
    over_bytes -= record.quota_bytes
    if over_bytes > 0:
        evict(state, state.dram, Scope(Field.NAMESPACE, record.namespace_id), over_bytes, before)
    room_bytes = record.quota_bytes - record.used_bytes - record.reserved_bytes
    return np.asarray(sizes <= max(0, room_bytes))


def open_bytes(reservation: Reservation) -> int:
    """Bytes of slots that its open units are charged for."""
    is_open = reservation.units == Unit.OPEN
    return int((is_open * reservation.slot_bytes).sum())


def reservation_of(session: Session, reservation_id: int) -> Reservation:
    """The session's live reservation; LeaseExpired for any other id."""
    reservation = session.reservations.get(reservation_id)
    if reservation is None:
        raise LeaseExpired(f"reservation {reservation_id} has ended or is not this session's")
    return reservation


def close(state: State, reservation: Reservation) -> None:
    """Ends a reservation: open units are given back, those being written go on."""
    record = reservation.session.record
    record.reserved_bytes -= open_bytes(reservation)
    state.ensure(record.reserved_bytes >= 0, "reserved bytes below 0")
    del reservation.session.reservations[reservation.reservation_id]
    del state.reservation_by_id[reservation.reservation_id]
    state.reserved_pages -= reservation.pages
    state.reservations.drop(reservation.reservation_id)
    state.registry.forget_namespace_if_idle(record)


def abort(state: State, reservation: Reservation) -> None:
    """Ends a reservation and throws away what is being written for it."""
    for ticket in state.tickets.values():
        if ticket.reservation is reservation:
            ticket.cancelled = True
    close(state, reservation)
    state.counters["reservations_aborted"] += 1
