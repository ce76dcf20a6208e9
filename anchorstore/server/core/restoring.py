"""A warm restart: what the journals name becomes the index, before the first session.

::

    entries   hash, parent's hash, page, kind, namespace, unit, generation, checksum, lineage
       |      dropped: outside, of a class that is not its segment's, named twice, ...
       v
    segments  one class each, these slots taken        page rows     by hash, in the entries' order
    blocks    in nvme alone                            parents       linked where they are there

Nothing is read: a block is proven when it is first asked for.  All in columns, a few statements
for a million entries.  Entries may be anything that a file can hold: what makes no sense is dropped
and counted, never believed.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.keys import LINEAGE_ANY
from anchorstore.layout import Layout
from anchorstore.server.core.blocks import CHAIN_LIMIT
from anchorstore.server.core.pool import SlotClass
from anchorstore.server.core.sessions import KINDS_MAX, Kind, NamespaceRecord
from anchorstore.server.core.state import State
from anchorstore.server.core.store_config import UNIT_BYTES
from anchorstore.server.core.tier import NvmeTier
from anchorstore.server.core.types import U32, U64, Bools
from anchorstore.server.core.work import KnownNamespace, Restored

Entries = npt.NDArray[Any]
"""Structured [n], what was used last in the end: path_hash u64[4], parent_hash u64[4], checksum
u64, unit, generation and page u32, namespace and kind (positions in the lists beside), lineage u8.
Others are ignored."""

AT_ONCE = 16_384  # pages: bounds the memory that filing and probing take on the side


class _Sieve:
    """Entries that are still believed, and why the others are not."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.dropped: collections.Counter[str] = collections.Counter()
        self.lost: list[U32] = [np.zeros(0, np.uint32)]

    def keep(self, good: Bools, reason: str) -> None:
        """Drops the entries [n] that are not good."""
        if not good.all():
            self.dropped[reason] += int((~good).sum())
            self.lost.append(self.entries["unit"][~good])
            self.entries = self.entries[good]


def restore(
    state: State,
    namespaces: Sequence[KnownNamespace],
    layouts: Sequence[Layout],
    entries: Entries,
    now: float,
) -> Restored:
    """Takes over what the nvme tier holds; as used just now."""
    nvme = state.nvme
    state.seconds = now
    state.ensure(nvme is not None, "a restart without an nvme tier")
    state.ensure(not len(state.index) and not nvme_used(state), "a restart of a store in use")
    assert nvme is not None
    sieve = _Sieve(entries)
    known = (entries["namespace"] < len(namespaces)) & (entries["kind"] < len(layouts))
    sieve.keep(known, "unknown")
    _turn_off(state, namespaces)
    records = _records(state, namespaces, sieve)
    kinds = _kinds(state, records, layouts, sieve)
    _sieve_places(nvme, kinds, sieve)
    rows = _pages(state, records, sieve)
    rows = _sieve_blocks(state, rows, kinds, sieve)
    _stamp(state, rows)
    _adopt(nvme, kinds, sieve.entries)
    _blocks(state, nvme, rows, records, kinds, sieve.entries)
    _link(state, rows, records, sieve.entries)
    for kind in kinds.values():
        state.registry.forget_kind_if_idle(kind)
    for record in records.values():
        state.registry.forget_namespace_if_idle(record)
    nvme.hides_room = True
    state.note("restore", len(state.index), "pages", len(state.blocks), "blocks")
    return Restored(
        len(state.index), len(state.blocks), dict(sieve.dropped), np.concatenate(sieve.lost)
    )


def nvme_used(state: State) -> int:
    """Segments that the nvme tier has formatted."""
    return len(state.nvme.pool.by_id) if state.nvme else 0


def _turn_off(state: State, namespaces: Sequence[KnownNamespace]) -> None:
    """Kill switches that were on are on again, whether there are blocks or not."""
    for namespace, max_lineage, enabled in namespaces:
        root = namespace.root_digest()
        if not enabled and root not in state.registry.namespaces:
            bound = min(max_lineage, LINEAGE_ANY)
            state.registry.new_namespace(namespace, root, bound).enabled = False


