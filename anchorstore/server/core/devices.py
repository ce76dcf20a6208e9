"""When a device of the nvme tier fails: its segments get no more blocks, or are given up.

::

    read only    close     blocks there are read as before; new ones go elsewhere
    back again   reopen
    gone         lose      blocks there are forgotten, so that writers may bring them again; what
                           dram holds too stays in dram
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anchorstore.server.core.evicting import count_evicted
from anchorstore.server.core.state import State


def close(state: State, segment_ids: Iterable[int]) -> None:
    """These segments of nvme get no more blocks."""
    assert state.nvme is not None
    state.nvme.cold_pool.close(segment_ids)
    state.nvme.hides_room = True
    state.nvme.queues.forget()


def reopen(state: State, segment_ids: Iterable[int]) -> None:
    """They get blocks again."""
    assert state.nvme is not None
    state.nvme.cold_pool.reopen(segment_ids)
    state.nvme.queues.forget()


def lose(state: State, segment_ids: Iterable[int]) -> int:
    """These segments are gone for good.  Pages with a block there leave nvme.  Returns the blocks
    that were there alone."""
    nvme, table = state.nvme, state.blocks
    assert nvme is not None
    lost = np.array(sorted(segment_ids), np.uint32)
    close(state, lost.tolist())
    rows = table.live_rows()
    rows = rows[nvme.holds(rows) & (table.page.take(rows) != 0)]
    rows = rows[np.isin(nvme.segments_of(rows), lost)]
    if not len(rows):
        return 0
    pages = np.unique(table.page.take(rows))
    left = state.leave(nvme, pages)
    count_evicted(state, nvme, len(pages), left)
    state.counters["nvme_blocks_lost"] += left.gone
    state.note("lose", len(lost), "segments", left.gone, "blocks")
    return left.gone
