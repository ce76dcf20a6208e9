"""Goal: what is looked up again can be read on the device, as it was sealed, or in dram as ever.
Method: a real dram tier, the mirror, the hbm tier on the shipped fake; another process of the fake
reads what places() names, the way that an engine does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from anchorstore.errors import InvalidRequest
from anchorstore.server.core.mirror import Mirror, MirrorConfig
from anchorstore.server.core.types import BlockColumns, Gone
from anchorstore.server.hot import Hot
from anchorstore.server.mover import CopyPlan, CopyResult, copy_slice
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.tiers.dram import DramTier
from anchorstore.tiers.hbm import HbmOptions, daemon_tier
from anchorstore.transport import cuda
from anchorstore.transport.device_memory import DeviceSegment, OpenSlab
from anchorstore.transport.segment import DEVICE_IDS_FROM, PLACE, Places, SegmentShape, SegmentView

BOOT = bytes(16)
SEGMENT_BYTES = 2 * 2**20
BLOCK_BYTES = 70_000
SHAPE = SegmentShape(SEGMENT_BYTES, 73_728)
COUNT = 6


@dataclasses.dataclass(frozen=True)
class Format:
    index: int
    segment_id: int
    slot_bytes: int = SHAPE.slot_bytes
    slots: int = SHAPE.slots
    first_generation: int = 0
    fresh_memory: bool = False


class Dram(DramTier):
    """Whose memory may turn out to be out of reach."""

    is_broken = False

    def memory(self, index: int) -> np.ndarray:
        if self.is_broken:
            raise IndexError(f"no memory {index}")
        return super().memory(index)


class World:
    """Six blocks in dram, and an engine on the device."""

    def __init__(self, queue_max: int = 8) -> None:
        self.gpu = FakeGpu()
        self.daemon, self.engine = FakeCuda(self.gpu), FakeCuda(self.gpu, ordinal=1)
        self.failures: list[BaseException] = []
        self.dram = Dram(2, SEGMENT_BYTES, BOOT, "never", print)
        self.data = np.random.default_rng(9).integers(0, 256, (COUNT, BLOCK_BYTES), dtype=np.uint8)
        self.dram.format(Format(1, segment_id=5))
        self.seal(generation=1)
        self.hbm = daemon_tier(
            *(self.daemon, 2 * SEGMENT_BYTES, SEGMENT_BYTES, BOOT, "acme"),
            HbmOptions(lanes=1, half_bytes=64 * 1024, queue_max=queue_max),
            warn=print,
            lost=lambda reason: None,
        )
        self.hot = Hot(
            Mirror(MirrorConfig(2, SEGMENT_BYTES)),
            self.dram,
            self.hbm,
            fail=lambda name, error: self.failures.append(error),
        )
        self.slab = OpenSlab(self.engine, self.hbm.export_for("acme"))

    def seal(self, generation: int) -> None:
        """Writes the blocks to slots 0 to 5 of dram, as a seal does."""
        slots = np.arange(COUNT, dtype=np.uint32)
        plan = CopyPlan(
            source=self.data.reshape(-1),
            source_offsets=slots.astype(np.uint64) * np.uint64(BLOCK_BYTES),
            segment_indices=np.ones(COUNT, np.uint32),
            slots=slots,
            offsets=np.array([SHAPE.offset(slot) for slot in range(COUNT)], np.uint64),
            block_bytes=np.full(COUNT, BLOCK_BYTES, np.uint64),
            generations=np.full(COUNT, generation, np.uint32),
            path_hashes=np.arange(4 * COUNT, dtype=np.uint64).reshape(COUNT, 4),
            layout_keys=np.full(COUNT, 11, np.uint64),
            lineage=2,
            expected=None,
        )
        result = CopyResult(np.zeros(COUNT, np.bool_), np.zeros(COUNT, np.uint64))
        copy_slice(self.dram, plan, result, 0, COUNT)

    def columns(self, generation: int = 2) -> BlockColumns:
        """A lookup's answer that names all blocks."""
        places = np.zeros(COUNT, PLACE)
        places["segment"], places["slot"], places["generation"] = 5, range(COUNT), generation
        places["checksum"] = [xxhash.xxh3_64_intdigest(block) for block in self.data]
        return BlockColumns(0, 0, places)

    async def look(self, generation: int = 2) -> Places:
        """Looks up, and waits until what follows from it is done."""
        [found] = self.hot.places("acme", [self.columns(generation)], [BLOCK_BYTES])
        await self.rest()
        return found

    async def rest(self) -> None:
        await asyncio.sleep(0)  # copies begin once the answer has gone out
        for _ in range(10_000):
            if not self.hot.mirror._open:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("a copy never ended")

    def view(self, segment_id: int) -> SegmentView:
        descriptor = self.hot.head_of(segment_id)[0]
        mapped = mmap.mmap(descriptor, SEGMENT_BYTES, prot=mmap.PROT_READ)
        return SegmentView(memoryview(mapped), BOOT, segment_id)

    def read(self, place: np.void) -> bytes | None:
        """As an engine reads a block on its device; None where it did not stand."""
        segment_id, slot, generation, _ = place.tolist()
        segment = DeviceSegment(self.view(segment_id), self.slab, self.hot.head_of(segment_id)[1])
        block = segment.block(slot, BLOCK_BYTES)
        found, stream = np.zeros(BLOCK_BYTES, np.uint8), self.engine.make_stream()
        self.engine.to_host(found.ctypes.data, block.address, block.size_bytes, stream)
        self.engine.finish(stream, 1.0)
        return found.tobytes() if segment.slot_stands(slot, generation) else None

    def close(self) -> None:
        self.slab.close()
        self.hbm.close()
        self.dram.close()
        assert not self.gpu.misuses


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


