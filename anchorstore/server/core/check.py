"""Every invariant of the store, walked.  Vectorised: cheap enough for after each test step.

::

    pages    found under their own key; parent one page shorter, same namespace; children counted;
             neither blocks nor children: should be gone
    blocks   in one chain or detached under a lease; leases counted; generation even
    slots    each taken slot has one block or one ticket; used and reserved bytes add up
    records  kinds, namespaces, sessions refer to one another and to nothing that has ended
"""

from __future__ import annotations

import collections

import numpy as np

from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.reserving import open_bytes
from anchorstore.server.core.state import State
from anchorstore.server.core.types import U32

PROBED_AT_ONCE = 16_384  # bounds the memory that a check takes on the side


def violations(state: State) -> list[str]:
    """Broken invariants in words; [] where all is well.  Changes nothing."""
    return [
        *_pages(state),
        *_buckets(state),
        *_chains(state),
        *_leases(state),
        *_slots(state),
        *_bytes(state),
        *_records(state),
    ]


def _pages(state: State) -> list[str]:
    index, found = state.index, []
    rows = index.live_rows()
    if len(rows) != len(index):
        found.append(f"index: {len(rows)} pages named, {len(index)} rows live")
    parents = index.parent[rows]
    linked = parents != 0
    child, parent = rows[linked], parents[linked]
    if (index.namespace[parent] != index.namespace[child]).any():
        found.append("index: a parent in another namespace, or gone")
    if (index.page[child] != index.page[parent] + np.uint32(1)).any():
        found.append("index: a parent that is not one page shorter")
    counted = np.bincount(parents, minlength=index.rows.top)[rows]
    if (counted != index.children[rows]).any():
        found.append("index: children miscounted")
    bare = (index.children[rows] == 0) & (index.first_block[rows] == 0)
    if bare.any():
        found.append(f"index: {int(bare.sum())} pages without blocks and children")
    if len(rows) and int(index.stamp[rows].max()) > state.tick:
        found.append("index: a stamp from the future")
    return found


