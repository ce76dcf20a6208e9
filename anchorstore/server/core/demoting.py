"""From dram to nvme: which blocks are written next, and what happens once they are.

::

    begin_demote   what waits since its seal, then what eviction from dram would take next
       :           -> nvme slots (evicting there what is colder) -> columns for the shell
       :           the blocks stay readable; their dram slots are pinned
    finish_demote  written and still wanted? -> the block has a place in both tiers

A block that is in both tiers leaves dram for nothing (evicting.py).  nvme never gives up a page for
one that was used less recently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.engines import LetGo
from anchorstore.server.core.evicting import evict, take_slots
from anchorstore.server.core.moving import DemoteTicket
from anchorstore.server.core.policy import Field, Scope, next_leaves
from anchorstore.server.core.pool import Grant
from anchorstore.server.core.sessions import Kind
from anchorstore.server.core.state import State
from anchorstore.server.core.tier import NvmeTier
from anchorstore.server.core.types import U32, U64, Bools, Positions, column
from anchorstore.server.core.work import DemoteWork

LEFT = "pages_left_nvme_for_room"
NO_BLOCKS: U32 = np.zeros(0, np.uint32)


def note_sealed(state: State, rows: U32) -> None:
    """Blocks of one namespace that have just been sealed, or used once more, wait to be written,
    where nvme is written ahead of need."""
    shape = state.config.nvme
    if shape is None or not shape.ahead or not len(rows):
        return
    owner = int(state.index.namespace[state.blocks.page[rows[0]]])
    passed_over = state.movement.waiting.note(state.blocks, owner, rows[state.admitted(rows)])
    state.counters["nvme_blocks_passed_over"] += passed_over


def not_admitted(state: State, pages: U32) -> U32:
    """Blocks of these pages in dram alone that have not been worth writing so far, and that one
    more use may make so."""
    shape = state.config.nvme
    if shape is None or not shape.ahead or not state.history.counts_uses:
        return NO_BLOCKS
    rows = state.blocks.of_pages(state.index, np.unique(pages[pages != 0]))
    rows = rows[state.dram.holds(rows) & (state.blocks.cold.take(rows) == 0)]
    refused: U32 = rows[~state.admitted(rows)]
    return refused


def begin_demote(
    state: State, limit_blocks: int, room: Sequence[int] | None = None
) -> list[DemoteWork]:
    """Takes nvme slots for up to `limit_blocks` blocks, on each device at most its `room`; one work
    a device, [] where there is nothing to write."""
    nvme, movement = state.nvme, state.movement
    if nvme is None or movement.is_paused:
        return []
    stripes = nvme.cold_pool.stripes
    stripes.limit(room if room is None else nvme.cold_pool.open_room(room))
    limit = stripes.total(limit_blocks)
    if not limit:
        return []
    rows = _writable(state, movement.waiting.take(state.blocks, limit))
    placed = _take(state, nvme, rows, is_fresh=True)
    if not len(placed) and state.tick >= movement.quiet_until:
        wanted, left = _writable(state, _next_victims(state, limit)), state.counters[LEFT]
        placed = _take(state, nvme, wanted, is_fresh=False)
        movement.is_refused = len(wanted) > 0 and not len(placed)
        has_displaced = state.counters[LEFT] > left and not nvme.queues.is_by_use
        if movement.is_refused or has_displaced:  # or pages displace one another without end
            movement.quiet_until = state.tick + limit
    stripes.limit(None)
    devices = stripes.devices_of(placed.segment_ids)
    return [
        _open(state, nvme, device, placed.chosen(devices == device))
        for device in np.unique(devices).tolist()
    ]


def take_used(state: State, pages_max: int) -> U32:
    """Units of blocks in nvme on pages that were used since the last call, in the order of use; of
    so many pages at most: of the rest next time."""
    nvme, movement, index = state.nvme, state.movement, state.index
    if nvme is None or movement.used_until >= state.tick:
        return NO_BLOCKS
    stamps = index.stamp[: index.rows.top]
    pages = np.flatnonzero((stamps > movement.used_until) & nvme.every_page_on())
    movement.used_until = state.tick
    if len(pages) > pages_max:
        movement.used_until = int(np.partition(stamps[pages], pages_max)[pages_max]) - 1
        pages = pages[stamps[pages] <= movement.used_until]
    rows = state.blocks.of_pages(index, pages.astype(np.uint32))
    rows = rows[nvme.holds(rows)]
    rows = rows[np.argsort(stamps[state.blocks.page.take(rows)], kind="stable")]
    return state.blocks.cold.take(rows)


def note_let_go(state: State, pages: U32) -> None:
    """No engine holds these pages [n] any more, distinct: what nvme lacks of them is written ahead
    of need, in either mode; those that it has whole go first when dram needs room."""
    state.index.let_go[pages] = LetGo.YES
    state.counters["pages_let_go"] += len(pages)
    put_first(state, pages)
    rows = state.blocks.of_pages(state.index, pages)
    rows = rows[state.dram.holds(rows) & (state.blocks.cold.take(rows) == 0)]
    if len(rows):
        owner = int(state.index.namespace[pages[0]])
        passed_over = state.movement.waiting.note(state.blocks, owner, rows[state.admitted(rows)])
        state.counters["nvme_blocks_passed_over"] += passed_over


def put_first(state: State, pages: U32) -> None:
    """Of these pages those that are let go and whole in nvme leave dram before all others."""
    index, table = state.index, state.blocks
    pages = pages[index.let_go.take(pages) == LetGo.YES]
    rows = table.of_pages(index, pages)
    lacking = table.page.take(rows[table.cold.take(rows) == 0])
    safe = pages[~np.isin(pages, lacking) & (index.first_block.take(pages) != 0)]
    index.let_go[safe] = LetGo.SAFE
    state.announce_leaves(state.dram, safe)


def _writable(state: State, rows: U32) -> U32:
    """Those of these blocks in dram, each once, that are admitted and not being written already."""
    _, first = np.unique(rows, return_index=True)
    rows = rows[np.sort(first)]  # a block may wait twice: since its seal, and since it was let go
    fits = state.admitted(rows)
    if state.movement.demoting:
        fits &= ~np.isin(rows, np.fromiter(state.movement.demoting, np.uint32))
    writable: U32 = rows[fits]
    return writable


def _next_victims(state: State, limit_blocks: int) -> U32:
    """Blocks in dram alone, on the pages that would be evicted next of each component, and of each
    namespace with a quota, above its low watermark.  Where there is none among them, nobody need
    look again before as many pages could have gone."""
    dram, table, parts = state.dram, state.blocks, [np.zeros(0, np.uint32)]
    if table.in_dram_alone == len(state.movement.demoting):
        return parts[0]  # all are in nvme, or on the way
    fewest = limit_blocks
    for scope in _short_of_room(state):
        found = next_leaves(state, dram, scope, limit_blocks, state.tick + 1)
        fewest = min(fewest, len(found) or limit_blocks)
        pages = np.array(found, np.uint32)
        rows = table.of_pages(state.index, pages)
        rows = rows[dram.holds(rows) & (table.cold.take(rows) == 0)]
        order = np.argsort(pages)
        turn = order[np.searchsorted(pages, table.page.take(rows), sorter=order)]
        parts.append(rows[np.argsort(turn, kind="stable")])
    rows = np.concatenate(parts)
    if len(parts) > 1 and not len(rows):
        state.movement.quiet_until = state.tick + max(1, fewest)
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)][:limit_blocks]


def _short_of_room(state: State) -> Iterator[Scope]:
    """Scopes of dram that are above their low watermark."""
    dram = state.dram
    for component in Component:
        used_bytes = dram.pool.used_bytes(component)
        if used_bytes > dram.low_watermark * dram.pool.capacity_bytes(component):
            yield Scope(Field.COMPONENT, int(component))
    for record in state.registry.namespaces.values():
        used_bytes = record.used_bytes + record.reserved_bytes
        if record.quota_bytes and used_bytes > dram.low_watermark * record.quota_bytes:
            yield Scope(Field.NAMESPACE, record.namespace_id)


@dataclasses.dataclass(frozen=True, slots=True)
class _Placed:
    """Blocks that have got slots; arrays [n], generations odd."""

    rows: U32
    segment_ids: U32
    slots: U32
    generations: U32

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> tuple[U32, U32, U32, U32]:
        """All four."""
        return self.rows, self.segment_ids, self.slots, self.generations

    def chosen(self, which: Bools) -> _Placed:
        """Some of them."""
        return _Placed(*(column[which] for column in self.columns))


def _take(state: State, nvme: NvmeTier, rows: U32, *, is_fresh: bool) -> _Placed:
    """Slots for these blocks, class by class, as far as there is room for them."""
    parts = [_Placed(*[NO_BLOCKS] * 4)]
    if len(rows):
        bound = _bound(state, nvme, rows, is_fresh=is_fresh)
        rows = _within_quota(state, nvme, rows, *bound)
        classes = nvme.class_of_kind.take(state.blocks.kind.take(rows))
        for class_id in np.unique(classes).tolist():
            mine = rows[classes == class_id]
            slot_class = nvme.class_of(_kind_of(state, int(mine[0])))
            assert slot_class is not None
            grants = take_slots(state, nvme, slot_class, len(mine), *bound)
            parts.append(_placed(nvme, mine, grants))
            state.counters["nvme_blocks_refused"] += len(mine) - len(parts[-1])
    columns = zip(*(part.columns for part in parts), strict=True)
    return _Placed(*(np.concatenate(column) for column in columns))


def _placed(nvme: NvmeTier, rows: U32, grants: Sequence[Grant]) -> _Placed:
    """The first of these blocks in the granted slots, neighbours on different devices."""
    ids = [np.full(len(grant.slots), grant.segment.segment_id, np.uint32) for grant in grants]
    segment_ids = np.concatenate([NO_BLOCKS, *ids])
    slots = np.concatenate([NO_BLOCKS, *(grant.slots for grant in grants)])
    generations = np.concatenate([NO_BLOCKS, *(grant.generations for grant in grants)])
    turn = nvme.cold_pool.stripes.dealt(segment_ids)
    return _Placed(rows[: len(turn)], segment_ids[turn], slots[turn], generations[turn])


def _bound(state: State, nvme: NvmeTier, rows: U32, *, is_fresh: bool) -> tuple[int, U32 | None]:
    """What may make room for these blocks: what was used before a tick, and what goes before their
    own pages.

    In the order of use: neither what is used more recently, nor a page's own parent.  In any other
    order whatever goes next, for what is fresh; for what dram is about to give up only what is
    worth less, or nvme would write the same refuse for ever.
    """
    pages = state.blocks.page.take(rows)
    older = int(state.index.stamp.take(pages).min()) - 1
    if nvme.queues.is_by_use:
        return older, None
    return (state.tick + 1, None) if is_fresh else (older, np.unique(pages))


def _kind_of(state: State, row: int) -> Kind:
    return state.registry.by_kind_id[int(state.blocks.kind[row])]


def _within_quota(
    state: State, nvme: NvmeTier, rows: U32, before: int, rather_than: U32 | None
) -> U32:
    """Those that fit their namespaces' quotas in nvme, own oldest leaves evicted first."""
    owners = state.index.namespace.take(state.blocks.page.take(rows))
    fits = np.ones(len(rows), np.bool_)
    for namespace_id in np.unique(owners).tolist():
        record = state.registry.by_namespace_id[namespace_id]
        if not record.cold_quota_bytes:
            continue
        mine = np.flatnonzero(owners == namespace_id)
        sizes = np.cumsum(nvme.slot_bytes_of_kind.take(state.blocks.kind.take(rows[mine])))
        room_bytes = record.cold_quota_bytes - record.cold_bytes - record.cold_reserved_bytes
        if over_bytes := max(0, int(sizes[-1]) - room_bytes):
            scope = Scope(Field.NAMESPACE, namespace_id)
            evict(state, nvme, scope, over_bytes, before, None, rather_than)
            room_bytes = record.cold_quota_bytes - record.cold_bytes - record.cold_reserved_bytes
        fits[mine] = sizes <= max(0, room_bytes)
    return rows[fits]


