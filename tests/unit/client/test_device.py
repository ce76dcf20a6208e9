"""Goal: what is no memory of a device is refused before anything is written, and whatever is wrong
with the daemon's slab there, its blocks come from host memory.
Method: one DeviceSide on the shipped fake, the daemon's side made by hand.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from anchorstore.client.device import DeviceSide, Source, device_bytes, places_of
from anchorstore.client.mapping import Mapped
from anchorstore.errors import InvalidRequest, LeaseExpired, TornBlock
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.transport import cuda
from anchorstore.transport.device_memory import DeviceBytes, SlabExport
from anchorstore.transport.segment import DEVICE_IDS_FROM, PLACE, SegmentShape, format_segment
from anchorstore.wire.v1 import store_pb2 as store

BOOT = bytes(range(16))
SEGMENT_BYTES = 1 << 20
SIZE = 5000
SHAPE = SegmentShape(SEGMENT_BYTES, 8192)
COUNT = 3


class Tensor:
    """What torch and cupy show of device memory."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "|u1", **changes: Any) -> None:
        found = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": None}
        self.__cuda_array_interface__ = found | changes


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        (Tensor((3, 5)), 15),
        (Tensor((3, 5), "<f4"), 60),
        (Tensor((3, 5), "<f4", strides=(20, 4)), 60),
        (Tensor(()), 1),
        (Tensor((0, 5)), 0),
    ],
)
def test_contiguous_memory_is_a_destination(tensor: Tensor, size: int) -> None:
    assert device_bytes(tensor) == DeviceBytes(4096, size)
    assert device_bytes(DeviceBytes(8, size)) == DeviceBytes(8, size)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.zeros(3), "ndarray is no device memory"),
        (Tensor((3, 5), strides=(10, 1)), "not contiguous"),
        (Tensor((3, 5), "<f4", strides=(4, 12)), "not contiguous"),
        (Tensor((3,), data=(4096, True)), "is read-only"),
    ],
)
def test_other_memory_is_no_destination(tensor: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        device_bytes(tensor)


def test_places_of_an_answer_are_as_many_as_its_blocks() -> None:
    assert not places_of(store.BlockColumns(), 2)["segment"].any()
    places = np.ones(2, PLACE)
    assert np.array_equal(places_of(store.BlockColumns(device_places=places.tobytes()), 2), places)
    with pytest.raises(InvalidRequest, match="40 bytes are not 3 places"):
        places_of(store.BlockColumns(device_places=places.tobytes()), 3)


class World:
    """Blocks in host memory, and other bytes in the slab, so that one sees where they came from."""

    def __init__(self) -> None:
        self.gpu = FakeGpu()
        self.daemon, self.device = FakeCuda(self.gpu), FakeCuda(self.gpu, ordinal=1)
        base = self.daemon.allocate(2 * SEGMENT_BYTES)
        handle = self.daemon.export_handle(base)
        self.export = SlabExport(self.gpu.bus_id, handle, 0, 2 * SEGMENT_BYTES)
        self.head = mmap.mmap(-1, SEGMENT_BYTES)
        self.records = format_segment(memoryview(self.head), BOOT, DEVICE_IDS_FROM, 8192, 0)
        self.records["generation"][:COUNT] = 2
        self.memory = np.full((COUNT, SIZE), 7, np.uint8)
        self.target = DeviceBytes(self.device.allocate(COUNT * SIZE), COUNT * SIZE)
        self.verified = 0

    def side(self, export: SlabExport | None = None) -> DeviceSide:
        return DeviceSide(self.device, export or self.export)

    def with_head(self, start: int = SEGMENT_BYTES) -> DeviceSide:
        side = self.side()
        assert side.missing([0, DEVICE_IDS_FROM]) == (DEVICE_IDS_FROM,)
        heads, starts = {DEVICE_IDS_FROM: self.head}, {DEVICE_IDS_FROM: start}
        side.add(BOOT, Mapped(heads, None, None, starts))
        assert side.missing([DEVICE_IDS_FROM]) == ()
        return side

    def copy(self, side: DeviceSide, places: np.ndarray | None = None) -> tuple[int, list[int]]:
        """How many came from the slab, and the first byte of each block that arrived."""

        def verify() -> None:
            self.verified += 1

        if places is None:
            places = np.zeros(COUNT, PLACE)
            places["segment"], places["slot"], places["generation"] = DEVICE_IDS_FROM, range(3), 2
        source = Source(BOOT, places, SIZE, lambda row: memoryview(self.memory[row].tobytes()))
        count = side.copy(source, self.target, 1.0, verify)
        found, stream = np.zeros((COUNT, SIZE), np.uint8), self.device.make_stream()
        self.device.to_host(found.ctypes.data, self.target.address, COUNT * SIZE, stream)
        self.device.finish(stream, 1.0)
        assert (found == found[:, :1]).all()
        return count, found[:, 0].tolist()


OTHERS = 0xA5  # what lies in the fake's memory before anybody writes


@pytest.fixture
def world() -> World:
    return World()


def test_blocks_with_a_copy_come_from_the_slab_and_the_others_do_not(world: World) -> None:
    places = np.zeros(COUNT, PLACE)
    places[1] = (DEVICE_IDS_FROM, 1, 2, 0)
    places[2] = (DEVICE_IDS_FROM + 5, 1, 2, 0)  # a segment whose head could not be had
    assert world.copy(world.with_head(), places) == (1, [7, OTHERS, 7])
    assert world.verified == 1


def test_copy_whose_generation_has_moved_is_no_copy(world: World) -> None:
    side = world.with_head()
    world.records["generation"][1] = 3
    assert world.copy(side) == (2, [OTHERS, 7, OTHERS])


def test_head_that_lies_beyond_the_slab_is_of_no_use(world: World) -> None:
    side = world.with_head(start=2 * SEGMENT_BYTES)
    assert world.copy(side) == (0, [7, 7, 7])


def test_head_of_another_segment_is_of_no_use(world: World) -> None:
    format_segment(memoryview(world.head), BOOT, DEVICE_IDS_FROM + 1, 8192, 4)
    assert world.copy(world.with_head()) == (0, [7, 7, 7])


def test_slot_outside_of_its_segment_gives_the_slab_up(world: World) -> None:
    side = world.with_head()
    places = np.zeros(COUNT, PLACE)
    places["segment"], places["slot"] = DEVICE_IDS_FROM, SHAPE.slots
    assert world.copy(side, places) == (0, [7, 7, 7])
    assert world.copy(side) == (0, [7, 7, 7])


def test_slab_on_another_device_is_not_used(world: World) -> None:
    export = SlabExport("0000:99:00.0", world.export.handle, 0, 4096)
    side = world.side(export)
    assert side.missing([DEVICE_IDS_FROM]) == ()
    assert world.copy(side) == (0, [7, 7, 7])


def test_side_without_a_slab_asks_for_no_heads(world: World) -> None:
    side = DeviceSide(world.device, None)
    assert side.missing([DEVICE_IDS_FROM]) == () and world.copy(side) == (0, [7, 7, 7])


def test_closed_side_has_let_go_of_everything_and_copies_no_more(world: World) -> None:
    side = world.with_head()
    world.copy(side)
    side.close()
    [slab, _] = world.gpu.by_handle.values()
    assert slab.opened == 0
    with pytest.raises(LeaseExpired):
        world.copy(side)


def test_copy_that_is_not_verified_is_an_error(world: World) -> None:
    def verify() -> None:
        raise TornBlock("the pool's slot was given to another block")

    source = Source(BOOT, np.zeros(1, PLACE), SIZE, lambda row: memoryview(bytes(SIZE)))
    with pytest.raises(TornBlock):
        world.side().copy(source, DeviceBytes(world.target.address, SIZE), 1.0, verify)


def test_lent_memory_is_read_at_the_lenders_own_address(world: World) -> None:
    side = world.side()
    mine = world.device.allocate(2 * SEGMENT_BYTES)
    side.lent(mine, 2 * SEGMENT_BYTES)
    offsets = {DEVICE_IDS_FROM: 0}
    side.add(BOOT, Mapped({DEVICE_IDS_FROM: world.head}, None, None, offsets))
    assert world.copy(side)[0] == COUNT
    side.close()
    assert world.device.extent(mine) == (mine, 2 * SEGMENT_BYTES), "it is not ours to close"


def test_device_that_refuses_a_copy_within_it_is_not_asked_again(world: World) -> None:
    side = world.with_head()
    world.device.fail("on_device", cuda.NOT_SUPPORTED, after=1)
    assert world.copy(side) == (0, [7, 7, 7])
    assert side.missing([DEVICE_IDS_FROM]) == ()
