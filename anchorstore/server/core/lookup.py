"""Lookup: from path hashes and needs to a leased boundary.  The hot path.

::

    hashes --find--> page rows --chains--> block rows a need --lineage--> presence
                                                                 |
           lease, columns <-- pages each need reads <-- largest boundary

Numpy statements over the whole path, no loop over pages.  Only a hit changes anything: the
path's stamps, the blocks' lease counts, and parent links that had been lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstore.errors import CapacityFull, InvalidRequest, LeaseExpired
from anchorstore.server.core import requests
from anchorstore.server.core.boundary import largest_boundary, pages_read
from anchorstore.server.core.sessions import Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import (
    ANY_LINEAGE,
    U32,
    BlockColumns,
    Bools,
    LookupResult,
    Miss,
    Need,
)


def lookup(
    state: State,
    session: Session,
    hashes: bytes,
    needs: Sequence[Need],
    max_lineage: int,
    margin_pages: int,
    now: float,
) -> LookupResult:
    """The largest boundary that satisfies every need, under a read lease."""
    keys = requests.hash_columns(state.config, hashes)
    requests.check_needs(session, needs)
    if max_lineage < 0 or margin_pages < 0:
        raise InvalidRequest(f"max_lineage {max_lineage}, margin_pages {margin_pages}: below 0")
    record = session.record
    if not record.enabled:
        return _miss(state, Miss.DISABLED)
    pages = state.index.find(record.namespace_id, keys)
    state.index.settle(pages)
    blocks = _blocks_of_needs(state, session, pages, needs)
    stored = [rows != 0 for rows in blocks]
    accepted = stored
    if max_lineage < ANY_LINEAGE:
        lineage = state.blocks.lineage
        accepted = [
            there & (lineage.take(rows) <= max_lineage)
            for there, rows in zip(stored, blocks, strict=True)
        ]
    page_tokens = record.namespace.page_tokens
    boundary = largest_boundary(accepted, needs, page_tokens, margin_pages)
    if not boundary:
        return _miss(state, _why(stored, accepted, needs, page_tokens, margin_pages))
    if len(session.leases) >= state.config.max_leases:
        raise CapacityFull(
            f"session holds {len(session.leases)} leases, limit {state.config.max_leases}"
        )
    resume = boundary - margin_pages
    spans = [
        pages_read(need, there, resume, page_tokens)
        for need, there in zip(needs, accepted, strict=True)
    ]
    read = tuple(rows[start:stop] for rows, (start, stop) in zip(blocks, spans, strict=True))
    state.touch(pages[:boundary])
    return _lease(state, session, needs, read, [start for start, _ in spans], boundary, resume, now)


def _blocks_of_needs(
    state: State, session: Session, pages: U32, needs: Sequence[Need]
) -> list[U32]:
    """Block rows [n] of each need's layout."""
    layouts = list(dict.fromkeys(need.layout for need in needs))
    kinds = [session.kinds[layout].kind_id for layout in layouts]
    found = dict(zip(layouts, state.blocks.find(state.index, pages, kinds), strict=True))
    return [found[need.layout] for need in needs]


def _why(
    stored: Sequence[Bools],
    accepted: Sequence[Bools],
    needs: Sequence[Need],
    page_tokens: int,
    margin_pages: int,
) -> Miss:
    """The first of these that explains a miss."""
    if not any(there.any() for there in stored):
        return Miss.NOT_STORED
    if largest_boundary(stored, needs, page_tokens, margin_pages):
        return Miss.LINEAGE
    if margin_pages and largest_boundary(accepted, needs, page_tokens, 0):
        return Miss.MARGIN
    return Miss.INCOMPLETE


def _miss(state: State, reason: Miss) -> LookupResult:
    state.counters[f"lookups_{reason.name.lower()}"] += 1
    return LookupResult(0, 0, 0, 0, reason, [])


def _lease(
    state: State,
    session: Session,
    needs: Sequence[Need],
    read: tuple[U32, ...],
    starts: list[int],
    boundary: int,
    resume: int,
    now: float,
) -> LookupResult:
    """Leases the blocks read and writes down where they lie."""
    lease_id = deepest = 0
    if any(len(rows) for rows in read):
        held = np.concatenate(read)
        if len({need.layout for need in needs}) < len(needs):
            held = np.unique(held)
        state.blocks.leases[held] += np.uint32(1)
        deepest = int(state.blocks.lineage.take(held).max())
        layouts = tuple(need.layout for need in needs)
        lease = state.leases.open(session.session_id, held, read, layouts, tuple(starts), now)
        session.leases.add(lease.lease_id)
        lease_id = lease.lease_id
    columns = [
        BlockColumns(need.layout, start, *state.columns_of(session.kinds[need.layout], rows))
        for need, rows, start in zip(needs, read, starts, strict=True)
    ]
    state.counters["lookups_hit"] += 1
    state.counters["pages_hit"] += resume
    state.counters[f"hits_lineage_{deepest}"] += 1
    return LookupResult(boundary, resume, lease_id, deepest, Miss.HIT, columns)


def leased_columns(state: State, session: Session, lease_id: int, need: int) -> BlockColumns:
    """Where the blocks of one need of a live lease lie."""
    lease = state.leases.of_session(lease_id, session.session_id)
    if lease is None:
        raise LeaseExpired(f"lease {lease_id} has ended or is not this session's")
    if not 0 <= need < len(lease.blocks):
        raise InvalidRequest(f"need {need} of {len(lease.blocks)}")
    layout = lease.layouts[need]
    columns = state.columns_of(session.kinds[layout], lease.blocks[need])
    return BlockColumns(layout, lease.first_pages[need], *columns)


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


def end_lease(state: State, lease_id: int) -> None:
    """Ends a live lease, whoever holds it."""
    lease = state.leases.by_id[lease_id]
    state.leases.close(lease)
    state.registry.sessions[lease.session_id].leases.remove(lease_id)
    state.unlease(lease.held)