def _buckets(state: State) -> list[str]:
    index, found = state.index, []
    rows = index.live_rows()
    for namespace_id in np.unique(index.namespace[rows]).tolist():
        mine = rows[index.namespace[rows] == namespace_id]
        parts = np.array_split(mine, 1 + len(mine) // PROBED_AT_ONCE)
        if any((index.probe(namespace_id, index.hashes[p]) != p).any() for p in parts):
            found.append(f"index: pages of namespace {namespace_id} not found under their keys")
        record = state.registry.by_namespace_id.get(namespace_id)
        if record is None or record.pages != len(mine):
            found.append(f"index: namespace {namespace_id} has {len(mine)} pages, record differs")
    if index.filed_rows() != len(rows):
        found.append(f"index: {index.filed_rows()} rows in buckets, {len(rows)} pages")
    return found


def _chains(state: State) -> list[str]:
    index, table, found = state.index, state.blocks, []
    pages, blocks = index.live_rows(), table.live_rows()
    if len(blocks) != len(table):
        found.append(f"blocks: {len(blocks)} named, {len(table)} rows live")
    chained = table.of_pages(index, pages)
    attached = blocks[table.page[blocks] != 0]
    if not np.array_equal(np.sort(chained), attached):
        found.append("blocks: chains and page links disagree")
        return found
    if len(pages) and int(table.chain_lengths(index, pages).max()) > CHAIN_LIMIT:
        found.append(f"blocks: a chain longer than {CHAIN_LIMIT}")
    current = index.first_block[pages]
    while current.any():
        if (table.page[current] != pages)[current != 0].any():
            found.append("blocks: a block in another page's chain")
        current = table.next[current]
    pairs = table.page[attached].astype(np.uint64) << np.uint64(16)
    pairs |= table.kind[attached].astype(np.uint64)
    pairs.sort()
    if (pairs[1:] == pairs[:-1]).any():
        found.append("blocks: two of one kind on a page")
    if (table.generation[blocks] % 2).any():
        found.append("blocks: an odd generation is sealed")
    return found


def _leases(state: State) -> list[str]:
    table, found = state.blocks, []
    counts = np.zeros(table.rows.top, np.int64)
    for lease in state.leases.by_id.values():
        counts[lease.held] += 1
        if set(lease.held.tolist()) != {row for rows in lease.blocks for row in rows.tolist()}:
            found.append(f"leases: lease {lease.lease_id} reads what it does not hold")
        session = state.registry.sessions.get(lease.session_id)
        if session is None or lease.lease_id not in session.leases:
            found.append(f"leases: lease {lease.lease_id} without its session")
    live = table.live_rows()
    if (counts[live] != table.leases[live]).any() or counts.sum() != counts[live].sum():
        found.append("leases: counts differ from the blocks'")
    detached = live[table.page[live] == 0]
    if set(detached.tolist()) != set(state.detached):
        found.append("blocks: detached ones are not the ones on record")
    if (table.leases[detached] == 0).any():
        found.append("blocks: detached without a lease")
    if set(state.leases.by_id) != {i for i in state.leases.by_id if i in state.leases.deadlines}:
        found.append("leases: one without a deadline")
    named = sum(len(rows) for lease in state.leases.by_id.values() for rows in lease.blocks)
    if named != state.leases.blocks_named:
        found.append(f"leases: {named} blocks are named, {state.leases.blocks_named} on record")
    pages = sum(reservation.pages for reservation in state.reservation_by_id.values())
    if pages != state.reserved_pages:
        found.append(f"reservations: {pages} pages, {state.reserved_pages} on record")
    found += state.leases.deadlines.check("leases")
    found += state.reservations.check("reservations")
    return found + state.registry.idle.check("sessions")


def _slots(state: State) -> list[str]:
    table, pool, found = state.blocks, state.pool, []
    blocks = table.live_rows()
    writing: dict[int, list[U32]] = collections.defaultdict(list)
    for ticket in state.tickets.values():
        for segment_id in np.unique(ticket.segment_ids).tolist():
            writing[segment_id].append(ticket.slots[ticket.segment_ids == segment_id])
    held = 0
    for segment_id, segment in pool.by_id.items():
        mine = blocks[table.segment[blocks] == segment_id]
        held += len(mine)
        beside = np.concatenate([np.zeros(0, np.uint32), *writing[segment_id]])
        taken = np.concatenate([table.slot[mine], beside])
        found += [f"segment {segment_id}: {text}" for text in segment.slab.check(taken)]
        if segment.writing != len(beside):
            found.append(f"segment {segment_id}: {segment.writing} slots said to be written")
        kinds = np.unique(table.kind[mine]).tolist()
        if any(state.registry.by_kind_id[k].slot_class is not segment.slot_class for k in kinds):
            found.append(f"segment {segment_id}: a block of another class")
    if held != len(blocks):
        found.append("blocks: one in a segment that is gone")
    indexes = sorted([*pool.unused, *(segment.index for segment in pool.by_id.values())])
    if indexes != list(range(state.config.segments)):
        found.append("pool: a segment twice, or lost")
    return found


def _bytes(state: State) -> list[str]:
    index, table, found = state.index, state.blocks, []
    used: collections.Counter[int] = collections.Counter()
    blocks = table.live_rows()
    attached = blocks[table.page[blocks] != 0]
    sizes = state.dram.slot_bytes_of_kind[table.kind[attached]]
    owners = index.namespace[table.page[attached]]
    for owner in np.unique(owners).tolist():
        used[owner] = int(sizes[owners == owner].sum())
    for row, record in state.detached.items():
        used[record.namespace_id] += int(state.dram.slot_bytes_of_kind[table.kind[row]])
    reserved: collections.Counter[int] = collections.Counter()
    for reservation in state.reservation_by_id.values():
        reserved[reservation.session.record.namespace_id] += open_bytes(reservation)
    for ticket in state.tickets.values():
        owner = ticket.session.record.namespace_id
        reserved[owner] += int(ticket.reservation.slot_bytes[ticket.layouts].sum())
    for owner, record in state.registry.by_namespace_id.items():
        if record.used_bytes != used[owner] or record.reserved_bytes != reserved[owner]:
            found.append(f"namespace {owner}: bytes used or reserved miscounted")
    if set(+used) | set(+reserved) > set(state.registry.by_namespace_id):
        found.append("namespaces: bytes of one that is gone")
    return found


def _records(state: State) -> list[str]:
    registry, table, found = state.registry, state.blocks, []
    blocks = np.bincount(table.kind[table.live_rows()], minlength=1)
    writing: collections.Counter[int] = collections.Counter()
    for ticket in state.tickets.values():
        for position in ticket.layouts.tolist():
            writing[ticket.reservation.kinds[position].kind_id] += 1
    for kind in registry.kinds.values():
        sealed = int(blocks[kind.kind_id]) if kind.kind_id < len(blocks) else 0
        attached = sum(kind in session.kinds for session in registry.sessions.values())
        if kind.blocks != sealed + writing[kind.kind_id] or kind.sessions != attached:
            found.append(f"kind {kind.kind_id}: blocks or sessions miscounted")
        if not kind.blocks and not kind.sessions:
            found.append(f"kind {kind.kind_id}: idle but there")
        if state.pool.classes.get(kind.slot_class.key) is not kind.slot_class:
            found.append(f"kind {kind.kind_id}: its slot class is gone")
    for record in registry.namespaces.values():
        attached_ids = {s.session_id for s in registry.sessions.values() if s.record is record}
        if record.sessions != attached_ids:
            found.append(f"namespace {record.namespace_id}: sessions differ")
    for session in registry.sessions.values():
        if registry.namespaces.get(session.record.root_digest) is not session.record:
            found.append(f"session {session.name}: its namespace is gone")
        if (session.connections == 0) != (session.session_id in registry.idle):
            found.append(f"session {session.name}: idle time and connections disagree")
    return found