def _records(
    state: State, namespaces: Sequence[KnownNamespace], sieve: _Sieve
) -> dict[int, NamespaceRecord]:
    """Position -> record, for the namespaces that have entries, as many as are allowed.  One that
    is named twice counts under its first position."""
    records: dict[int, NamespaceRecord] = {}
    first: dict[bytes, int] = {}
    known_as = np.arange(len(namespaces), dtype=np.uint32)
    for position in np.unique(sieve.entries["namespace"]).tolist():
        namespace, max_lineage, _ = namespaces[position]
        root, bound = namespace.root_digest(), min(max_lineage, LINEAGE_ANY)
        known_as[position] = first.setdefault(root, position)
        if first[root] == position and root in state.registry.namespaces:
            records[position] = state.registry.namespaces[root]
        elif first[root] == position and len(records) < state.config.max_namespaces:
            records[position] = state.registry.new_namespace(namespace, root, bound)
    sieve.entries = sieve.entries.copy()
    sieve.entries["namespace"] = known_as[sieve.entries["namespace"]]
    allowed = np.isin(sieve.entries["namespace"], np.array(list(records), np.uint32))
    sieve.keep(allowed, "namespaces")
    return records


def _kinds(
    state: State,
    records: Mapping[int, NamespaceRecord],
    layouts: Sequence[Layout],
    sieve: _Sieve,
) -> dict[tuple[int, int], Kind]:
    """(namespace, layout) positions -> kind, for those that have entries."""
    registry, kinds = state.registry, dict[tuple[int, int], Kind]()
    pairs = _pairs(sieve.entries)
    for pair in np.unique(pairs).tolist():
        space, at = pair >> 16, pair & 0xFFFF
        namespace, layout = records[space].namespace, layouts[at]
        key = (namespace.domain, layout.component, layout.digest(), layout.shard())
        fits = bool(state.dram.pool.shape(layout.block_bytes()).slots)
        if layout.page_tokens == namespace.page_tokens and len(registry.kinds) < KINDS_MAX and fits:
            kinds[space, at] = registry.kinds.get(key) or registry.new_kind(
                namespace.domain, layout
            )
    known = np.array([space << 16 | at for space, at in kinds], np.uint64)
    sieve.keep(np.isin(pairs, known), "kinds")
    return kinds


def _pairs(entries: Entries) -> U64:
    spaces = entries["namespace"].astype(np.uint64) << np.uint64(16)
    pairs: U64 = spaces | entries["kind"].astype(np.uint64)
    return pairs


def _per_entry(
    kinds: Mapping[tuple[int, int], Kind], entries: Entries, what: Mapping[int, int]
) -> U64:
    """`what` of each entry's kind id [n]."""
    pairs = _pairs(entries)
    names = np.array([space << 16 | at for space, at in kinds], np.uint64)
    values = np.array([what[kind.kind_id] for kind in kinds.values()], np.uint64)
    order = np.argsort(names)
    at = order[np.searchsorted(names, pairs, sorter=order)] if len(names) else pairs[:0]
    found: U64 = values[at.astype(np.intp)]
    return found


def _class_sizes(kinds: Mapping[tuple[int, int], Kind]) -> tuple[dict[int, int], dict[int, int]]:
    """Kind id -> id of its class in nvme and units of a slot there; 0 where it has none."""
    ids, units = {}, {}
    for kind in kinds.values():
        found = kind.cold_class
        ids[kind.kind_id] = found.class_id if found is not None else 0
        units[kind.kind_id] = found.slot_bytes // UNIT_BYTES if found is not None else 0
    return ids, units


