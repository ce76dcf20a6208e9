"""Segments change hands: rules 3 and 5 of the ladder in pool.py.

::

    class A   | seg 1: last used at tick 40 | seg 2: at tick 90 |
    class B   | seg 3: hot |    next victim: a page last used at tick 55

    B is pressed: everything in seg 1 is colder than what B would evict -> seg 1 is emptied and
    becomes B's.  The exact LRU order across classes, a segment at a time.

A segment in use (leased, being written, mapped by another domain's session, or on the writer's
own path) is left alone.
"""

from __future__ import annotations

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.policy import Field, Scope, first_leaf_stamp
from anchorstore.server.core.pool import Segment, SlotClass
from anchorstore.server.core.state import State
from anchorstore.server.core.tier import Tier
from anchorstore.server.core.types import U32


def take_colder(state: State, tier: Tier, slot_class: SlotClass, missing: int, before: int) -> bool:
    """Rule 3.  `missing` slots are to be evicted for; whether a segment came instead.

    A look reads all blocks.  One that finds a segment has paid for itself; after one in vain the
    class evicts a segment's worth of its own blocks before it looks again.
    """
    if not slot_class.segments:
        return False
    if slot_class.patience_slots > 0:
        slot_class.patience_slots -= missing
        return False
    if _take_coldest(state, tier, slot_class, before):
        return True
    slot_class.patience_slots = tier.pool.shape(slot_class.slot_bytes).slots - missing
    return False


def _take_coldest(state: State, tier: Tier, slot_class: SlotClass, before: int) -> bool:
    """Empties the coldest segment of the component's other classes for this one, where all of it
    was used before the class's own next victim."""
    others = [
        segment
        for segment in tier.pool.segments_of(slot_class.component)
        if segment.slot_class is not slot_class and tier.pool.can_pass(segment, slot_class)
    ]
    limit = first_leaf_stamp(state, tier, Scope(Field.SLOT_CLASS, slot_class.class_id))
    if not others or limit is None:
        return False
    last_used = _last_used(state, tier)
    for segment in sorted(others, key=lambda segment: last_used[segment.segment_id]):
        if last_used[segment.segment_id] >= min(limit, before):
            return False
        if _pass(state, tier, segment, slot_class, before):
            return True
    return False


def _last_used(state: State, tier: Tier) -> dict[int, int]:
    """Newest stamp among the pages of each segment, by segment id."""
    table = state.blocks
    ids = np.array(sorted(tier.pool.by_id), np.uint32)
    newest = np.zeros(len(ids), np.uint64)
    rows = table.live_rows()
    rows = rows[(table.page.take(rows) != 0) & tier.holds(rows)]
    where = np.searchsorted(ids, tier.segments_of(rows))
    np.maximum.at(newest, where, state.index.stamp.take(table.page.take(rows)))
    return dict(zip(ids.tolist(), newest.tolist(), strict=True))


def take_oldest(state: State, tier: Tier, slot_class: SlotClass, before: int) -> bool:
    """Rule 5, for a class that holds nothing.  A component that holds nothing at all takes from
    the one that holds most."""
    pool = tier.pool
    if not pool.allowed_segments(slot_class.component):
        return False
    donor = slot_class.component
    if not pool.held_segments(donor):
        donor = max(Component, key=pool.held_segments)
    for segment in sorted(pool.segments_of(donor), key=lambda segment: segment.segment_id):
        if pool.can_pass(segment, slot_class) and _pass(state, tier, segment, slot_class, before):
            return True
    return False


def _pass(state: State, tier: Tier, segment: Segment, slot_class: SlotClass, before: int) -> bool:
    """Empties a segment and re-formats it for the class; False where something in it is used."""
    if not _empty(state, tier, segment, before):
        return False
    tier.pool.pass_on(segment, slot_class)
    state.note(tier.name, "segment", segment.index, "re-formatted for class", slot_class.class_id)
    state.counters["segments_reformatted"] += 1
    return True


def _empty(state: State, tier: Tier, segment: Segment, before: int) -> bool:
    """Evicts every page with a block in the segment, or nothing where one is in use."""
    table = state.blocks
    rows = table.live_rows()
    rows = rows[tier.holds(rows)]
    pages = np.unique(table.page.take(rows[tier.segments_of(rows) == segment.segment_id]))
    if not len(pages):
        return segment.slab.used == 0
    newest = int(state.index.stamp.take(pages).max())
    if pages[0] == 0 or newest >= before:  # detached blocks, or the writer's own path
        return False
    blocks = table.of_pages(state.index, pages)
    if tier.busy(blocks).any() or not _is_spare(state, tier, blocks):
        return False
    left = state.leave(tier, pages)
    state.counters["blocks_evicted" if tier is state.dram else "blocks_evicted_nvme"] += left.gone
    return True


def _is_spare(state: State, tier: Tier, blocks: U32) -> bool:
    """Whether no namespace would have to give up any of its reserved share."""
    if not tier.has_reserves:
        return True
    here = blocks[tier.holds(blocks)]
    return all(
        tier.bytes_of(mine) <= tier.spare_bytes(record) for record, mine in state.by_owner(here)
    )
