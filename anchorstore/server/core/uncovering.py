"""Room in nvme that the ends of paths hide.

::

    device 0    a . c .      a, c: keys and values where another block may be written
    device 1    . b . d      closed, or not there since the last start

d is a leaf and would make no room; c would, and is none.  Leaves first alone would leave such paths
for good, and what is new would go in their place.  So the last pages of a path that would make room
go as leaves do, least recently used first, each with all that follows it: of that either the keys
and values are gone, and the rest is of no use, or they are where nothing can be written.

There are such paths only once a device takes no blocks or is gone, blocks were found damaged, or a
restart found a part of what there was.
"""

from __future__ import annotations

import numpy as np

from anchorstore.server.core.moving import Left
from anchorstore.server.core.policy import Scope
from anchorstore.server.core.state import State
from anchorstore.server.core.taking import Shares
from anchorstore.server.core.tier import NvmeTier
from anchorstore.server.core.types import U32, U64, Bools, Positions

SLOTS_A_PATH = 8
"""Of so many slots that are missing one path gives up its end: more of it follows, or is uncovered
by the next look, while paths that were used later keep theirs."""

TRIES_MAX = 16
"""So many times as many paths are looked at where others may not go."""

PAUSE_SECONDS = 0.25
"""From a look that found nothing to the next: each looks at all blocks."""


def uncover(
    state: State, nvme: NvmeTier, scope: Scope, missing: int, before: int
) -> tuple[U64, Left]:
    """Takes the ends of some paths out of nvme, last used before tick `before` and before any leaf
    that makes room, for who misses so many slots.  Returns the stamps of their pages, and what has
    left."""
    if nvme.hides_room and state.seconds >= nvme.hidden_until:
        ends, paths = _ends(state, nvme, scope, before), -(-missing // SLOTS_A_PATH)
        for start in range(0, min(len(ends), TRIES_MAX * paths), paths):
            pages = _free_to_go(state, nvme, ends[start : start + paths], before)
            if len(pages):
                nvme.pages_uncovered += len(pages)
                return state.index.stamp.take(pages), state.leave(nvme, pages)
        nvme.hidden_until = state.seconds + PAUSE_SECONDS
    return np.zeros(0, np.uint64), Left()


def _ends(state: State, nvme: NvmeTier, scope: Scope, before: int) -> U32:
    """Inner pages that would make room, and none behind them would, older than any leaf that would;
    the oldest first."""
    index, table = state.index, state.blocks
    rows = table.live_rows()
    rows = rows[table.page.take(rows) != 0]
    rows = rows[scope.blocks_in(state, nvme, rows)]
    is_open, has_room = np.zeros((2, index.rows.top), np.bool_)
    is_open[table.page.take(rows)] = True
    has_room[table.page.take(rows[nvme.with_room(rows)])] = True
    leaves = nvme.leaves()
    ends = np.flatnonzero(has_room & ~_before_any(state, is_open) & ~leaves)
    if not len(ends) and not nvme.has_closed:
        nvme.hides_room = False
    stamps = index.stamp.take(ends)
    before = min(before, int(index.stamp[: index.rows.top][has_room & leaves].min(initial=before)))
    oldest = np.argsort(stamps, kind="stable")
    return ends[oldest[stamps[oldest] < before]].astype(np.uint32)


def _before_any(state: State, chosen: Bools) -> Bools:
    """By page row: whether a chosen page follows it, near or far."""
    found = np.zeros_like(chosen)
    pages = np.flatnonzero(chosen)
    while len(pages):
        parents = np.unique(state.index.parent.take(pages))
        pages = parents[(parents != 0) & ~found[parents]]
        found[pages] = True
    return found


def _free_to_go(state: State, nvme: NvmeTier, ends: U32, before: int) -> U32:
    """The pages on nvme of those ends, and behind them, of which all may go."""
    index, table = state.index, state.blocks
    pages, ends_of = _with_descendants(state, ends)
    here = nvme.on(pages)
    pages, ends_of = pages[here], ends_of[here]
    stays = np.zeros(len(ends), np.bool_)
    stays[ends_of[index.stamp.take(pages) >= before]] = True
    rows = table.of_pages(index, pages)
    is_busy = np.isin(pages, table.page.take(rows[nvme.busy(rows)]))
    stays[ends_of[is_busy]] = True
    if nvme.has_reserves:
        shares = Shares(state, nvme)
        for page, end in zip(pages.tolist(), ends_of.tolist(), strict=True):
            stays[end] |= stays[end] or not shares.give(page)
    return pages[~stays[ends_of]]


def _with_descendants(state: State, ends: U32) -> tuple[U32, Positions]:
    """These pages [n] and all behind them, and which of the n each belongs to.  Nothing is before
    any other of them."""
    index = state.index
    top = index.rows.top
    owner = np.full(top, -1, np.int64)
    owner[ends] = np.arange(len(ends))
    parents, is_live = index.parent[:top], index.namespace[:top] != 0
    fresh = ends
    while len(fresh):
        fresh = np.flatnonzero(np.isin(parents, fresh) & is_live).astype(np.uint32)
        owner[fresh] = owner[parents[fresh]]
    pages = np.flatnonzero(owner >= 0).astype(np.uint32)
    return pages, owner[pages]
