"""Goal: what lands in the pool is what the writer meant, and a mismatch is never marked sealed.
Method: a real dram tier, plans against numpy copies; property test of the slicing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import Overloaded
from anchorstore.server.mover import CopyPlan, Mover, slices
from anchorstore.tiers.dram import DramTier
from anchorstore.transport.segment import SegmentShape

SEGMENT_BYTES = 4 * 2**20
BLOCK_BYTES = 300_000
SHAPE = SegmentShape(SEGMENT_BYTES, 303_104)


class _Format:
    """Segment 0 with slots of one size."""

    index, segment_id, slot_bytes, slots = 0, 1, SHAPE.slot_bytes, SHAPE.slots
    first_generation, fresh_memory = 0, False


@pytest.fixture
def tier() -> Iterator[DramTier]:
    tier = DramTier(1, SEGMENT_BYTES, bytes(16), "never", print)
    tier.format(_Format())
    yield tier
    tier.close()


def staged(count: int) -> np.ndarray:
    """Staging memory with `count` different blocks."""
    return np.random.default_rng(7).integers(0, 256, count * BLOCK_BYTES, dtype=np.uint8)


def plan_of(source: np.ndarray, expected: list[int] | None) -> CopyPlan:
    count = len(source) // BLOCK_BYTES
    slots = np.arange(count, dtype=np.uint32)[::-1].copy()
    return CopyPlan(
        source=source,
        source_offsets=np.arange(count, dtype=np.uint64) * BLOCK_BYTES,
        segment_indices=np.zeros(count, np.uint32),
        slots=slots,
        offsets=np.array([SHAPE.offset(int(slot)) for slot in slots], np.uint64),
        block_bytes=np.full(count, BLOCK_BYTES, np.uint64),
        generations=np.full(count, 5, np.uint32),
        path_hashes=np.arange(4 * count, dtype=np.uint64).reshape(count, 4),
        layout_keys=np.full(count, 11, np.uint64),
        lineage=2,
        expected=None if expected is None else np.array(expected, np.uint64),
    )


@pytest.mark.parametrize("threads", [1, 3])
async def test_copy_blocks_lands_them_sealed_with_their_checksums(
    tier: DramTier, threads: int
) -> None:
    source, mover = staged(10), Mover(tier, threads, queue_max=4)
    sums = [xxhash.xxh3_64_intdigest(block) for block in source.reshape(10, BLOCK_BYTES)]
    plan = plan_of(source, sums)
    result = await mover.copy(plan)
    assert result.ok.all() and result.checksums.tolist() == sums
    for row, offset in enumerate(plan.offsets.tolist()):
        block = tier.memory(0)[offset : offset + BLOCK_BYTES]
        assert np.array_equal(block, source[row * BLOCK_BYTES :][:BLOCK_BYTES])
    for row, slot in enumerate(plan.slots.tolist()):
        record = tier.records(0)[slot]
        assert (record["generation"], record["lineage"], record["layout_key"]) == (6, 2, 11)
        assert record["checksum"] == sums[row]
        assert record["path_hash"].tolist() == plan.path_hashes[row].tolist()
    assert (mover.blocks_copied, mover.bytes_copied) == (10, source.size)
    mover.close()


async def test_copy_with_wrong_checksum_leaves_generation_odd(tier: DramTier) -> None:
    source, mover = staged(3), Mover(tier, 1, queue_max=4)
    sums = [xxhash.xxh3_64_intdigest(block) for block in source.reshape(3, BLOCK_BYTES)]
    result = await mover.copy(plan_of(source, [sums[0], sums[1] ^ 1, sums[2]]))
    assert result.ok.tolist() == [True, False, True]
    assert result.checksums.tolist() == sums
    assert tier.records(0)["generation"][:3].tolist() == [6, 5, 6]  # slot 1 is row 1
    mover.close()


async def test_copy_without_writers_checksum_takes_what_is_there(tier: DramTier) -> None:
    mover = Mover(tier, 2, queue_max=4)
    result = await mover.copy(plan_of(staged(2), None))
    assert result.ok.all() and result.checksums.all()
    mover.close()


async def test_copy_with_a_readers_generation_is_a_broken_invariant(tier: DramTier) -> None:
    mover, plan = Mover(tier, 1, queue_max=4), plan_of(staged(1), None)
    plan.generations[:] = 4
    with pytest.raises(AssertionError, match="generation 4"):
        await mover.copy(plan)
    mover.close()


async def test_room_with_full_queue_is_overloaded(tier: DramTier) -> None:
    mover = Mover(tier, 1, queue_max=1)
    mover.check_room()
    copy = mover.copy(plan_of(staged(8), None))
    with pytest.raises(Overloaded, match="1 seals are waiting") as refusal:
        mover.check_room()
    assert refusal.value.retry_after_ms > 0
    await copy
    mover.check_room()
    assert mover.queued_bytes == 0
    mover.close()


@given(
    st.lists(st.integers(1, 8 * 2**20), min_size=1, max_size=60),
    st.integers(1, 9),
)
def test_slices_of_any_blocks_cover_each_once(sizes: list[int], parts: int) -> None:
    found = slices(np.array(sizes, np.uint64), parts)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(len(sizes)))
    assert 1 <= len(found) <= parts
