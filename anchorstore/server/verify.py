"""`check --checksums`: reads every sealed block again and compares it with its checksum.

::

    dram   in place, some blocks at a time in a thread
    nvme   into a buffer of its own, in turns with everybody's reads (reads.py), so many bytes a
           second: nothing is brought into the pool, nothing leaves it

Calls go on meanwhile.  A block may be evicted while it is read: only one that still lies where it
did afterwards counts.  A slot of nvme that shows another block is no damage: the daemon was killed
after the slot was used again and before the journal said so.  Whoever asks for the block misses.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import numpy as np
import xxhash

from anchorstore.clock import Clock
from anchorstore.server.core.audit import BlockTable, ColdTable
from anchorstore.server.core.store import Store
from anchorstore.server.reads import Reads
from anchorstore.tiers.base import Tier
from anchorstore.tiers.nvme.format import UNIT_BYTES, align_many
from anchorstore.tiers.nvme.plans import LOST, U8, ReadPlan, Status, chosen
from anchorstore.tiers.nvme.seam import aligned
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.units import MIB

STEP_BLOCKS = 64
STEP_BYTES = 8 * MIB  # of nvme
VIOLATIONS_MAX = 100  # named one by one
NVME_BYTES_PER_SECOND = 256 * MIB
TRIES = 3  # of what a device has no time for
TRY_SECONDS = 0.1
CHECKER = 0  # among the owners of reads: no namespace has this number
WORDS = {
    Status.FAILED: "cannot be read",
    Status.TORN: "its bytes have another checksum",
    Status.FOREIGN: "no block of this device lies there",
}


@dataclasses.dataclass(slots=True)
class Verified:
    """What was found so far: places that are right, wrong ones in words, and of nvme those not
    read and those that a later block took."""

    right: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    unread: int = 0
    outdated: int = 0

    def blame(self, texts: list[str]) -> None:
        """Notes what is wrong, as long as there is room."""
        self.wrong += texts[: VIOLATIONS_MAX - len(self.wrong)]

    @property
    def is_full(self) -> bool:
        """Whether more need not be looked for."""
        return len(self.wrong) >= VIOLATIONS_MAX


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


async def verify_dram(core: Store, tier: Tier, found: Verified) -> None:
    """Every sealed block in memory."""
    cursor = 0
    while not found.is_full:
        table, cursor = core.audit.sealed_blocks(cursor, STEP_BLOCKS)
        right, wrong = await asyncio.to_thread(verify_step, tier, table)
        found.right += right
        found.blame(wrong)
        if not cursor:
            return


class NvmeCheck:
    """Every block in nvme.  `sleep` is asyncio's, but for tests."""

    def __init__(
        self,
        core: Store,
        nvme: NvmeTier,
        reads: Reads,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._core, self._nvme, self._reads, self._clock = core, nvme, reads, clock
        self._sleep = sleep

    async def run(self, found: Verified, bytes_per_second: int) -> None:
        """All of them, once, no faster than this."""
        cursor, due = 0, self._clock.now()
        while not found.is_full:
            table, cursor = self._core.audit.cold_blocks(cursor, STEP_BLOCKS, STEP_BYTES)
            if table is None:
                return
            due = max(due, self._clock.now()) + float(table.block_bytes.sum()) / bytes_per_second
            status = await self._read(table)
            self._judge(table, status, found)
            if not cursor:
                return
            await self._sleep(max(0.0, due - self._clock.now()))

    async def _read(self, table: ColdTable) -> U8:
        """How each block was found; what a device has no time for is tried again."""
        sizes = align_many(table.block_bytes)
        buffer = np.frombuffer(aligned(int(sizes.sum()) + UNIT_BYTES), np.uint8)
        plan = ReadPlan(
            segment_index=np.zeros(len(table), np.uint32),
            offset=np.cumsum(sizes) - sizes,
            block_bytes=table.block_bytes,
            unit=table.unit,
            generation=table.generation,
            path_hash=table.path_hash,
            layout_key=table.layout_key,
            lineage=table.lineage,
            checksum=table.checksum,
        )
        status, left = np.zeros(len(table), np.uint8), np.arange(len(table))
        for number in range(TRIES):
            part = chosen(plan, left)
            assert isinstance(part, ReadPlan)
            done = await self._reads.read(CHECKER, part, lambda _: buffer)
            status[left] = done.status
            left = left[~(done.ok | done.lost)]
            if not len(left):
                break
            await self._sleep(TRY_SECONDS * 2**number)
        return status

    def _judge(self, table: ColdTable, status: U8, found: Verified) -> None:
        stands = self._core.audit.stands(table)
        found.right += int((stands & (status == Status.OK)).sum())
        found.unread += int((stands & (status != Status.OK) & ~np.isin(status, LOST)).sum())
        found.outdated += int((stands & (status == Status.OTHER)).sum())
        bad = np.flatnonzero(stands & np.isin(status, list(WORDS)))
        devices = self._nvme.devices_of(table.unit[bad]).tolist()
        texts = []
        for at, number in zip(bad.tolist(), devices, strict=True):
            device = self._nvme.devices[number]
            place = (int(table.unit[at]) - device.base_unit) * UNIT_BYTES + device.data_offset
            texts.append(f"{device.name}, slot at byte {place}: {WORDS[Status(int(status[at]))]}")
        found.blame(texts)
