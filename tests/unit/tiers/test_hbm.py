"""Goal: what fails on a device costs the blocks concerned, or the tier, and nothing else.
Method: the shipped fake of CUDA breaks in every way that it can while blocks move; the contract
of a working tier is in tests/contract.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import ConfigError, Forbidden, InvalidRequest
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.tiers.base import Moves
from anchorstore.tiers.device_slab import OwnSlab
from anchorstore.tiers.hbm import HbmOptions, HbmTier, daemon_tier, engine_tier
from anchorstore.tiers.lanes import loads
from anchorstore.transport import cuda
from anchorstore.transport.segment import SegmentShape, SegmentView

BOOT = bytes(16)
SEGMENT_BYTES = 2 * 2**20
BLOCK_BYTES = 100_000
SHAPE = SegmentShape(SEGMENT_BYTES, 102_400)
OPTIONS = HbmOptions(lanes=1, half_bytes=64 * 1024, seconds=3.0, queue_max=2)


@dataclasses.dataclass(frozen=True)
class Format:
    """The core's order for segment 0."""

    index: int = 0
    segment_id: int = 1
    slot_bytes: int = SHAPE.slot_bytes
    slots: int = SHAPE.slots
    first_generation: int = 0
    fresh_memory: bool = False


class World:
    """A daemon's tier on a fake device, formatted, and what it said."""

    def __init__(self, process: FakeCuda | None = None) -> None:
        self.gpu = process.gpu if process else FakeGpu()
        self.process = process or FakeCuda(self.gpu)
        self.warnings: list[str] = []
        self.reasons: list[str] = []
        self.tier = daemon_tier(
            *(self.process, 2 * SEGMENT_BYTES, SEGMENT_BYTES, BOOT, "team-a", OPTIONS),
            warn=self.warnings.append,
            lost=self.reasons.append,
        )
        self.tier.format(Format())

    def write(self, count: int, generation: int = 1) -> list[bool]:
        source = data(count)
        moved = self.tier.write(moves_of(source, generation), lambda _: source).result()
        return [bool(ok) for ok in moved]

    def read(self, count: int, generation: int = 2) -> list[bool]:
        target = np.zeros(count * BLOCK_BYTES, np.uint8)
        moves = moves_of(data(count), generation)
        moved = self.tier.read(moves, lambda _: target).result()
        whole = (target == data(count)).reshape(count, BLOCK_BYTES).all(axis=1)
        assert whole[moved].all(), "said to have moved, and had not"
        return [bool(ok) for ok in moved]

    def generations(self, count: int) -> list[int]:
        return [int(found) for found in self.tier.records(0)["generation"][:count]]

    def view(self) -> SegmentView:
        mapped = mmap.mmap(self.tier.descriptor(0), SEGMENT_BYTES, prot=mmap.PROT_READ)
        return SegmentView(memoryview(mapped), BOOT, 1)


def data(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, count * BLOCK_BYTES, dtype=np.uint8)


def moves_of(source: np.ndarray, generation: int) -> Moves:
    """Block i of `source` and slot i of segment 0."""
    blocks = source.reshape(-1, BLOCK_BYTES)
    count = len(blocks)
    rows = np.arange(count)
    return Moves(
        memories=np.zeros(count, np.uint32),
        memory_offsets=(rows * BLOCK_BYTES).astype(np.uint64),
        segments=np.zeros(count, np.uint32),
        slots=rows.astype(np.uint32),
        offsets=np.array([SHAPE.offset(row) for row in range(count)], np.uint64),
        block_bytes=np.full(count, BLOCK_BYTES, np.uint64),
        generations=np.full(count, generation, np.uint32),
        checksums=np.array([xxhash.xxh3_64_intdigest(block) for block in blocks], np.uint64),
        path_hashes=np.zeros((count, 4), np.uint64),
        layout_keys=rows.astype(np.uint64),
        lineages=np.zeros(count, np.uint8),
    )


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.tier.close()
    assert not made.gpu.misuses


# ---- starting ----


