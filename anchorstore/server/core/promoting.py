"""From nvme to dram: what a lookup needs is brought in, each block once.

::

    lookup --blocks in nvme alone--> being read already?  -> wait for that ticket
                                     else dram slots (evicting) -> a ticket of its own
       :     anchors first, then states, then kv; all that the lookup needs, or nothing
    finish_promote    proven -> the block has a place in both tiers
                      lost   -> the block is forgotten: a reader may compute it again
                      else   -> not read in time: it stays in nvme alone

While a ticket is open its blocks are pinned, and so is what the lookup found in dram.
"""

from __future__ import annotations

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.evicting import evict, take_slots
from anchorstore.server.core.moving import PromoteTicket
from anchorstore.server.core.planning import Plan
from anchorstore.server.core.policy import Field, Scope
from anchorstore.server.core.pool import Grant
from anchorstore.server.core.sessions import NamespaceRecord
from anchorstore.server.core.state import State
from anchorstore.server.core.types import U8, Bools, Positions, column
from anchorstore.server.core.work import PromoteWork, Promotion

PROMOTING_PART = 4
"""Of the pool: what several promotions of one namespace may fill is one in so many, where other
namespaces are in use."""

RANK: U8 = np.zeros(max(Component) + 1, np.uint8)
"""By component: what is read first."""
for _rank, _component in enumerate((Component.ANCHOR, Component.STATE, Component.KV)):
    RANK[_component] = _rank


def promote(state: State, record: NamespaceRecord, plan: Plan) -> Promotion | None:
    """Begins to bring in what the plan needs; None where dram has no room for all of it."""
    movement, before = state.movement, state.touch(plan.pages)
    rows = plan.held[~state.dram.holds(plan.held.astype(np.uint32))]
    joined = {movement.promoting[row] for row in rows.tolist() if row in movement.promoting}
    fresh = np.array([row for row in rows.tolist() if row not in movement.promoting], np.intp)
    state.counters["blocks_joined"] += len(rows) - len(fresh)
    work = None
    if len(fresh):
        work = _begin(state, record, plan, _in_order(state, fresh), before)
        if work is None:
            state.counters["promotions_refused"] += 1
            return None
        joined.add(work.ticket)
    state.counters["lookups_promoting"] += 1
    return Promotion(record.namespace_id, work, tuple(sorted(joined)), plan.boundary)


def _in_order(state: State, rows: Positions) -> Positions:
    components = state.registry.component_of_kind.take(state.blocks.kind.take(rows))
    return rows[np.argsort(RANK.take(components), kind="stable")]


def _begin(
    state: State, record: NamespaceRecord, plan: Plan, rows: Positions, before: int
) -> PromoteWork | None:
    table, dram = state.blocks, state.dram
    kind_ids = table.kind.take(rows)
    wanted_bytes = int(dram.slot_bytes_of_kind.take(kind_ids).sum())
    if not _is_modest(state, record, wanted_bytes):
        return None
    if not _fits_quota(state, record, wanted_bytes, before):
        return None
    segment_ids, slots, generations = (np.zeros(len(rows), np.uint32) for _ in range(3))
    taken: list[Grant] = []
    for kind_id in dict.fromkeys(kind_ids.tolist()):
        here = np.flatnonzero(kind_ids == kind_id)
        slot_class = state.registry.by_kind_id[kind_id].slot_class
        for grant in take_slots(state, dram, slot_class, len(here), before):
            taken.append(grant)
            mine, here = here[: len(grant.slots)], here[len(grant.slots) :]
            segment_ids[mine] = grant.segment.segment_id
            slots[mine], generations[mine] = grant.slots, grant.generations
        if len(here):
            _give_back(state, taken)
            return None
    pinned = plan.held[dram.holds(plan.held.astype(np.uint32))]
    ticket = PromoteTicket(
        state.new_id(), record, rows, segment_ids, slots, generations, wanted_bytes, pinned
    )
    record.reserved_bytes += wanted_bytes
    for pins in (rows, pinned):
        table.leases[pins] += np.uint32(1)
    state.movement.promotes[ticket.ticket_id] = ticket
    state.movement.promoting.update(dict.fromkeys(rows.tolist(), ticket.ticket_id))
    state.note("promote", ticket.ticket_id, len(rows), "blocks")
    return _work(state, ticket)


def _is_modest(state: State, record: NamespaceRecord, wanted_bytes: int) -> bool:
    """Whether the namespace leaves memory to others, if there are any, while it is read for: one
    promotion may have any size, several together no more than a part of the pool."""
    tickets = state.movement.promotes.values()
    mine = sum(ticket.reserved_bytes for ticket in tickets if ticket.record is record)
    pool_bytes = state.dram.pool.segments * state.dram.pool.segment_bytes
    if not mine or mine + wanted_bytes <= pool_bytes // PROMOTING_PART:
        return True
    others = (it.sessions for it in state.registry.namespaces.values() if it is not record)
    return not any(others)


