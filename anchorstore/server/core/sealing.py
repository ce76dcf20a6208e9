"""Seal in two steps, with the copy between them.

::

    begin_seal    known again? -> take slots (evicting where it must) -> copies for the mover
       :          the blocks have slots and odd generations, but no rows: nobody can see them
    mover         format segments, generation odd, copy, checksum, generation even
       :
    finish_seal   copied well? still wanted? -> page rows, block rows, parent links: visible

Two writers may copy the same block; the second to finish is `known` and its slot is freed.  A
more exact block replaces an approximate one here.  Where the session died, the reservation was
aborted or the kill switch turned meanwhile, the slots are freed and nothing was ever visible.
"""

from __future__ import annotations

import numpy as np

from anchorstore.errors import InvalidRequest
from anchorstore.server.core import reserving
from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.demoting import note_sealed
from anchorstore.server.core.evicting import take_slots
from anchorstore.server.core.reserving import Unit
from anchorstore.server.core.sessions import Kind, Reservation, Session
from anchorstore.server.core.state import State, Ticket
from anchorstore.server.core.types import (
    U8,
    U32,
    U64,
    Bools,
    Copies,
    Positions,
    Sealed,
    SealWork,
    column,
)

RESULT_OF_UNIT = np.array(
    [Sealed.PENDING, Sealed.KNOWN, Sealed.DECLINED, Sealed.DECLINED, Sealed.KNOWN], np.uint8
)
"""What a seal answers at once for a unit, by Unit; a unit being written is refused before."""

# As numpy's scalars: comparing an array with a member of an enum costs microseconds more.
PENDING, SEALED, KNOWN, DECLINED, MISMATCH = (np.uint8(answer) for answer in Sealed)
UNIT_OPEN, UNIT_WRITING = np.uint8(Unit.OPEN), np.uint8(Unit.WRITING)


def begin_seal(
    state: State,
    session: Session,
    reservation_id: int,
    pages: U32,
    layouts: U8,
    keep_open: bool,
    now: float,
) -> SealWork:
    """Takes slots for the named blocks; see SealWork for what the shell then does."""
    reservation = reserving.reservation_of(session, reservation_id)
    pages, layouts = column(pages, np.uint32), column(layouts, np.uint8)
    flat = _unit_positions(reservation, pages, layouts)
    units = reservation.units.ravel()  # a view: what is written here is written there
    results = RESULT_OF_UNIT[units[flat]]
    if not session.record.enabled:
        results[results == PENDING] = DECLINED
    taken = _take(state, reservation, pages, layouts, results)
    pending = results == PENDING
    charged = units[flat] == UNIT_OPEN
    sizes = reservation.slot_bytes[layouts]
    session.record.reserved_bytes -= int(sizes[charged & ~pending].sum())
    units[flat[charged & (results == KNOWN)]] = Unit.KNOWN
    units[flat[charged & (results == DECLINED)]] = Unit.DECLINED
    units[flat[pending]] = UNIT_WRITING
    ticket, copies = _open_ticket(state, reservation, pages, layouts, results, taken)
    if keep_open:
        state.reservations.use(reservation_id, now)
    else:
        reserving.close(state, reservation)
    state.note("begin_seal", ticket.ticket_id, len(results), "asked", len(copies), "copies")
    work_results = bytearray(results.tobytes())
    domain = session.record.namespace.domain
    return SealWork(ticket.ticket_id, domain, work_results, state.pool.take_formats(), copies)


def _unit_positions(reservation: Reservation, pages: U32, layouts: U8) -> Positions:
    """Flat positions of the named units; InvalidRequest outside, twice, or being written."""
    rows, width = reservation.units.shape
    if len(pages) != len(layouts) or not 1 <= len(pages) <= rows * width:
        raise InvalidRequest(
            f"{len(pages)} pages and {len(layouts)} layouts, must be equal, 1 to {rows * width}"
        )
    if int(pages.max()) >= rows or int(layouts.max()) >= width:
        raise InvalidRequest(
            f"page {int(pages.max())} of {rows} or layout {int(layouts.max())} of {width}"
        )
    flat: Positions = pages.astype(np.intp) * width + layouts
    if len(flat) > 1 and len(np.unique(flat)) != len(flat):
        raise InvalidRequest("a block is named twice in one seal")
    if (reservation.units.ravel()[flat] == UNIT_WRITING).any():
        raise InvalidRequest("a block is being sealed already")
    return flat