def test_device_without_room_is_refused_with_what_is_free() -> None:
    process = FakeCuda(FakeGpu(capacity_bytes=3 * 2**20), ordinal=2)
    with pytest.raises(ConfigError, match=r"tiers.hbm: 4MiB .* cuda:2, 3MiB are free: .*memory"):
        World(process)
    assert not process.gpu.used_bytes


def test_device_that_exports_nothing_is_refused_and_keeps_no_memory() -> None:
    process = FakeCuda(FakeGpu(), can_export=False)
    with pytest.raises(ConfigError, match="export_handle: operation not supported"):
        World(process)
    assert not process.gpu.used_bytes


def test_capacity_below_a_segment_is_refused() -> None:
    with pytest.raises(ConfigError, match="1000 bytes in segments of 2097152 hold no block"):
        daemon_tier(FakeCuda(FakeGpu()), 1000, SEGMENT_BYTES, BOOT, "a", OPTIONS, print, lost=print)


def test_lane_that_cannot_start_gives_everything_back() -> None:
    process = FakeCuda(FakeGpu())
    process.fail("make_stream", cuda.INVALID_VALUE, after=1)
    with pytest.raises(ConfigError, match="make_stream"):
        World(process)
    assert not process.gpu.used_bytes and not process.registered and not process.streams


def test_memory_that_cannot_be_pinned_is_told_once_and_still_copies() -> None:
    made = World(FakeCuda(FakeGpu(), can_register=False))
    assert len(made.warnings) == 1 and "pinned" in made.warnings[0]
    assert made.write(3) == [True] * 3 and made.read(3) == [True] * 3
    assert made.process.detours == made.process.copies > 0
    made.tier.close()
    assert not made.gpu.used_bytes


def test_memory_that_is_pinned_copies_without_detours(world: World) -> None:
    assert all(world.write(4)) and all(world.read(4))
    assert world.process.copies > 0 and not world.process.detours
    assert not world.warnings


# ---- one block fails ----


@pytest.mark.parametrize("after", [0, 1, 2])
def test_copy_refused_for_one_block_costs_that_block_alone(world: World, after: int) -> None:
    world.process.fail("to_device", cuda.INVALID_VALUE, after=after)
    written = world.write(4)
    assert written.count(False) == 1
    assert [generation == 2 for generation in world.generations(4)] == written
    assert world.tier.is_online
    world.process.fail("to_host", cuda.INVALID_VALUE)
    assert world.read(4) == [False, *written[1:]]
    assert world.tier.counters.blocks_failed == 1 + (4 - written[1:].count(True))
    assert world.tier.counters.blocks_written == 3


def test_slot_written_while_it_is_read_is_not_taken_for_the_sealed_one(world: World) -> None:
    assert all(world.write(2))
    target = np.zeros(2 * BLOCK_BYTES, np.uint8)

    def memory_of(number: int) -> np.ndarray:
        world.tier.records(0)["generation"][1] = 3
        return target

    moves = moves_of(data(2), 2)
    assert world.tier.read(moves, memory_of).result().tolist() == [True, False]


def test_slot_that_shows_another_generation_is_not_read(world: World) -> None:
    assert all(world.write(3))
    world.tier.records(0)["generation"][1] = 3
    assert world.read(3) == [True, False, True]
    assert world.tier.is_online


def test_write_with_a_readers_generation_is_a_broken_invariant(world: World) -> None:
    with pytest.raises(AssertionError, match="generation 4"):
        world.write(1, generation=4)
    assert all(world.write(1))  # and the lane is free again


def test_memory_that_fails_halfway_leaves_no_load_for_the_next_job(world: World) -> None:
    source = data(4)

    def broken(number: int) -> np.ndarray:
        raise LookupError(f"memory {number}")

    calls = iter([source, source, source, source])
    with pytest.raises(StopIteration):
        world.tier.write(moves_of(source, 1), lambda _: next(calls)).result()
    assert world.write(1) == [True], "the last job's rows are not looked for among its own"
    with pytest.raises(LookupError, match="memory 0"):
        world.tier.write(moves_of(source, 1), broken).result()
    assert world.generations(4) != [2, 2, 2, 2]
    assert all(world.write(4, generation=3)) and all(world.read(4, generation=4))