def _fits_quota(state: State, record: NamespaceRecord, wanted_bytes: int, before: int) -> bool:
    """Whether the namespace's quota in dram allows it, own oldest leaves evicted first."""
    if not record.quota_bytes:
        return True
    over_bytes = wanted_bytes + record.used_bytes + record.reserved_bytes - record.quota_bytes
    if over_bytes > 0:
        scope = Scope(Field.NAMESPACE, record.namespace_id)
        evict(state, state.dram, scope, over_bytes, before)
    return wanted_bytes + record.used_bytes + record.reserved_bytes <= record.quota_bytes


def _give_back(state: State, grants: list[Grant]) -> None:
    pool = state.dram.pool
    for grant in grants:
        ids = np.full(len(grant.slots), grant.segment.segment_id, np.uint32)
        pool.written(ids)
        pool.give(ids, grant.slots)


def _work(state: State, ticket: PromoteTicket) -> PromoteWork:
    table, nvme, rows = state.blocks, state.nvme, ticket.rows
    assert nvme is not None
    as_rows = rows.astype(np.uint32)
    kinds = [state.registry.by_kind_id[kind] for kind in table.kind.take(rows).tolist()]
    root, pages = ticket.record.root_digest, table.page.take(rows)
    by_id = state.dram.pool.by_id
    first = np.array([kind.first_slot_offset for kind in kinds], np.uint64)
    step = np.array([kind.slot_bytes for kind in kinds], np.uint64)
    return PromoteWork(
        ticket=ticket.ticket_id,
        namespace_id=ticket.record.namespace_id,
        domain=ticket.record.namespace.domain,
        formats=state.dram.pool.take_formats(),
        segment_index=np.array([by_id[i].index for i in ticket.segment_ids.tolist()], np.uint32),
        segment_id=ticket.segment_ids,
        slot=ticket.slots,
        offset=first + ticket.slots.astype(np.uint64) * step,
        block_bytes=np.array([kind.block_bytes for kind in kinds], np.uint64),
        generation=ticket.generations,
        unit=table.cold.take(rows),
        cold_generation=nvme.generations_of(as_rows),
        path_hash=state.index.hashes.take(pages, axis=0),
        layout_key=np.array([kind.layout_key(root) for kind in kinds], np.uint64),
        lineage=table.lineage.take(rows),
        checksum=column(table.checksum[rows], np.uint64),
    )


def finish_promote(state: State, ticket_id: int, ok: Bools, lost: Bools) -> Bools:
    """Gives the proven blocks their place in dram, forgets the lost ones.  Returns which [n] can be
    read in dram now."""
    movement, table, dram = state.movement, state.blocks, state.dram
    state.ensure(ticket_id in movement.promotes, f"no promotion {ticket_id}")
    ticket = movement.promotes.pop(ticket_id)
    rows, ok, lost = ticket.rows, column(ok, np.bool_), column(lost, np.bool_)
    state.ensure(len(ok) == len(lost) == len(rows), "one outcome a block")
    state.ensure(not (ok & lost).any(), "a block is proven and lost")
    for row in rows.tolist():
        del movement.promoting[row]
    dram.pool.written(ticket.segment_ids)
    ticket.record.reserved_bytes -= ticket.reserved_bytes
    attached = table.page.take(rows) != 0
    there: Bools = ok & attached
    state.place(dram, rows[there].astype(np.uint32), lambda: _set_place(state, ticket, there))
    if not there.all():
        dram.pool.give(ticket.segment_ids[~there], ticket.slots[~there])
    for pins in (rows, ticket.pinned):
        state.unlease(pins)
    for row in rows[lost & attached].tolist():
        state.forget_block(row)
    state.counters["blocks_promoted"] += int(there.sum())
    if state.nvme is not None and lost.any():
        state.nvme.hides_room = True
    state.counters["blocks_corrupt"] += int(lost.sum())
    state.counters["nvme_blocks_read_late"] += int((~ok & ~lost).sum())
    state.note("finish_promote", ticket_id, int(there.sum()), "of", len(ok))
    state.registry.forget_namespace_if_idle(ticket.record)
    return there


def _set_place(state: State, ticket: PromoteTicket, there: Bools) -> None:
    table, rows = state.blocks, ticket.rows[there]
    table.in_dram_alone += int(np.count_nonzero(table.cold.take(rows) == 0))
    table.segment[rows] = ticket.segment_ids[there]
    table.slot[rows] = ticket.slots[there]
    table.generation[rows] = ticket.generations[there] + np.uint32(1)