def _open(state: State, nvme: NvmeTier, device: int, placed: _Placed) -> DemoteWork:
    rows, held = placed.rows, placed.rows.astype(np.intp)
    units = nvme.units_of(held, placed.segment_ids, placed.slots)
    ticket = DemoteTicket(state.new_id(), held, units, placed.segment_ids, placed.slots)
    state.movement.demotes[ticket.ticket_id] = ticket
    state.movement.demoting.update(rows.tolist())
    state.blocks.leases[held] += np.uint32(1)
    _reserve(state, nvme, held, 1)
    state.note("begin_demote", ticket.ticket_id, len(rows), "blocks")
    return _work(state, ticket, device, placed.generations + np.uint32(1))


def _reserve(state: State, nvme: NvmeTier, rows: Positions, sign: int) -> None:
    """Charges the namespaces for what is being written, or gives that back.  Detached blocks are
    their recorded owners'."""
    pages = state.blocks.page.take(rows)
    owners = state.index.namespace.take(pages)
    sizes = nvme.slot_bytes_of_kind.take(state.blocks.kind.take(rows))
    for namespace_id in np.unique(owners[pages != 0]).tolist():
        record = state.registry.by_namespace_id[namespace_id]
        mine = (owners == namespace_id) & (pages != 0)
        record.cold_reserved_bytes += sign * int(sizes[mine].sum())
    for row, size in zip(rows[pages == 0].tolist(), sizes[pages == 0].tolist(), strict=True):
        state.detached[row].cold_reserved_bytes += sign * int(size)