def _take(
    state: State, reservation: Reservation, pages: U32, layouts: U8, results: U8
) -> list[tuple[Positions, U32, U32, U32]]:
    """Marks known and declined blocks in `results`; takes slots for the pending ones.

    Returns (request positions, segment ids, slots, odd generations) per grant.
    """
    record = reservation.session.record
    first, last = int(pages.min()), int(pages.max())
    path = state.index.find(record.namespace_id, reservation.path[first : last + 2])
    before = state.touch(path)
    rows = path[pages - first + 1]
    taken = []
    for position, kind in enumerate(reservation.kinds):
        here = np.flatnonzero((layouts == position) & (results == PENDING))
        known = reserving.known_units(state, rows[here], [kind], reservation.lineage)[:, 0]
        results[here[known]] = KNOWN
        here = here[~known]
        for grant in take_slots(state, state.dram, kind.slot_class, len(here), before):
            mine, here = here[: len(grant.slots)], here[len(grant.slots) :]
            ids = np.full(len(mine), grant.segment.segment_id, np.uint32)
            taken.append((mine, ids, grant.slots, grant.generations))
            kind.blocks += len(mine)
        results[here] = DECLINED
        state.counters["blocks_declined_capacity"] += len(here)
    return taken


def _open_ticket(
    state: State,
    reservation: Reservation,
    pages: U32,
    layouts: U8,
    results: U8,
    taken: list[tuple[Positions, U32, U32, U32]],
) -> tuple[Ticket, Copies]:
    empty = [np.zeros(0, np.uint32)] * 4
    where, ids, slots, generations = (
        (np.concatenate(parts) for parts in zip(*taken, strict=True)) if taken else empty
    )
    where = where.astype(np.uint32)
    kind_here = layouts[where]
    ticket = Ticket(
        state.new_id(),
        reservation.session,
        reservation,
        bytearray(results.tobytes()),
        where,
        pages[where],
        kind_here,
        ids,
        slots,
        generations,
    )
    state.tickets[ticket.ticket_id] = ticket
    first = [kind.first_slot_offset for kind in reservation.kinds]
    sizes = [kind.block_bytes for kind in reservation.kinds]
    offsets = np.array(first, np.uint64)[kind_here]
    offsets += slots.astype(np.uint64) * reservation.slot_bytes[kind_here]
    root = reservation.session.record.root_digest
    keys = [kind.layout_key(root) for kind in reservation.kinds]
    indexes = [state.pool.by_id[segment_id].index for segment_id in ids.tolist()]
    copies = Copies(
        request_index=where,
        segment_index=np.array(indexes, np.uint32),
        segment_id=ids,
        slot=slots,
        offset=offsets,
        block_bytes=np.array(sizes, np.uint64)[kind_here],
        generation=generations,
        path_hash=reservation.path[ticket.pages + 1],
        layout_key=np.array(keys, np.uint64)[kind_here],
        lineage=reservation.lineage,
    )
    return ticket, copies


def finish_seal(state: State, ticket_id: int, copied_ok: Bools, checksums: U64) -> bytes:
    """Makes the copied blocks visible; one `Sealed` a block that begin_seal was asked for."""
    state.ensure(ticket_id in state.tickets, f"ticket {ticket_id} is not open")
    ticket = state.tickets.pop(ticket_id)
    copied_ok, checksums = column(copied_ok, np.bool_), column(checksums, np.uint64)
    count = len(ticket.slots)
    state.ensure(len(copied_ok) == len(checksums) == count, "one outcome a copy")
    reservation = ticket.reservation
    record = ticket.session.record
    state.pool.written(ticket.segment_ids)
    record.reserved_bytes -= int(reservation.slot_bytes[ticket.layouts].sum())
    outcome = np.where(copied_ok, SEALED, MISMATCH)
    if ticket.cancelled or not ticket.session.alive or not record.enabled:
        outcome[:] = DECLINED
    if (outcome == SEALED).any():
        note_sealed(state, _make_visible(state, ticket, outcome, checksums))
    _give_back(state, ticket, outcome)
    _mark_units(state, ticket, outcome)
    results = np.frombuffer(ticket.results, np.uint8)
    results[ticket.request_index] = outcome
    counts = np.bincount(outcome, minlength=len(Sealed))
    state.counters["blocks_sealed"] += int(counts[SEALED])
    state.counters["blocks_known"] += int(counts[KNOWN])
    state.counters["blocks_mismatch"] += int(counts[MISMATCH])
    state.note("finish_seal", ticket_id, bytes(outcome[:64].tolist()).hex())
    state.registry.forget_namespace_if_idle(record)
    return bytes(ticket.results)