def _sieve_places(nvme: NvmeTier, kinds: Mapping[tuple[int, int], Kind], sieve: _Sieve) -> None:
    """Slots that the tier has, one entry each, all of a segment of one class: the one whose entry
    comes last, as it would after a change of hands."""
    ids, units = _class_sizes(kinds)
    segment_units = np.uint32(nvme.shape.segment_units)
    numbers = sieve.entries["unit"] // segment_units
    inside = (numbers > 0) & (numbers <= nvme.shape.segments)
    inside &= (sieve.entries["generation"] != 0) & (sieve.entries["generation"] % 2 == 0)
    sieve.keep(inside, "outside")
    steps = _per_entry(kinds, sieve.entries, units)
    at = (sieve.entries["unit"] % segment_units).astype(np.uint64)
    step = np.maximum(steps, 1)
    fits = (steps > 0) & (at % step == 0) & (at + steps <= np.uint64(segment_units))
    sieve.keep(fits, "outside")
    sieve.keep(_last_of(sieve.entries["unit"].astype(np.uint64)), "doubled")
    numbers = sieve.entries["unit"] // segment_units
    classes = _per_entry(kinds, sieve.entries, ids)
    winner = np.zeros(nvme.shape.segments + 1, np.uint64)
    winner[numbers] = classes  # the last one stands
    sieve.keep(winner[numbers] == classes, "outdated")


def _last_of(keys: U64) -> Bools:
    """Which elements [n] are the last of their value."""
    last = np.zeros(len(keys), np.bool_)
    _, first = np.unique(keys[::-1], return_index=True)
    last[len(keys) - 1 - first] = True
    return last


def _pages(state: State, records: Mapping[int, NamespaceRecord], sieve: _Sieve) -> U32:
    """Page row of each entry [n]; entries that disagree with the first one about their page's
    number are dropped."""
    index, made = state.index, []
    for position, record in records.items():
        mine = np.flatnonzero(sieve.entries["namespace"] == position)
        hashes = np.ascontiguousarray(sieve.entries["path_hash"][mine])
        mixed = index.mixed(record.namespace_id, hashes)
        _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
        original = first[inverse]  # by entry: the first of its hash
        same = (hashes == hashes[original]).all(axis=1)
        numbers = sieve.entries["page"][mine]
        same &= numbers == numbers[original]
        made.append((record, mine, hashes, original, same))
    good = np.ones(len(sieve.entries), np.bool_)
    rows = np.zeros(len(sieve.entries), np.uint32)
    index.expect(sum(int((o == np.arange(len(o))).sum()) for *_, o, _ in made))
    for record, mine, hashes, original, same in made:
        firsts = np.unique(original)
        numbers = sieve.entries["page"][mine]
        fresh = _insert(state, record, hashes[firsts], numbers[firsts])
        rows[mine] = fresh[np.searchsorted(firsts, original)]
        good[mine] = same
    kept: U32 = rows[good]
    sieve.keep(good, "contradicting")
    return kept


def _insert(state: State, record: NamespaceRecord, hashes: U64, numbers: U32) -> U32:
    """Rows for distinct pages."""
    parts: list[U32] = [np.zeros(0, np.uint32)]
    for start in range(0, len(hashes), AT_ONCE):
        stop = start + AT_ONCE
        made = state.index.insert(
            record.namespace_id, hashes[start:stop], numbers[start:stop], state.tick
        )
        parts.append(made)
    record.pages += len(hashes)
    return np.concatenate(parts)


def _stamp(state: State, rows: U32) -> None:
    """Pages as used in the order of their last entries, whosever they are."""
    last = rows[_last_of(rows.astype(np.uint64))]
    for start in range(0, len(last), AT_ONCE):
        pages = last[start : start + AT_ONCE]
        state.touch(pages)
        state.history.born(pages, state.moment, 0)
    state.movement.used_until = state.tick