def _work(state: State, ticket: DemoteTicket, device: int, generations: U32) -> DemoteWork:
    table, index, registry = state.blocks, state.index, state.registry
    rows, places = ticket.rows, state.blocks.place.take(ticket.rows)
    pages, kind_ids = table.page.take(rows), table.kind.take(rows)
    namespace_ids = index.namespace.take(pages)
    kinds = {kind: registry.by_kind_id[kind] for kind in np.unique(kind_ids).tolist()}
    spaces = {i: registry.by_namespace_id[i] for i in np.unique(namespace_ids).tolist()}
    keys = {(k, i): kinds[k].layout_key(spaces[i].root_digest) for k in kinds for i in spaces}
    both = list(zip(kind_ids.tolist(), namespace_ids.tolist(), strict=True))
    per_row = [kinds[kind] for kind, _ in both]
    first = np.array([kind.first_slot_offset for kind in per_row], np.uint64)
    step = np.array([kind.slot_bytes for kind in per_row], np.uint64)
    by_id = state.dram.pool.by_id
    return DemoteWork(
        ticket=ticket.ticket_id,
        device=device,
        segment_index=np.array([by_id[i].index for i in places["segment"].tolist()], np.uint32),
        offset=first + places["slot"].astype(np.uint64) * step,
        block_bytes=np.array([kind.block_bytes for kind in per_row], np.uint64),
        unit=ticket.units,
        generation=generations,
        page=index.page.take(pages),
        parent_hash=_parent_hashes(state, pages),
        path_hash=index.hashes.take(pages, axis=0),
        kind_id=kind_ids,
        namespace_id=namespace_ids,
        layout_key=np.array([keys[pair] for pair in both], np.uint64),
        lineage=table.lineage.take(rows),
        checksum=column(places["checksum"], np.uint64),
        kinds={kind_id: kind.layout for kind_id, kind in kinds.items()},
        namespaces={i: space.known for i, space in spaces.items()},
    )