async def test_blocks_looked_up_again_are_read_on_the_device(world: World) -> None:
    for _ in range(2):
        assert not (await world.look())["segment"].any()
    found = await world.look()
    assert (found["segment"] >= DEVICE_IDS_FROM).all()
    assert [world.read(place) for place in found] == [block.tobytes() for block in world.data]
    assert not world.failures and world.hot.mirror.check() == []


async def test_block_outside_of_a_segment_on_the_device_is_refused(world: World) -> None:
    for _ in range(2):
        await world.look()
    segment = DeviceSegment(
        world.view(DEVICE_IDS_FROM), world.slab, world.hot.head_of(DEVICE_IDS_FROM)[1]
    )
    for slot, size in ((SHAPE.slots, 1), (-1, 1), (0, SHAPE.slot_bytes + 1)):
        with pytest.raises(InvalidRequest, match=f"bytes in slot {slot} of {SHAPE.slots}"):
            segment.block(slot, size)
    with pytest.raises(InvalidRequest, match="exceed its"):
        DeviceSegment(world.view(DEVICE_IDS_FROM), world.slab, 4 * SEGMENT_BYTES)


async def test_record_on_the_device_is_that_of_the_block_in_dram(world: World) -> None:
    for _ in range(2):
        await world.look()
    found = await world.look()
    ours, theirs = world.view(DEVICE_IDS_FROM), world.dram.records(1)
    for row, slot in enumerate(found["slot"].tolist()):
        shown = ours.record(slot)
        assert shown is not None
        assert shown[1:4] == (2, 11, int(theirs["checksum"][row]))
        assert shown[4] == theirs["path_hash"][row].tobytes()


async def test_block_written_anew_before_its_copy_is_not_copied(world: World) -> None:
    await world.look()
    world.data[:] ^= 1
    world.seal(generation=3)
    world.data[:] ^= 1
    await world.look()  # still asks for what lay there before
    assert not (await world.look())["segment"].any()
    assert world.hot.mirror.counters["copies_failed"] == COUNT
    assert not world.failures


async def test_block_changed_while_it_travels_does_not_arrive(world: World) -> None:
    """As when its slot is given to another block just then."""
    await world.look()
    world.dram.memory(1)[SHAPE.offset(3)] ^= 1
    await world.look()
    found = await world.look()
    assert [bool(segment) for segment in found["segment"]] == [row != 3 for row in range(COUNT)]


async def test_segment_of_dram_formatted_anew_copies_nothing(world: World) -> None:
    await world.look()
    world.dram.format(Format(1, segment_id=6, first_generation=4))
    await world.look()
    assert not (await world.look())["segment"].any()
    assert not world.failures


async def test_blocks_gone_from_dram_are_gone_from_the_device(world: World) -> None:
    for _ in range(2):
        await world.look()
    world.hot.forget([Gone("acme", 5, np.arange(COUNT, dtype=np.uint32))])
    assert not (await world.look())["segment"].any()
    assert world.hot.status().blocks == 0


async def test_other_domain_gets_no_places(world: World) -> None:
    assert world.hot.places("others", [world.columns()], [BLOCK_BYTES]) == []


async def test_block_gone_before_its_copy_has_begun_is_never_found(world: World) -> None:
    await world.look()
    world.hot.places("acme", [world.columns()], [BLOCK_BYTES])
    world.hot.forget([Gone("acme", 5, np.arange(COUNT, dtype=np.uint32))])
    await world.rest()
    [found] = world.hot.places("acme", [world.columns()], [BLOCK_BYTES])
    assert not found["segment"].any() and world.hot.mirror.used_bytes == 0


async def test_busy_device_is_asked_for_no_more_copies() -> None:
    world = World(queue_max=0)
    for _ in range(3):
        found = await world.look()
        assert len(found) == COUNT and not found["segment"].any()
    assert not world.hot.mirror.counters["copies_made"]
    world.close()


async def test_lost_device_is_said_once_and_answers_go_on_without_it(world: World) -> None:
    for _ in range(2):
        await world.look()
    found = await world.look()
    head = world.view(int(found["segment"][0]))
    world.gpu.lost_code = cuda.ILLEGAL_ADDRESS
    world.data[:] ^= 1
    world.seal(generation=3)
    for _ in range(2):
        world.hot.places("acme", [world.columns(generation=4)], [BLOCK_BYTES])
    await world.rest()
    assert world.hot.places("acme", [world.columns()], [BLOCK_BYTES]) == []
    world.hot.lost()
    status = world.hot.status()
    assert "illegal memory access" in status.offline_reason and status.blocks == 0
    assert not world.failures
    assert bytes(head.memory[:8]) == bytes(8), "whoever maps the head sees that it is over"
    with pytest.raises(LookupError):
        world.hot.head_of(int(found["segment"][0]))
    world.gpu.lost_code = cuda.SUCCESS  # for the fixture


async def test_broken_invariant_in_a_copy_reaches_the_supervisor(world: World) -> None:
    await world.look()
    world.dram.is_broken = True
    world.hot.places("acme", [world.columns()], [BLOCK_BYTES])
    for _ in range(500):
        if world.failures:
            break
        await asyncio.sleep(0.01)
    assert isinstance(world.failures[0], IndexError)
