"""`check --checksums`: re-reads every sealed block and compares it with its checksum.

It works in steps, a few MiB at a time in a thread, so that calls go on meanwhile.  A block may be
evicted while it is read: only one whose generation still stands afterwards counts.
"""

from __future__ import annotations

import asyncio

import xxhash

from anchorstore.server.core.audit import BlockTable
from anchorstore.server.core.store import Store
from anchorstore.tiers.base import Tier

STEP_BLOCKS = 64
VIOLATIONS_MAX = 100  # named one by one


def verify_step(tier: Tier, table: BlockTable) -> tuple[int, list[str]]:
    """(blocks that stand and are right, those that stand and are wrong in words)."""
    right, wrong = 0, []
    columns = (table.segment_index, table.slot, table.offset, table.block_bytes)
    rows = zip(
        *(column.tolist() for column in (*columns, table.generation, table.checksum)), strict=True
    )
    for segment, slot, offset, size, generation, checksum in rows:
        found = xxhash.xxh3_64_intdigest(tier.memory(segment)[offset : offset + size])
        if tier.records(segment)["generation"][slot] != generation:
            continue
        if found == checksum:
            right += 1
        else:
            wrong.append(f"segment {segment} slot {slot}: xxh3 {found:x}, sealed as {checksum:x}")
    return right, wrong


async def verify_blocks(core: Store, tier: Tier) -> tuple[int, list[str]]:
    """Every sealed block: how many are right, and what is wrong with the others."""
    right, wrong, cursor = 0, list[str](), 0
    while True:
        table, cursor = core.sealed_blocks(cursor, STEP_BLOCKS)
        more, bad = await asyncio.to_thread(verify_step, tier, table)
        right += more
        wrong += bad
        if not cursor or len(wrong) > VIOLATIONS_MAX:
            return right, wrong[:VIOLATIONS_MAX]