def test_jobs_of_no_blocks_move_nothing(world: World) -> None:
    assert world.write(0) == [] and world.read(0) == []
    assert not world.process.copies


# ---- the device fails ----


@pytest.mark.parametrize("call", ["to_device", "finish"])
@pytest.mark.parametrize("after", [0, 3])
def test_device_lost_while_writing_takes_the_tier_offline(call: str, after: int) -> None:
    world = World()
    assert all(world.write(2))
    shown = world.view()
    assert shown.slot_stands(1, 2)
    world.process.fail(call, cuda.ILLEGAL_ADDRESS, after=after)
    assert world.write(6, generation=3) == [False] * 6
    assert not world.tier.is_online and "illegal memory access" in world.tier.offline_reason
    assert world.reasons == [world.tier.offline_reason]
    assert not shown.slot_stands(1, 2), "whoever maps the head is told"
    assert world.write(1, generation=5) == [False] and world.read(1) == [False]
    world.tier.close()
    assert len(world.reasons) == 1


def test_device_lost_before_anything_has_landed_leaves_every_slot_unsealed() -> None:
    world = World()
    world.process.fail("finish", cuda.ILLEGAL_ADDRESS)
    assert world.write(6) == [False] * 6
    assert world.generations(6) == [1] * 6
    world.tier.close()


def test_device_lost_while_reading_says_that_nothing_moved() -> None:
    world = World()
    assert all(world.write(4))
    world.gpu.lost_code = 719
    assert world.read(4) == [False] * 4
    assert world.reasons and not world.tier.is_online
    world.tier.close()


@pytest.mark.parametrize("code", sorted(cuda.LOST_CODES))
def test_any_code_after_which_no_call_succeeds_is_a_lost_device(code: int) -> None:
    assert isinstance(cuda.error_of("call", code, "text"), cuda.DeviceLost)


def test_refusal_while_waiting_is_a_lost_device() -> None:
    """Copies are asked for without waiting, so their errors come late and stay."""
    world = World()
    world.process.fail("finish", cuda.INVALID_VALUE)
    assert world.write(1) == [False]
    assert not world.tier.is_online
    world.tier.close()


def test_device_that_never_finishes_is_given_up_and_its_memory_stays_pinned() -> None:
    world = World()
    world.gpu.is_stuck = True
    assert world.write(2) == [False, False]
    assert "not done after 3 s" in world.reasons[0]
    assert world.process.waits == 1, "waiting for it once is enough"
    world.tier.close()
    assert world.process.registered, "the device may still write there"
    assert not world.gpu.misuses


def test_tier_taken_offline_by_its_owner_answers_no_and_gives_memory_back(world: World) -> None:
    assert all(world.write(2))
    world.tier.take_offline("the engine has gone")
    world.tier.take_offline("again")
    assert world.reasons == ["the engine has gone"]
    assert world.read(2) == [False, False]
    world.tier.format(Format(segment_id=9, first_generation=4))  # the core may not know yet
    assert world.write(1, generation=5) == [False]
    world.tier.close()
    assert not world.process.registered and not world.gpu.used_bytes
    world.tier = World().tier  # for the fixture to close


def test_memory_that_cannot_be_given_back_is_told() -> None:
    world = World()
    world.process.fail("unregister", cuda.INVALID_VALUE)
    world.tier.close()
    assert "not given back" in world.warnings[0]


# ---- who may open it ----


def test_slab_is_exported_to_its_own_domain_alone(world: World) -> None:
    with pytest.raises(Forbidden, match="cuda:0 is another domain's"):
        world.tier.export_for("team-b")
    export = world.tier.export_for("team-a")
    assert (export.bus_id, export.offset) == (world.gpu.bus_id, 0)
    assert export.size_bytes == 2 * SEGMENT_BYTES


def test_slab_that_somebody_may_have_open_is_never_freed() -> None:
    world = World()
    client = FakeCuda(world.gpu)
    client.open_handle(world.tier.export_for("team-a").handle)
    world.tier.close()
    assert not world.gpu.misuses and world.gpu.used_bytes