def _parent_hashes(state: State, pages: U32) -> U64:
    """The hash of each page's parent [n, 4]: the root's for page 0, zero where it is not known."""
    index = state.index
    parents = index.parent.take(pages)
    hashes = index.hashes.take(parents, axis=0)
    hashes[parents == 0] = 0
    for at in np.flatnonzero(index.page.take(pages) == 0).tolist():
        owner = int(index.namespace[pages[at]])
        root = state.registry.by_namespace_id[owner].root_digest
        hashes[at] = np.frombuffer(root, np.uint64)
    return hashes


def finish_demote(state: State, ticket_id: int, ok: Bools) -> Bools:
    """Gives the written blocks their place in nvme.  Returns which [n] have one: the journal's new
    entries."""
    nvme, movement, table = state.nvme, state.movement, state.blocks
    state.ensure(nvme is not None and ticket_id in movement.demotes, f"no demotion {ticket_id}")
    assert nvme is not None
    ticket, ok = movement.demotes.pop(ticket_id), column(ok, np.bool_)
    state.ensure(len(ok) == len(ticket.rows), "one outcome a block")
    rows = ticket.rows
    nvme.pool.written(ticket.segment_ids)
    _reserve(state, nvme, rows, -1)
    stands: Bools = ok & (table.page.take(rows) != 0)
    state.place(nvme, rows[stands].astype(np.uint32), lambda: _set_cold(state, ticket, stands))
    if state.history.follows_engines:
        put_first(state, np.unique(table.page.take(rows[stands])))
    if len(lost := np.flatnonzero(~stands)):
        nvme.pool.give(ticket.segment_ids[lost], ticket.slots[lost])
    nvme.cold_pool.back(ticket.segment_ids[stands], ticket.slots[stands])
    movement.demoting.difference_update(rows.tolist())
    state.unlease(rows)
    state.counters["nvme_blocks_written"] += int(stands.sum())
    state.counters["nvme_blocks_write_failed"] += int((~ok).sum())
    state.note("finish_demote", ticket_id, int(stands.sum()), "of", len(ok))
    return stands


def _set_cold(state: State, ticket: DemoteTicket, stands: Bools) -> None:
    table, rows = state.blocks, ticket.rows[stands]
    table.in_dram_alone -= int(np.count_nonzero(table.segment[rows]))
    table.cold[rows] = ticket.units[stands]
