"""Every invariant of the store, walked.  Vectorised: cheap enough for after each test step.

::

    pages    found under their own key; parent one page shorter, same namespace; children counted
             in each tier; neither blocks nor children: should be gone
    engines  each has a bit and a deadline; what goes first is held by none and whole in nvme
    blocks   in one chain or detached under a lease, with a place in some tier; leases and pins
             counted; generation even
    slots    in each tier, each taken slot has one block or one ticket; used and reserved bytes add
             up
    records  kinds, namespaces, sessions refer to one another and to nothing that has ended
"""

from __future__ import annotations

import collections
import itertools

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.cold_pool import ColdPool
from anchorstore.server.core.engines import LetGo
from anchorstore.server.core.moving import DemoteTicket, PromoteTicket
from anchorstore.server.core.pool import Pool
from anchorstore.server.core.reserving import open_bytes
from anchorstore.server.core.state import State, Ticket
from anchorstore.server.core.tier import Tier
from anchorstore.server.core.types import U32, Positions

PROBED_AT_ONCE = 16_384  # bounds the memory that a check takes on the side


def violations(state: State) -> list[str]:
    """Broken invariants in words; [] where all is well.  Changes nothing."""
    return [
        *_pages(state),
        *_buckets(state),
        *_chains(state),
        *_leases(state),
        *_engines(state),
        *(text for tier in state.tiers for text in _slots(state, tier)),
        *_moving(state),
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
    bare = np.ones(len(rows), np.bool_)
    for tier in state.tiers:
        within = tier.within(rows)
        counted = np.bincount(parents[within], minlength=index.rows.top)[rows]
        if (counted != tier.children[rows]).any():
            found.append(f"index: children miscounted in {tier.name}")
        bare &= ~within
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
    in_dram = blocks[state.dram.holds(blocks)]
    if (table.generation[in_dram] % 2).any():
        found.append("blocks: an odd generation is sealed")
    if not np.logical_or.reduce([tier.holds(blocks) for tier in state.tiers]).all():
        found.append("blocks: one without a place")
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
    for pins in _pins(state):
        counts[pins] += 1
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


def _pins(state: State) -> list[Positions]:
    """Block rows that engines pin, page by page, and that tickets between the tiers hold."""
    moving = state.movement
    engines = [session.engine for session in state.registry.sessions.values() if session.engine]
    return [
        *(rows.astype(np.intp) for engine in engines for rows in engine.pins.values()),
        *(ticket.rows for ticket in moving.demotes.values()),
        *(ticket.rows for ticket in moving.promotes.values()),
        *(ticket.pinned for ticket in moving.promotes.values()),
    ]


def _engines(state: State) -> list[str]:
    """Each engine has a deadline and a bit of its own, and no page has a bit that is nobody's."""
    engines, index, found = state.engines, state.index, []
    taken: collections.Counter[int] = collections.Counter()
    attached = {i: s for i, s in state.registry.sessions.items() if s.engine is not None}
    for session in attached.values():
        assert session.engine is not None
        taken[session.record.namespace_id] += session.engine.mask  # a bit twice is a carry
    for bit in engines.retired:
        taken[bit.namespace_id] += bit.mask
    pins = [rows for s in attached.values() if s.engine for rows in s.engine.pins.values()]
    sizes = [state.dram.bytes_of(rows) for rows in pins]
    if (len(pins), sum(sizes)) != (engines.pinned_pages, engines.pinned_bytes):
        found.append(f"engines: {len(pins)} pins of {sum(sizes)} bytes, the record differs")
    if {i for i in attached if i in engines.deadlines} != set(attached) or len(attached) != len(
        engines.deadlines
    ):
        found.append("engines: deadlines differ")
    for owner, record in state.registry.by_namespace_id.items():
        if record.engines != taken[owner]:
            found.append(f"namespace {owner}: bits of engines differ")
    if state.history.follows_engines:
        rows = index.live_rows()
        masks = [record.engines for record in state.registry.by_namespace_id.values()]
        owners = list(state.registry.by_namespace_id)
        for owner, mask in zip(owners, masks, strict=True):
            mine = rows[index.namespace[rows] == owner]
            if (index.holders[mine] & ~np.uint64(mask)).any():
                found.append(f"namespace {owner}: a page held by no engine")
        let_go = rows[index.let_go[rows] != LetGo.NOT]
        if index.holders[let_go].any():
            found.append("engines: a page is let go that one holds")
        safe = state.blocks.of_pages(index, rows[index.let_go[rows] == LetGo.SAFE])
        if (state.blocks.cold[safe] == 0).any():
            found.append("engines: a page goes first that nvme has not whole")
    return found + engines.deadlines.check("engines")


def _slots(state: State, tier: Tier) -> list[str]:
    table, pool, found = state.blocks, tier.pool, []
    blocks = table.live_rows()
    blocks = blocks[tier.holds(blocks)]
    places, slots = tier.segments_of(blocks), tier.slots_of(blocks)
    writing: dict[int, list[U32]] = collections.defaultdict(list)
    for ticket in _writing_to(state, tier):
        for segment_id in np.unique(ticket.segment_ids).tolist():
            writing[segment_id].append(ticket.slots[ticket.segment_ids == segment_id])
    held = 0
    for segment_id, segment in pool.by_id.items():
        mine = blocks[places == segment_id]
        held += len(mine)
        beside = np.concatenate([np.zeros(0, np.uint32), *writing[segment_id]])
        taken = np.concatenate([slots[places == segment_id], beside])
        name = f"{tier.name} segment {segment_id}"
        found += [f"{name}: {text}" for text in segment.slab.check(taken)]
        if segment.writing != len(beside):
            found.append(f"{name}: {segment.writing} slots said to be written")
        kinds = np.unique(table.kind[mine]).tolist()
        if any(
            tier.class_of(state.registry.by_kind_id[k]) is not segment.slot_class for k in kinds
        ):
            found.append(f"{name}: a block of another class")
    if held != len(blocks):
        found.append(f"blocks: one in a segment that is gone from {tier.name}")
    return found + _pool(tier.pool)


def _writing_to(state: State, tier: Tier) -> list[Ticket | DemoteTicket | PromoteTicket]:
    """Tickets that hold slots of the tier for blocks that are not there yet."""
    if tier is state.dram:
        return [*state.tickets.values(), *state.movement.promotes.values()]
    return [*state.movement.demotes.values()]


def _pool(pool: Pool) -> list[str]:
    found = []
    unused = itertools.chain.from_iterable(pool.unused)
    indexes = sorted([*unused, *(segment.index for segment in pool.by_id.values())])
    closed = pool.closed if isinstance(pool, ColdPool) else set()
    shelved = [segment_id - 1 for segment_id in closed - pool.by_id.keys()]
    if sorted([*indexes, *shelved]) != list(range(pool.segments)):
        found.append("pool: a segment twice, or lost")
    for component in Component:
        mine = list(pool.segments_of(component))
        used = sum(segment.slab.used * segment.slot_class.slot_bytes for segment in mine)
        if pool.used_bytes(component) != used or pool.held_segments(component) != len(mine):
            found.append(f"pool: {component.name} miscounted")
    for slot_class in pool.classes.values():
        roomy = {segment.segment_id for segment in slot_class.segments if segment.slab.free}
        offered = set(itertools.chain.from_iterable(slot_class.roomy))
        if not roomy - closed <= offered or closed & offered:
            found.append(f"pool: free slots of class {slot_class.class_id} are not on offer")
    return found


def _moving(state: State) -> list[str]:
    moving, found = state.movement, []
    demoting = [row for ticket in moving.demotes.values() for row in ticket.rows.tolist()]
    if sorted(demoting) != sorted(moving.demoting):
        found.append("movement: blocks being written are not the ones on record")
    promoting = {
        row: ticket.ticket_id for ticket in moving.promotes.values() for row in ticket.rows.tolist()
    }
    if promoting != moving.promoting:
        found.append("movement: blocks being read are not the ones on record")
    rows = np.array(sorted(promoting), np.uint32)
    if len(rows) and (state.dram.holds(rows).any() or not state.tiers[-1].holds(rows).all()):
        found.append("movement: a block is read that is in dram, or not in nvme")
    every = np.arange(1, state.blocks.rows.top, dtype=np.uint32)
    single = state.blocks.segment[every] != 0
    if state.nvme is not None:
        single &= ~state.nvme.holds(every)
    if int(np.count_nonzero(single)) != state.blocks.in_dram_alone:
        found.append("blocks: those in dram alone are miscounted")
    return found


def _bytes(state: State) -> list[str]:
    found = []
    charged: dict[str, collections.Counter[int]] = {
        name: collections.Counter() for name in ("used", "reserved", "cold", "cold_reserved")
    }
    for tier, name in zip(state.tiers, ("used", "cold"), strict=False):
        _count_held(state, tier, charged[name])
    for reservation in state.reservation_by_id.values():
        owner = reservation.session.record.namespace_id
        charged["reserved"][owner] += open_bytes(reservation)
    for ticket in state.tickets.values():
        owner = ticket.session.record.namespace_id
        charged["reserved"][owner] += int(ticket.reservation.slot_bytes[ticket.layouts].sum())
    for promote in state.movement.promotes.values():
        charged["reserved"][promote.record.namespace_id] += promote.reserved_bytes
    for demote in state.movement.demotes.values():
        for row in demote.rows.tolist():
            size = state.tiers[-1].slot_bytes_of_kind[state.blocks.kind[row]]
            charged["cold_reserved"][_owner(state, row)] += int(size)
    for name, bytes_by_owner in charged.items():
        for owner, record in state.registry.by_namespace_id.items():
            if getattr(record, f"{name}_bytes") != bytes_by_owner[owner]:
                found.append(f"namespace {owner}: {name} bytes miscounted")
        if set(+bytes_by_owner) > set(state.registry.by_namespace_id):
            found.append("namespaces: bytes of one that is gone")
    return found


def _owner(state: State, row: int) -> int:
    """Id of the namespace that pays for a block."""
    if row in state.detached:
        return state.detached[row].namespace_id
    return int(state.index.namespace[state.blocks.page[row]])


def _count_held(state: State, tier: Tier, charged: collections.Counter[int]) -> None:
    """Bytes of slots in the tier by namespace."""
    table = state.blocks
    blocks = table.live_rows()
    blocks = blocks[tier.holds(blocks)]
    attached = blocks[table.page[blocks] != 0]
    sizes = tier.slot_bytes_of_kind[table.kind[attached]]
    owners = state.index.namespace[table.page[attached]]
    for owner in np.unique(owners).tolist():
        charged[owner] = int(sizes[owners == owner].sum())
    for row in blocks[table.page[blocks] == 0].tolist():
        charged[_owner(state, row)] += int(tier.slot_bytes_of_kind[table.kind[row]])


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
        classes = [(tier.pool, tier.class_of(kind)) for tier in state.tiers]
        if any(c is not None and pool.classes.get(c.key) is not c for pool, c in classes):
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
