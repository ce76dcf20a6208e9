"""Every sealed block in dram and where it lies, in steps: what `check --checksums` re-reads."""

from __future__ import annotations

import dataclasses

import numpy as np

from anchorstore.server.core.state import State
from anchorstore.server.core.types import U32, U64


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTable:
    """Sealed blocks; columns of equal length [n].

    Attributes:
        segment_index: region of the pool.
        slot: slot in it.
        offset: bytes from the region's start.
        block_bytes: size of the block.
        generation: even.
        checksum: xxh3 of the block.
    """

    segment_index: U32
    slot: U32
    offset: U64
    block_bytes: U64
    generation: U32
    checksum: U64


def sealed_blocks(state: State, cursor: int, limit: int) -> tuple[BlockTable, int]:
    """Up to `limit` blocks from `cursor` on (start with 0), and the next cursor: 0 at the end."""
    blocks, pool = state.blocks, state.pool
    live = blocks.live_rows()
    live = live[state.dram.holds(live)]
    rows = live[live > cursor][:limit]
    kinds = [state.registry.by_kind_id[kind] for kind in blocks.kind.take(rows).tolist()]
    segments = [pool.by_id[segment] for segment in blocks.segment[rows].tolist()]
    slots = blocks.slot[rows]
    starts = [
        pool.shape(kind.slot_bytes).offset(int(slot))
        for kind, slot in zip(kinds, slots, strict=True)
    ]
    table = BlockTable(
        segment_index=np.array([segment.index for segment in segments], np.uint32),
        slot=slots,
        offset=np.array(starts, np.uint64),
        block_bytes=np.array([kind.block_bytes for kind in kinds], np.uint64),
        generation=blocks.generation[rows],
        checksum=blocks.checksum[rows],
    )
    is_last = not len(rows) or rows[-1] == live[-1]
    return table, 0 if is_last else int(rows[-1])
