"""Making room: evict pages, or drop single blocks where that harms little.

::

    evict    leaves of the scope, least recently used first; a page's blocks share one fate
       |     not enough?
       v
    thin     anchors and states alone: blocks of inner pages, least recently used first.
             A hole there costs the boundaries near it; a hole in kv would cut off everything
             behind it, so kv is never thinned.
"""

from __future__ import annotations

from anchorstore.layout import Component
from anchorstore.server.core.balancing import take_colder, take_oldest
from anchorstore.server.core.policy import Field, Scope, oldest_inner_blocks, take_leaves
from anchorstore.server.core.pool import Grant, SlotClass
from anchorstore.server.core.state import State

THINNED = frozenset({Component.ANCHOR, Component.STATE})
"""Components of which a reader needs only the pages near its boundary."""


def evict(state: State, scope: Scope, want_bytes: int, before: int) -> int:
    """Evicts leaf pages last used before tick `before`, until `want_bytes` of the scope's slots
    are free or no victim is left.  Returns the blocks gone."""
    pages = take_leaves(state, scope, want_bytes, before)
    if not pages:
        return 0
    gone, kept = state.forget_unlinked(pages)
    state.ensure(kept == 0, "a leased block was evicted")
    state.counters["pages_evicted"] += len(pages)
    state.counters["blocks_evicted"] += gone
    state.note("evict", scope, len(pages), "pages", gone, "blocks")
    return gone


def thin(state: State, scope: Scope, want_bytes: int, before: int) -> int:
    """Drops blocks of inner pages.  Returns the blocks gone."""
    rows = oldest_inner_blocks(state, scope, want_bytes, before)
    for row in rows.tolist():
        state.forget_block(row)
    state.counters["blocks_thinned"] += len(rows)
    if len(rows):
        state.note("thin", scope, len(rows), "blocks")
    return len(rows)


def take_slots(state: State, slot_class: SlotClass, count: int, before: int) -> list[Grant]:
    """Up to `count` slots for writing: the ladder drawn in pool.py.

    Each round takes a slot, or retires one (slab.py), or is the last: they come to an end.
    """
    grants = state.pool.take(slot_class, count)
    missing = count - _slots_in(grants)
    while missing:
        retired = slot_class.retired_slots
        if not _make_room(state, slot_class, missing, before):
            break
        gained = state.pool.take(slot_class, missing)
        state.ensure(
            bool(gained) or slot_class.retired_slots > retired,
            f"room was made for class {slot_class.class_id}, and none of {missing} slots is free",
        )
        grants += gained
        missing -= _slots_in(gained)
    return grants


def _slots_in(grants: list[Grant]) -> int:
    return sum(len(grant.slots) for grant in grants)


def _make_room(state: State, slot_class: SlotClass, missing: int, before: int) -> bool:
    """One rung of the ladder; whether it freed a slot of the class, or retired one."""
    missing_bytes = missing * slot_class.slot_bytes
    scope = Scope(Field.SLOT_CLASS, slot_class.class_id)
    made = (
        state.pool.extend(slot_class)
        or take_colder(state, slot_class, missing, before)
        or evict(state, scope, missing_bytes, before) > 0
    )
    if not made and slot_class.component in THINNED:
        made = thin(state, scope, missing_bytes, before) > 0
    if not made and not slot_class.segments:
        made = take_oldest(state, slot_class, before)
    return made


def evict_step(state: State, draining: set[Component], limit_blocks: int) -> int:
    """Watermark work, at most about `limit_blocks` blocks.

    A component above its high watermark is drained, in as many steps as it takes, until it is
    below its low one; `draining` remembers which.  Returns the blocks gone.
    """
    gone = 0
    for component in Component:
        capacity_bytes = state.pool.capacity_bytes(component)
        used_bytes = state.pool.used_bytes(component)
        if used_bytes > state.config.high_watermark * capacity_bytes:
            draining.add(component)
        over_bytes = used_bytes - int(state.config.low_watermark * capacity_bytes)
        if component not in draining or gone >= limit_blocks:
            continue
        scope = Scope(Field.COMPONENT, int(component))
        want_bytes = min(over_bytes, (limit_blocks - gone) * _smallest_slot(state, component))
        here = evict(state, scope, want_bytes, state.tick + 1) if want_bytes > 0 else 0
        if not here and want_bytes > 0 and component in THINNED:
            here = thin(state, scope, want_bytes, state.tick + 1)
        gone += here
        if not here or over_bytes <= 0:
            draining.discard(component)
    return gone


def _smallest_slot(state: State, component: Component) -> int:
    sizes = (k.slot_bytes for k in state.registry.kinds.values() if k.component == component)
    return min(sizes, default=1)
