"""Making room in a tier: evict pages, or drop single blocks where that harms little.

::

    uncover  kv in nvme: what hides room behind leaves that make none (uncovering.py)
       |     nothing, as a rule
       v
    evict    leaves of the scope, least recently used first; a page's blocks share one fate
       |     not enough?
       v
    thin     anchors and states alone: blocks of inner pages, least recently used first.
             A hole there costs the boundaries near it; a hole in kv would cut off everything
             behind it, so kv is never thinned.

A block that another tier holds too only loses its place here; a page of nothing but such blocks is
*demoted* (from dram), not evicted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from anchorstore.layout import Component
from anchorstore.server.core.balancing import take_colder, take_oldest
from anchorstore.server.core.moving import Left
from anchorstore.server.core.policy import Field, Scope, oldest_inner_blocks
from anchorstore.server.core.pool import Grant, SlotClass
from anchorstore.server.core.state import State
from anchorstore.server.core.taking import PAGES_MAX, Rule, take_leaves
from anchorstore.server.core.tier import Tier
from anchorstore.server.core.types import U32, U64, Bools
from anchorstore.server.core.uncovering import uncover
from anchorstore.server.core.use_times import by_limit

THINNED = frozenset({Component.ANCHOR, Component.STATE})
"""Components of which a reader needs only the pages near its boundary."""


REASONS = {Field.SLOT_CLASS: "room", Field.COMPONENT: "watermark", Field.NAMESPACE: "quota"}
"""Why pages leave, by what the room is for."""


def evict(
    state: State,
    tier: Tier,
    scope: Scope,
    want_bytes: int,
    before: int,
    rule: Rule | None = None,
    rather_than: U32 | None = None,
    pages_max: int = PAGES_MAX,
) -> int:
    """Takes leaf pages (which: `take_leaves`) out of the tier, until `want_bytes` of the scope's
    slots are free, no victim is left, or so many pages are out.  Returns the places given up."""
    which = (want_bytes, before, rule, rather_than, pages_max)
    pages, holes = take_leaves(state, tier, scope, *which)
    if not pages:
        return 0
    rows = np.array(pages, np.uint32)
    stamps = state.index.stamp.take(rows)
    return _told(state, tier, scope, stamps, state.leave(tier, rows, holes))


def _told(state: State, tier: Tier, scope: Scope, stamps: U64, left: Left) -> int:
    """Counts pages [n] that have left for the scope, last used at these ticks.  Returns the places
    given up."""
    state.ensure(left.kept == 0, "a leased block was evicted")
    count_evicted(state, tier, len(stamps), left)
    state.counters[f"pages_left_{tier.name}_for_{REASONS[scope.field]}"] += len(stamps)
    ages = state.use_times.ages(stamps, state.seconds)
    for limit, count in by_limit(ages).items():
        state.counters[f"pages_left_{tier.name}_age_{limit}"] += count
    state.note("evict", tier.name, scope, len(stamps), "pages", left.gone, "blocks")
    return left.gone + left.moved


def count_evicted(state: State, tier: Tier, pages: int, left: Left) -> None:
    """Counts pages and blocks that a tier has given up for others."""
    counters, dram = state.counters, tier is state.dram
    if tier is state.last and state.bootstrap is not None:
        state.bootstrap.evicted()
    suffix = "" if dram else f"_{tier.name}"
    counters[f"pages_evicted{suffix}"] += pages - left.pages_moved
    counters[f"blocks_evicted{suffix}"] += left.gone
    if left.moved:
        counters["pages_demoted" if dram else "pages_undoubled"] += left.pages_moved
        counters["blocks_demoted" if dram else "blocks_undoubled"] += left.moved


def thin(
    state: State,
    tier: Tier,
    scope: Scope,
    want_bytes: int,
    before: int,
    among: Callable[[U32], Bools] | None = None,
    blocks_max: int = PAGES_MAX,
) -> int:
    """Drops blocks of inner pages from the tier, so many at most.  Returns the places given up."""
    rows = oldest_inner_blocks(state, tier, scope, want_bytes, before, among)[:blocks_max]
    for row in rows.tolist():
        state.leave_block(tier, row)
    state.counters["blocks_thinned" if tier is state.dram else "blocks_thinned_nvme"] += len(rows)
    if len(rows):
        state.note("thin", tier.name, scope, len(rows), "blocks")
    return len(rows)


class MakesRoom:
    """Pages with a block of the scope where another may be written at this moment (taking.Rule)."""

    def __init__(self, state: State, tier: Tier, scope: Scope) -> None:
        self._state, self._tier, self._scope = state, tier, scope

    def allows(self, page: int) -> bool:
        """See Rule."""
        return bool(self.allow(np.array([page], np.uint32))[0])

    def allow(self, pages: U32) -> Bools:
        """See Rule."""
        state, tier = self._state, self._tier
        rows = state.blocks.of_pages(state.index, pages)
        rows = rows[self._scope.blocks_in(state, tier, rows)]
        return np.isin(pages, state.blocks.page.take(rows[tier.with_room(rows)]))


class Doubled:
    """Pages all of whose blocks are in nvme, or will not be (taking.Rule)."""

    def __init__(self, state: State) -> None:
        self._state = state

    def allows(self, page: int) -> bool:
        """See Rule.  Most are in nvme: that is looked up cell by cell."""
        state, missing = self._state, []
        assert state.nvme is not None
        block = state.index.first_block.item(page)
        while block:
            if not state.nvme.holds_one(block):
                missing.append(block)
            block = state.blocks.next.item(block)
        return not missing or not state.admitted(np.array(missing, np.uint32)).any()

    def allow(self, pages: U32) -> Bools:
        """See Rule."""
        table = self._state.blocks
        rows = table.of_pages(self._state.index, pages)
        lacking = table.page.take(rows[~_doubled(self._state, rows)])
        return ~np.isin(pages, lacking)


def take_slots(
    state: State,
    tier: Tier,
    slot_class: SlotClass,
    count: int,
    before: int,
    rather_than: U32 | None = None,
) -> list[Grant]:
    """Up to `count` slots for writing: the ladder drawn in pool.py.

    Only what was used before tick `before` makes room; `rather_than` as in `take_leaves`.  Each
    round takes a slot, or retires one (slab.py), or is the last: they come to an end.
    """
    grants = tier.pool.take(slot_class, count)
    missing = count - _slots_in(grants)
    while missing:
        retired = slot_class.retired_slots
        if not _make_room(state, tier, slot_class, missing, before, rather_than):
            break
        gained = tier.pool.take(slot_class, missing)
        state.ensure(
            bool(gained) or slot_class.retired_slots > retired,
            f"room was made for class {slot_class.class_id}, and none of {missing} slots is free",
        )
        grants += gained
        missing -= _slots_in(gained)
    return grants


def _slots_in(grants: list[Grant]) -> int:
    return sum(len(grant.slots) for grant in grants)


def _make_room(
    state: State,
    tier: Tier,
    slot_class: SlotClass,
    missing: int,
    before: int,
    rather_than: U32 | None,
) -> bool:
    """One rung of the ladder; whether it freed a slot of the class, or retired one."""
    missing_bytes = missing * slot_class.slot_bytes
    scope = Scope(Field.SLOT_CLASS, slot_class.class_id)
    among: Callable[[U32], Bools] | None = tier.with_room if tier.is_short else None
    rule = MakesRoom(state, tier, scope) if tier.is_short else None
    made = (
        tier.pool.extend(slot_class)
        or take_colder(state, tier, slot_class, missing, before)
        or _uncover(state, tier, scope, slot_class.component, missing, before) > 0
        or evict(state, tier, scope, missing_bytes, before, rule, rather_than) > 0
    )
    if not made and slot_class.component in THINNED:
        made = thin(state, tier, scope, missing_bytes, before, among) > 0
    if not made and not slot_class.segments:
        made = take_oldest(state, tier, slot_class, before)
    return made


def _uncover(
    state: State, tier: Tier, scope: Scope, component: Component, missing: int, before: int
) -> int:
    """Takes what hides room for so many slots, where something does.  Returns the places given
    up."""
    if tier is not state.nvme or component in THINNED:
        return 0
    stamps, left = uncover(state, tier, scope, missing, before)
    return _told(state, tier, scope, stamps, left) if len(stamps) else 0


def evict_step(state: State, limit_blocks: int) -> int:
    """Watermark work in every tier, about `limit_blocks` blocks or pages each at most.

    A component above its high watermark is drained, in as many steps as it takes, until it is
    below its low one.  Where there is a slower tier that takes blocks, this waits for what is not
    there yet; only a writer that needs the room does not.  Returns the places given up.
    """
    return sum(_evict_step(state, tier, limit_blocks) for tier in state.tiers)


def _evict_step(state: State, tier: Tier, limit_blocks: int) -> int:
    gone = 0
    waits = state.waits_for_nvme(tier)
    rule = Doubled(state) if waits else None
    among = functools.partial(_doubled, state) if waits else None
    for component in Component:
        capacity_bytes = tier.pool.capacity_bytes(component)
        used_bytes = tier.pool.used_bytes(component)
        if used_bytes > tier.high_watermark * capacity_bytes:
            tier.draining.add(component)
        over_bytes = used_bytes - int(tier.low_watermark * capacity_bytes)
        if component not in tier.draining or gone >= limit_blocks:
            continue
        scope = Scope(Field.COMPONENT, int(component))
        here, before, most = 0, state.tick + 1, limit_blocks - gone
        if over_bytes > 0:
            here = _uncover(state, tier, scope, component, most, before)
            here = here or evict(state, tier, scope, over_bytes, before, rule, pages_max=most)
        if not here and over_bytes > 0 and component in THINNED:
            here = thin(state, tier, scope, over_bytes, before, among, most)
        gone += here
        if not here or over_bytes <= 0:
            tier.draining.discard(component)
    return gone


def _doubled(state: State, blocks: U32) -> Bools:
    """Which blocks are in nvme, or will not be."""
    assert state.nvme is not None
    return np.asarray(state.nvme.holds(blocks) | ~state.admitted(blocks))
