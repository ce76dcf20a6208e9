"""Goal: clients can read the pool and write their staging memory, and damage neither the daemon
nor each other.
Method: real memfds; a "client" maps the descriptor it would be sent and tries what it must not.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from anchorstore.errors import CapacityFull, ConfigError
from anchorstore.tiers.dram import DramTier, StagingPool
from anchorstore.transport.segment import SegmentShape, SegmentView

BOOT = bytes(range(16))
SEGMENT_BYTES = 256 * 1024
SLOT_BYTES = 8192


@dataclasses.dataclass(frozen=True)
class Format:
    """The core's order, as far as a tier sees it."""

    index: int
    segment_id: int
    first_generation: int = 0
    fresh_memory: bool = False
    slot_bytes: int = SLOT_BYTES
    slots: int = SegmentShape(SEGMENT_BYTES, SLOT_BYTES).slots


@pytest.fixture
def tier() -> Iterator[DramTier]:
    warnings: list[str] = []
    tier = DramTier(3, SEGMENT_BYTES, BOOT, "never", warnings.append)
    yield tier
    tier.close()
    assert not warnings


def mapped(descriptor: int) -> mmap.mmap:
    """What a client sees of a segment."""
    return mmap.mmap(descriptor, SEGMENT_BYTES, prot=mmap.PROT_READ)


def test_prefault_whole_pool_reports_rising_progress(tier: DramTier) -> None:
    seen: list[tuple[int, int]] = []
    tier.prefault(lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    blocks = [os.fstat(tier.descriptor(index)).st_blocks * 512 for index in range(3)]
    assert blocks == [SEGMENT_BYTES] * 3


def test_prefault_stopped_ends_early(tier: DramTier) -> None:
    seen: list[int] = []
    tier.prefault(lambda done, _: seen.append(done), stopped=lambda: len(seen) == 1)
    assert len(seen) == 1


def test_format_segment_shows_client_its_header(tier: DramTier) -> None:
    tier.format(Format(index=1, segment_id=7, first_generation=4))
    view = SegmentView(memoryview(mapped(tier.descriptor(1))), BOOT, 7)
    assert (view.slot_bytes, view.slots) == (SLOT_BYTES, tier.records(1).size)
    tier.memory(1)[view.first_slot_offset :][:3] = (1, 2, 3)
    assert bytes(view.block(0, 3)) == b"\1\2\3"
    assert tier.index_of(7) == 1
    view.release()


def test_format_segment_again_drops_the_old_id(tier: DramTier) -> None:
    tier.format(Format(index=0, segment_id=1))
    tier.format(Format(index=0, segment_id=2, first_generation=6))
    with pytest.raises(LookupError):
        tier.index_of(1)
    assert tier.index_of(2) == 0
    assert set(tier.records(0)["generation"].tolist()) == {6}


def test_format_fresh_memory_leaves_old_mapping_with_old_bytes(tier: DramTier) -> None:
    tier.format(Format(index=0, segment_id=1))
    tier.memory(0)[-1] = 99
    old = mapped(tier.descriptor(0))
    tier.format(Format(index=0, segment_id=2, fresh_memory=True))
    tier.memory(0)[-1] = 11
    assert old[-1] == 99
    assert mapped(tier.descriptor(0))[-1] == 11


def test_client_of_segment_can_neither_write_nor_resize(tier: DramTier) -> None:
    tier.format(Format(index=0, segment_id=1))
    descriptor = os.dup(tier.descriptor(0))
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, SEGMENT_BYTES)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        for size in (0, 2 * SEGMENT_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, 1033, 8)  # F_ADD_SEALS, F_SEAL_WRITE
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(("segments", "size"), [(0, SEGMENT_BYTES), (4, 0), (1, 4096)])
def test_tier_without_room_for_a_block_is_refused(segments: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"{segments} segments of {size} bytes"):
        DramTier(segments, size, BOOT, "never", print)


def test_huge_pages_required_without_any_are_refused() -> None:
    with pytest.raises(ConfigError, match="huge_pages"):
        DramTier(2, SEGMENT_BYTES, BOOT, "require", print)  # not a multiple of 2 MiB


def test_staging_client_writes_are_seen_and_size_is_fixed() -> None:
    pool = StagingPool(total_bytes=1 << 20, session_bytes_max=1 << 19)
    assert pool.open(b"session", 5000) == 8192
    staging = pool.of(b"session")
    assert staging is not None
    client = mmap.mmap(staging.descriptor, 8192)
    client[100] = 42
    assert staging.memory[100] == 42
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(staging.descriptor, size)
    pool.close()
    assert pool.used_bytes == 0


def test_staging_punched_by_client_reads_as_zeros() -> None:
    pool = StagingPool(total_bytes=1 << 20, session_bytes_max=1 << 20)
    pool.open(b"session", 1 << 16)
    staging = pool.of(b"session")
    assert staging is not None
    staging.memory[:] = 7
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 3
    size = ctypes.c_long(1 << 16)
    assert libc.fallocate(staging.descriptor, keep_size_and_punch, ctypes.c_long(0), size) == 0
    assert not staging.memory.any()  # a hole, and no SIGBUS
    pool.close()


def test_staging_budget_is_shared_and_comes_back() -> None:
    pool = StagingPool(total_bytes=1 << 20, session_bytes_max=1 << 19)
    assert pool.open(b"a", 1 << 30) == 1 << 19  # granted in part
    assert pool.open(b"b", 1 << 19) == 1 << 19
    with pytest.raises(CapacityFull, match="4096 bytes wanted, 0 left of 1048576"):
        pool.open(b"c", 1)
    assert pool.open(b"reader", 0) == 0 and pool.of(b"reader") is None
    pool.drop(b"a")
    pool.drop(b"never there")
    assert pool.open(b"c", 1) == 4096
    pool.close()


def test_staging_dropped_during_copy_can_still_be_read() -> None:
    """It shows zeros: what an ended session wrote is nobody's any more."""
    pool = StagingPool(total_bytes=1 << 20, session_bytes_max=1 << 20)
    pool.open(b"a", 4096)
    staging = pool.of(b"a")
    assert staging is not None
    source = staging.memory
    source[:] = 5
    pool.drop(b"a")
    assert len(source) == 4096 and not source.any()
