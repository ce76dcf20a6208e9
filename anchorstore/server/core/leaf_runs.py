"""The end of a path at once: pages that would go one after another, each a leaf once the one behind
it is gone.

::

    rows     ... | 40 | 41 | 42 | 43 | 44 |      pages of one seal got rows side by side
    path      ---o----o----o----o----o   <- the leaf; nobody else continues 41 to 43
                      <-------------- would go in this order

Nothing is decided here that page by page would not be: a run ends where another page's turn comes
first, or a page may not go.  It only looks at columns instead of cells, which is several times
cheaper from some pages on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anchorstore.server.core.types import U32, U64, Bools

if TYPE_CHECKING:
    from anchorstore.server.core.policy import ScopeLeaves

RUN_PAGES_MIN = 6
"""Fewer are taken one by one."""


def path_end(leaves: ScopeLeaves, leaf: int, pages_max: int) -> U32:
    """A leaf and the pages before it that nobody else continues, the leaf first, as far as their
    rows lie side by side; empty where they are few."""
    index, none = leaves.state.index, np.zeros(0, np.uint32)
    first = leaf - min(leaf, pages_max) + 1
    if leaf - first < RUN_PAGES_MIN or index.parent.item(leaf) != leaf - 1:
        return none
    rows = np.arange(leaf, first - 1, -1, dtype=np.uint32)
    follows = index.parent.take(rows[:-1]) == rows[1:]
    follows &= leaves.tier.children.take(rows[1:]) == 1
    count = first_false(follows) + 1
    return rows[:count] if count >= RUN_PAGES_MIN else none


def room_of(leaves: ScopeLeaves, pages: U32) -> tuple[U64, Bools]:
    """What `look_at` says of each page [n]: bytes of slots in the scope, and whether it is busy."""
    state, tier, scope = leaves.state, leaves.tier, leaves.scope
    room, busy = np.zeros(len(pages), np.uint64), np.zeros(len(pages), np.bool_)
    current = state.index.first_block.take(pages)
    while current.any():
        inside = scope.blocks_in(state, tier, current)
        sizes = tier.slot_bytes_of_kind.take(state.blocks.kind.take(current))
        room += np.where(inside, sizes, np.uint64(0)).astype(np.uint64)
        busy |= tier.busy(current)
        current = state.blocks.next.take(current)
    return room, busy


def first_false(those: Bools) -> int:
    """How many are true before the first that is not."""
    return len(those) if those.all() else int(np.argmin(those))
