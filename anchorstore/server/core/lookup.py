"""Lookup and leases: the hot path.  Plan (planning.py), then hold.

::

    question --Plans--> plan --miss--> counted, answered
                          |
                          hit, all of it in dram --> stamps of the path, lease counts --> answered
                          |
                          hit, some of it in nvme --> promoting.py --> "wait for these tickets"
                                                      no room, no wish: again, in dram alone
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstore.errors import CapacityFull, InvalidRequest, LeaseExpired
from anchorstore.server.core import requests
from anchorstore.server.core.demoting import not_admitted, note_sealed
from anchorstore.server.core.planning import Plan, Plans, Reach, columns_of_needs
from anchorstore.server.core.promoting import promote
from anchorstore.server.core.sessions import Kind, Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import U32, BlockColumns, LookupResult, Miss, Need


def lookup(
    state: State,
    plans: Plans,
    session: Session,
    hashes: bytes,
    needs: Sequence[Need],
    max_lineage: int,
    margin_pages: int,
    reach: Reach,
    now: float,
) -> LookupResult:
    """The largest boundary that satisfies every need, under a read lease; or what must be brought
    to dram first."""
    keys = requests.hash_columns(state.config, hashes)
    requests.check_needs(session, needs)
    if max_lineage < 0 or margin_pages < 0:
        raise InvalidRequest(f"max_lineage {max_lineage}, margin_pages {margin_pages}: below 0")
    if not session.record.enabled:
        return _miss(state, Miss.DISABLED)
    plan = plans.get(state, session, hashes, keys, needs, max_lineage, margin_pages, reach)
    if plan.is_cold:
        promotion = promote(state, session.record, plan)
        if promotion is not None:
            return LookupResult(0, 0, 0, 0, Miss.COLD, [], promotion)
        plan = plans.get(state, session, hashes, keys, needs, max_lineage, margin_pages, Reach.DRAM)
    if state.bootstrap is not None:
        state.bootstrap.note(keys, sum(kind.slot_bytes for kind in session.kinds))
    if plan.miss is not Miss.HIT:
        return _miss(state, plan.miss)
    return _hold(state, session, plan, now)


def _miss(state: State, reason: Miss) -> LookupResult:
    state.counters[f"lookups_{reason.name.lower()}"] += 1
    return LookupResult(0, 0, 0, 0, reason, [])


def _hold(state: State, session: Session, plan: Plan, now: float) -> LookupResult:
    """Uses the path and leases the blocks."""
    _check_leases(state, session, sum(map(len, plan.blocks)))
    waiting = not_admitted(state, plan.pages)
    _use(state, plan.pages)
    if len(waiting):
        note_sealed(state, waiting)
    lease_id = 0
    if len(plan.held):
        state.blocks.leases[plan.held] += np.uint32(1)
        lease = state.leases.open(
            session.session_id, plan.held, plan.blocks, plan.layouts, plan.first_pages, now
        )
        session.leases.add(lease.lease_id)
        lease_id = lease.lease_id
    counters = state.counters
    counters["lookups_hit"] += 1
    counters["pages_hit"] += plan.resume
    counters[f"hits_lineage_{plan.lineage}"] += 1
    return LookupResult(
        plan.boundary, plan.resume, lease_id, plan.lineage, Miss.HIT, list(plan.columns)
    )


def _use(state: State, pages: U32) -> None:
    """A reader uses a path.  In SGLang's tree that is no use that counts, but makes it recent."""
    if not state.config.mirrors_sglang:
        state.history.used(pages)
    state.touch(pages)


def _check_leases(state: State, session: Session, blocks: int) -> None:
    """CapacityFull where one more lease, of so many blocks, would be too many."""
    if len(session.leases) >= state.config.max_leases:
        raise CapacityFull(
            f"session holds {len(session.leases)} leases, limit {state.config.max_leases}"
        )
    named = state.leases.blocks_named + blocks
    if named > state.config.max_leased_blocks:
        raise CapacityFull(
            f"lookup: {named} blocks under read leases, limit {state.config.max_leased_blocks} "
            "(limits.leased_blocks)"
        )


def leased_columns(
    state: State, session: Session, lease_id: int, need: int
) -> tuple[BlockColumns, Kind]:
    """Where the blocks of one need of a live lease lie, and what they are."""
    lease = state.leases.of_session(lease_id, session.session_id)
    if lease is None:
        raise LeaseExpired(f"lease {lease_id} has ended or is not this session's")
    if not 0 <= need < len(lease.blocks):
        raise InvalidRequest(f"need {need} of {len(lease.blocks)}")
    rows, one = lease.blocks[need], slice(need, need + 1)
    [columns] = columns_of_needs(
        lease.layouts[one], lease.first_pages[one], (rows,), state.blocks.place.take(rows)
    )
    return columns, session.kinds[columns.layout]


def renew(state: State, session: Session, lease_ids: Sequence[int], now: float) -> list[int]:
    """Extends leases; returns those that had ended."""
    lost = []
    for lease_id in lease_ids:
        if state.leases.of_session(lease_id, session.session_id) is None:
            lost.append(lease_id)
        else:
            state.leases.deadlines.use(lease_id, now)
    return lost


def release(state: State, session: Session, lease_ids: Sequence[int]) -> None:
    """Ends leases; ids that are not the session's, or ended already, change nothing."""
    for lease_id in lease_ids:
        if state.leases.of_session(lease_id, session.session_id) is not None:
            end_lease(state, lease_id)


def touch(state: State, session: Session, hashes: bytes) -> None:
    """Uses pages that were read without a lookup; those that are gone change nothing."""
    keys = requests.hash_columns(state.config, hashes)
    if session.record.enabled:
        pages = state.index.probe(session.record.namespace_id, keys)
        state.counters["pages_touched"] += use_pages(state, pages[pages != 0])


def use_pages(state: State, pages: U32) -> int:
    """Uses these pages, each once, whatever their order; returns how many they are."""
    pages = np.unique(pages)
    if len(pages):
        _use(state, pages[np.argsort(state.index.page.take(pages), kind="stable")])
    return len(pages)


def end_lease(state: State, lease_id: int) -> None:
    """Ends a live lease, whoever holds it."""
    lease = state.leases.by_id[lease_id]
    state.leases.close(lease)
    state.registry.sessions[lease.session_id].leases.remove(lease_id)
    state.unlease(lease.held)
