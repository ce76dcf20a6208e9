"""Every sealed block and where it lies, in steps: what `check --checksums` reads again.

::

    block rows   1 ... SPAN | ... 2 SPAN | ...      a step looks at no more rows than it must,
    cursor       ------->                           so that a walk costs what there is, once
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from anchorstore.server.core.state import State
from anchorstore.server.core.tier import Tier
from anchorstore.server.core.types import U8, U32, U64, Bools, column

SPAN = 4096  # rows


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTable:
    """Sealed blocks in dram; columns of equal length [n].

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


@dataclasses.dataclass(frozen=True, slots=True)
class ColdTable:
    """Blocks in nvme; columns of equal length [n].

    Attributes:
        row: of the block table.
        unit, generation: its slot, and what that must show.
        block_bytes, path_hash u64[n, 4], layout_key, lineage, checksum: what proves it.
    """

    row: U32
    unit: U32
    generation: U32
    block_bytes: U64
    path_hash: U64
    layout_key: U64
    lineage: U8
    checksum: U64

    def __len__(self) -> int:
        return len(self.row)


def _step(state: State, tier: Tier, cursor: int, limit: int) -> tuple[U32, int]:
    """Up to `limit` rows behind `cursor` of attached blocks in the tier, and the next cursor: 0 at
    the end."""
    table, top = state.blocks, state.blocks.rows.top
    for start in range(cursor + 1, top, SPAN):
        stop = min(start + SPAN, top)
        rows = np.arange(start, stop, dtype=np.uint32)
        rows = rows[table.page.take(rows) != 0]
        rows = rows[tier.holds(rows)]
        if len(rows) > limit:
            return rows[:limit], int(rows[limit - 1])
        if len(rows):
            return rows, stop - 1 if stop < top else 0
    return np.zeros(0, np.uint32), 0


def sealed_blocks(state: State, cursor: int, limit: int) -> tuple[BlockTable, int]:
    """Up to `limit` blocks in dram from `cursor` on (start with 0), and the next cursor: 0 at the
    end."""
    blocks, pool = state.blocks, state.pool
    rows, cursor = _step(state, state.dram, cursor, limit)
    kinds = [state.registry.by_kind_id[kind] for kind in blocks.kind.take(rows).tolist()]
    segments = [pool.by_id[segment] for segment in blocks.segment[rows].tolist()]
    slots = blocks.slot[rows]
    starts = [kind.offset(slot) for kind, slot in zip(kinds, slots.tolist(), strict=True)]
    table = BlockTable(
        segment_index=np.array([segment.index for segment in segments], np.uint32),
        slot=slots,
        offset=np.array(starts, np.uint64),
        block_bytes=np.array([kind.block_bytes for kind in kinds], np.uint64),
        generation=blocks.generation[rows],
        checksum=blocks.checksum[rows],
    )
    return table, cursor


def cold_blocks(
    state: State, cursor: int, limit: int, limit_bytes: int
) -> tuple[ColdTable | None, int]:
    """The same for nvme, at least one block and at most about so many bytes; None where there is no
    such block."""
    blocks, nvme = state.blocks, state.nvme
    if nvme is None:
        return None, 0
    rows, after = _step(state, nvme, cursor, limit)
    if not len(rows):
        return None, 0
    kinds = [state.registry.by_kind_id[kind] for kind in blocks.kind.take(rows).tolist()]
    sizes = np.array([kind.block_bytes for kind in kinds], np.uint64)
    fits = max(1, int(np.searchsorted(np.cumsum(sizes), limit_bytes, "right")))
    if fits < len(rows):
        rows, kinds, sizes, after = rows[:fits], kinds[:fits], sizes[:fits], int(rows[fits - 1])
    pages = blocks.page.take(rows)
    owners = state.index.namespace.take(pages).tolist()
    roots = [state.registry.by_namespace_id[owner].root_digest for owner in owners]
    keys = [kind.layout_key(root) for kind, root in zip(kinds, roots, strict=True)]
    table = ColdTable(
        row=rows,
        unit=blocks.cold.take(rows),
        generation=nvme.generations_of(rows),
        block_bytes=sizes,
        path_hash=state.index.hashes.take(pages, axis=0),
        layout_key=np.array(keys, np.uint64),
        lineage=blocks.lineage.take(rows),
        checksum=column(blocks.checksum[rows], np.uint64),
    )
    return table, after


def stands(state: State, table: ColdTable) -> Bools:
    """Which of these blocks still lie where they did."""
    assert state.nvme is not None
    same = np.asarray(state.blocks.cold.take(table.row) == table.unit)
    same &= state.blocks.page.take(table.row) != 0
    here = np.flatnonzero(same)
    same[here] = state.nvme.generations_of(table.row[here]) == table.generation[here]
    return same


class Audit:
    """All of it, of one store; changes nothing."""

    def __init__(self, state: State) -> None:
        self.sealed_blocks = functools.partial(sealed_blocks, state)
        self.cold_blocks = functools.partial(cold_blocks, state)
        self.stands = functools.partial(stands, state)