def engines(
    daemon: FakeCuda, engine: FakeCuda, *, offset: int = 0, size: int = SEGMENT_BYTES
) -> HbmTier:
    """A tier on what an engine says of an allocation of one segment."""
    whole = OwnSlab(engine, SEGMENT_BYTES).export()
    export = dataclasses.replace(whole, offset=offset, size_bytes=size)
    return engine_tier(daemon, export, SEGMENT_BYTES, BOOT, "a", OPTIONS, print, lost=print)


@pytest.mark.parametrize(
    ("offset", "size", "words"),
    [
        (0, 2 * SEGMENT_BYTES, "exceed the allocation of 2097152"),
        (4096, SEGMENT_BYTES, "exceed the allocation of 2097152"),
        (0, SEGMENT_BYTES - 1, "need at least a segment"),
        (100, SEGMENT_BYTES, "multiple of 4096"),
        (-4096, SEGMENT_BYTES, "multiple of 4096"),
    ],
)
def test_engines_slab_of_a_false_size_is_refused_and_closed(
    offset: int, size: int, words: str
) -> None:
    gpu = FakeGpu()
    with pytest.raises(InvalidRequest, match=words):
        engines(FakeCuda(gpu), FakeCuda(gpu), offset=offset, size=size)
    assert [found.opened for found in gpu.by_handle.values()] == [0]


def test_engines_slab_on_another_device_is_refused() -> None:
    other = FakeCuda(FakeGpu(bus_id="0000:41:00.0"))
    with pytest.raises(InvalidRequest, match=r"0000:41:00.0, not on 0000:01:00.0"):
        engines(FakeCuda(FakeGpu()), other)


def test_engines_slab_with_a_foreign_handle_is_refused() -> None:
    gpu = FakeGpu()
    export = dataclasses.replace(OwnSlab(FakeCuda(gpu), SEGMENT_BYTES).export(), handle=bytes(64))
    with pytest.raises(InvalidRequest, match=r"cannot be opened on 0000:01:00\.0"):
        engine_tier(FakeCuda(gpu), export, SEGMENT_BYTES, BOOT, "a", OPTIONS, print, lost=print)


def test_engines_slab_is_passed_on_with_the_engines_handle_and_closed_at_the_end() -> None:
    gpu = FakeGpu()
    daemon, engine, client = FakeCuda(gpu), FakeCuda(gpu), FakeCuda(gpu)
    tier = engines(daemon, engine)
    opened = client.open_handle(tier.export_for("a").handle)
    [allocation] = gpu.by_handle.values()
    assert allocation.opened == 2
    tier.take_offline("its engine is gone")
    tier.close()
    client.close_handle(opened)
    assert allocation.opened == 0 and not gpu.misuses and not daemon.registered


# ---- room, loads ----


def test_jobs_beyond_the_queue_have_no_room(world: World) -> None:
    source = data(1)
    moves = moves_of(source, 1)
    assert world.tier.has_room()
    with world.process._lock:  # the device is busy
        jobs = [world.tier.write(moves, lambda _: source) for _ in range(4)]
        assert not world.tier.has_room()
    assert all(job.result().all() for job in jobs)
    assert world.tier.has_room()


@given(st.lists(st.integers(0, 90), max_size=9), st.integers(1, 50))
def test_loads_of_any_blocks_carry_every_byte_once_and_in_order(
    sizes: list[int], half_bytes: int
) -> None:
    made = list(loads(sizes, half_bytes))
    pieces = [piece for load in made for piece in load]
    carried = [(p.row, p.start + byte) for p in pieces for byte in range(p.size)]
    assert carried == [(row, byte) for row, size in enumerate(sizes) for byte in range(size)]
    for load in made:
        ends = [0, *(piece.at + piece.size for piece in load)]
        assert [piece.at for piece in load] == ends[:-1] and ends[-1] <= half_bytes
    lasts = [piece.row for piece in pieces if piece.is_last]
    assert lasts == [row for row, size in enumerate(sizes) if size]
    assert all(len(load) > 0 for load in made)