def _make_visible(state: State, ticket: Ticket, outcome: U8, checksums: U64) -> U32:
    """Page rows, then kind by kind the block rows; marks in `outcome` those that lost a race.
    Returns the new blocks."""
    reservation = ticket.reservation
    rows = _page_rows(state, ticket, outcome)
    added = [np.zeros(0, np.uint32)]
    for position, kind in enumerate(reservation.kinds):
        here = np.flatnonzero((ticket.layouts == position) & (outcome == SEALED))
        if not len(here):
            continue
        pages = rows[here]
        [older] = state.blocks.find(state.index, pages, [kind.kind_id])
        depth = state.blocks.lineage.take(older)
        known = (older != 0) & (depth <= reservation.lineage)
        full = (older == 0) & (state.blocks.chain_lengths(state.index, pages) >= CHAIN_LIMIT)
        outcome[here[known]] = KNOWN
        outcome[here[full]] = DECLINED
        fresh = ~(known | full)
        added.append(_add_blocks(state, ticket, kind, here[fresh], pages[fresh], checksums))
        for row in older[fresh & (older != 0)].tolist():
            state.forget_block(row)
            state.counters["blocks_replaced"] += 1
    _drop_bare(state, rows)
    return np.concatenate(added)


def _page_rows(state: State, ticket: Ticket, outcome: U8) -> U32:
    """Page row of each copy [n], entries made where missing and wanted, parents linked."""
    reservation = ticket.reservation
    record = reservation.session.record
    wanted = np.unique(ticket.pages[outcome == SEALED])
    first, last = int(wanted[0]), int(wanted[-1])
    stop = min(last + 2, len(reservation.path) - 1)  # one page beyond: it may wait for its parent
    path = reservation.path[first : stop + 1]  # the page before, then first ..
    rows = state.index.find(record.namespace_id, path)
    missing = wanted[rows[wanted - first + 1] == 0]
    if len(missing):
        fresh = state.index.insert(
            record.namespace_id,
            reservation.path[missing + 1],
            (missing + reservation.first_page).astype(np.uint32),
            state.tick,
        )
        rows[missing - first + 1] = fresh
        state.history.born(fresh, state.moment, reservation.priority)
        state.history.stored_together(fresh)
        record.pages += len(missing)
    state.heal(rows)
    state.touch(rows)
    every = np.zeros(len(ticket.pages), np.uint32)
    inside = (ticket.pages >= first) & (ticket.pages <= last)
    every[inside] = rows[ticket.pages[inside] - first + 1]
    return every


def _add_blocks(
    state: State, ticket: Ticket, kind: Kind, here: Positions, pages: U32, checksums: U64
) -> U32:
    """Block rows for the copies `here`, in front of their pages' chains."""
    table = state.blocks
    rows = table.take_rows(len(here))
    table.kind[rows] = kind.kind_id
    table.segment[rows] = ticket.segment_ids[here]
    table.slot[rows] = ticket.slots[here]
    table.generation[rows] = ticket.generations[here] + np.uint32(1)
    table.checksum[rows] = checksums[here]
    table.lineage[rows] = ticket.reservation.lineage
    table.leases[rows] = 0
    table.in_dram_alone += len(rows)
    new = ~state.dram.within(pages)
    table.attach(state.index, pages, rows)
    state.enter(state.dram, pages[new])
    if not state.dram.queues.is_by_use:  # there, what was touched just now comes last anyway
        state.announce_leaves(state.dram, pages)
    ticket.session.record.used_bytes += kind.slot_bytes * len(here)
    return rows


def _drop_bare(state: State, rows: U32) -> None:
    """Takes out entries that got no block after all and that nothing continues."""
    bare = np.unique(rows[state.index.first_block.take(rows) == 0])
    if len(bare := bare[bare != 0]):
        state.forget_pages(bare)


def _give_back(state: State, ticket: Ticket, outcome: U8) -> None:
    """Frees the slots of copies that were not sealed."""
    lost = outcome != SEALED
    if not lost.any():
        return
    state.pool.give(ticket.segment_ids[lost], ticket.slots[lost])
    for position, kind in enumerate(ticket.reservation.kinds):
        count = int((lost & (ticket.layouts == position)).sum())
        if count:
            state.lower_kind(kind, count)


def _mark_units(state: State, ticket: Ticket, outcome: U8) -> None:
    """Tells a reservation that is still open: a mismatch may be sent again."""
    reservation = ticket.reservation
    if reservation.reservation_id not in state.reservation_by_id:
        return
    flat = ticket.pages.astype(np.intp) * len(reservation.kinds) + ticket.layouts
    again = outcome == MISMATCH
    units = np.full(len(outcome), Unit.DONE, np.uint8)
    units[outcome == DECLINED] = Unit.DECLINED
    units[again] = Unit.OPEN
    reservation.units.ravel()[flat] = units
    sizes = reservation.slot_bytes[ticket.layouts]
    reservation.session.record.reserved_bytes += int(sizes[again].sum())