def _sieve_blocks(
    state: State, rows: U32, kinds: Mapping[tuple[int, int], Kind], sieve: _Sieve
) -> U32:
    """One block of a kind a page, the last one, and no more a page than a chain may have."""
    ids = {kind.kind_id: kind.kind_id for kind in kinds.values()}
    kind_ids = _per_entry(kinds, sieve.entries, ids)
    good = _last_of(rows.astype(np.uint64) << np.uint64(16) | kind_ids)
    order = np.argsort(rows, kind="stable")
    order = order[good[order]]
    starts = np.flatnonzero(np.r_[True, rows[order][1:] != rows[order][:-1]])
    starts = starts[: len(order)]
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    good[order[rank >= CHAIN_LIMIT]] = False
    kept: U32 = rows[good]
    sieve.keep(good, "doubled")
    return kept


def _adopt(nvme: NvmeTier, kinds: Mapping[tuple[int, int], Kind], entries: Entries) -> None:
    """Segments with their classes and taken slots."""
    ids, units = _class_sizes(kinds)
    by_id: dict[int, SlotClass] = {}
    for kind in kinds.values():
        if kind.cold_class is not None:
            by_id[kind.cold_class.class_id] = kind.cold_class
    segment_units = np.uint32(nvme.shape.segment_units)
    numbers = entries["unit"] // segment_units
    steps = _per_entry(kinds, entries, units).astype(np.uint32)
    slots = entries["unit"] % segment_units // steps
    classes = _per_entry(kinds, entries, ids)
    order = np.argsort(numbers, kind="stable")
    bounds = np.flatnonzero(np.r_[True, numbers[order][1:] != numbers[order][:-1]])
    for mine in np.split(order, bounds[1:]) if len(order) else ():
        number, slot_class = int(numbers[mine[0]]), by_id[int(classes[mine[0]])]
        nvme.cold_pool.adopt(number, slot_class, slots[mine], entries["generation"][mine])
    nvme.cold_pool.drop_adopted_from_unused()


def _blocks(
    state: State,
    nvme: NvmeTier,
    rows: U32,
    records: Mapping[int, NamespaceRecord],
    kinds: Mapping[tuple[int, int], Kind],
    entries: Entries,
) -> None:
    """Block rows, in the chains of their pages."""
    table = state.blocks
    ids = {kind.kind_id: kind.kind_id for kind in kinds.values()}
    kind_ids = _per_entry(kinds, entries, ids).astype(np.uint16)
    table.expect(len(entries))
    blocks = table.take_rows(len(entries))
    table.kind[blocks] = kind_ids
    table.checksum[blocks] = entries["checksum"]
    table.lineage[blocks] = np.minimum(entries["lineage"], LINEAGE_ANY - 1)
    table.cold[blocks] = entries["unit"]
    for kind_id in np.unique(kind_ids).tolist():
        mine = kind_ids == kind_id
        table.attach(state.index, rows[mine], blocks[mine])
        state.registry.by_kind_id[kind_id].blocks += int(mine.sum())
    sizes = nvme.slot_bytes_of_kind.take(kind_ids)
    for position, record in records.items():
        nvme.charge(record, int(sizes[entries["namespace"] == position].sum()))


def _link(
    state: State, rows: U32, records: Mapping[int, NamespaceRecord], entries: Entries
) -> None:
    """Parents, where they are there; children; and away with pages that got no block."""
    index = state.index
    for position, record in records.items():
        mine = np.flatnonzero(entries["namespace"] == position)
        pages, first = np.unique(rows[mine], return_index=True)
        parents = _find(state, record, np.ascontiguousarray(entries["parent_hash"][mine[first]]))
        index.adopt(pages, parents)
    assert state.nvme is not None
    state.enter(state.nvme, index.live_rows())  # every page has got a block


def _find(state: State, record: NamespaceRecord, hashes: U64) -> U32:
    parts: list[U32] = [np.zeros(0, np.uint32)]
    for start in range(0, len(hashes), AT_ONCE):
        part = hashes[start : start + AT_ONCE]
        parts.append(state.index.probe(record.namespace_id, part))
    return np.concatenate(parts)
