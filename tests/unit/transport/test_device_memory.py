"""Goal: a slab is opened as its owner described it, and nothing beyond it is ever addressed; and
the fake that stands for the device hides no mistake.
Method: two processes of the shipped fake.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from anchorstore.errors import InvalidRequest
from anchorstore.testing.fake_cuda import FakeCuda, FakeGpu
from anchorstore.transport import cuda
from anchorstore.transport.device_memory import OpenSlab, SlabExport

SIZE = 1 << 20


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(capacity_bytes=4 * SIZE)


@pytest.fixture
def owner(gpu: FakeGpu) -> FakeCuda:
    return FakeCuda(gpu)


@pytest.fixture
def other(gpu: FakeGpu) -> FakeCuda:
    return FakeCuda(gpu, ordinal=1)


def exported(owner: FakeCuda, offset: int = 0, size: int = SIZE) -> SlabExport:
    handle = owner.export_handle(owner.allocate(SIZE))
    return SlabExport(owner.bus_id, handle, offset, size)


def fill(process: FakeCuda, address: int, byte: int, size: int) -> None:
    source = np.full(size, byte, np.uint8)
    stream = process.make_stream()
    process.register(source.ctypes.data, size)
    process.to_device(address, source.ctypes.data, size, stream)
    process.finish(stream, 1.0)
    process.unregister(source.ctypes.data)
    process.drop_stream(stream)


def test_slab_opened_elsewhere_shows_what_its_owner_wrote(owner: FakeCuda, other: FakeCuda) -> None:
    address = owner.allocate(SIZE)
    fill(owner, address + 4096 + 10, 42, 5)
    slab = OpenSlab(other, SlabExport(owner.bus_id, owner.export_handle(address), 4096, 8192))
    target, stream = np.zeros(7, np.uint8), other.make_stream()
    other.to_host(target.ctypes.data, slab.place(9, 7), 7, stream)
    other.finish(stream, 1.0)
    assert target[1:6].tolist() == [42] * 5 and target[0] != 42
    slab.close()


def test_piece_of_a_slab_is_described_for_other_libraries(owner: FakeCuda, other: FakeCuda) -> None:
    slab = OpenSlab(other, exported(owner, offset=8192, size=4096))
    shown = slab.view(96, 4000).__cuda_array_interface__
    assert shown["data"] == (slab.address + 96, False)
    assert (shown["shape"], shown["typestr"], shown["version"]) == ((4000,), "|u1", 3)


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (SIZE, 1), (0, SIZE + 1), (5, -6)])
def test_piece_beyond_the_slab_has_no_address(
    owner: FakeCuda, other: FakeCuda, start: int, size: int
) -> None:
    slab = OpenSlab(other, exported(owner))
    assert slab.place(SIZE, 0) == slab.address + SIZE
    with pytest.raises(InvalidRequest, match=f"exceed its {SIZE} bytes"):
        slab.place(start, size)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"handle": bytes(63)}, "63 bytes, not 64"),
        ({"bus_id": ""}, "names no device"),
        ({"bus_id": "x" * 33}, "names no device"),
        ({"size_bytes": 0}, "must be above 0"),
        ({"offset": 1}, "multiple of 4096"),
    ],
)
def test_export_that_cannot_be_one_is_refused(
    owner: FakeCuda, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        dataclasses.replace(exported(owner), **change)


# ---- the fake ----


def test_fake_copy_of_pinned_memory_happens_when_it_is_waited_for(owner: FakeCuda) -> None:
    address, stream = owner.allocate(4096), owner.make_stream()
    memory = np.full(4096, 1, np.uint8)
    owner.register(memory.ctypes.data, 4096)
    owner.to_device(address, memory.ctypes.data, 4096, stream)
    memory[:] = 2  # too early: this is what will travel
    owner.finish(stream, 1.0)
    owner.to_host(memory.ctypes.data, address, 4096, stream)
    memory[:] = 3
    owner.finish(stream, 1.0)
    assert set(memory.tolist()) == {2}
    owner.drop_stream(stream)


def test_fake_copy_outside_of_any_memory_loses_the_context(
    owner: FakeCuda, other: FakeCuda
) -> None:
    address, stream = owner.allocate(4096), owner.make_stream()
    memory = np.zeros(4097, np.uint8)
    with pytest.raises(cuda.DeviceLost, match="illegal memory access"):
        owner.to_device(address, memory.ctypes.data, 4097, stream)
    with pytest.raises(cuda.DeviceLost):
        owner.free_bytes()
    assert other.free_bytes() > 0, "another process goes on"


def test_fake_address_means_nothing_in_another_process(owner: FakeCuda, other: FakeCuda) -> None:
    address = owner.allocate(4096)
    assert other.allocate(4096) != address
    with pytest.raises(cuda.CudaError):
        other.extent(address)


def test_fake_handle_opens_in_another_process_and_never_in_its_own(
    owner: FakeCuda, other: FakeCuda
) -> None:
    handle = owner.export_handle(owner.allocate(4096))
    with pytest.raises(cuda.CudaError, match="invalid device context"):
        owner.open_handle(handle)
    assert other.open_handle(handle) == other.open_handle(handle)


def test_fake_handle_opened_twice_is_closed_twice(
    gpu: FakeGpu, owner: FakeCuda, other: FakeCuda
) -> None:
    memory = owner.allocate(4096)
    handle = owner.export_handle(memory)
    address = other.open_handle(handle)
    other.open_handle(handle)
    other.close_handle(address)
    assert other.extent(address) == (address, 4096)
    other.close_handle(address)
    with pytest.raises(cuda.CudaError):
        other.close_handle(address)
    owner.free(memory)
    assert not gpu.misuses


def test_fake_memory_freed_while_open_or_in_use_is_a_misuse(
    gpu: FakeGpu, owner: FakeCuda, other: FakeCuda
) -> None:
    address, stream = owner.allocate(4096), owner.make_stream()
    other.open_handle(owner.export_handle(address))
    memory = np.zeros(4096, np.uint8)
    owner.register(memory.ctypes.data, 4096)
    owner.to_device(address, memory.ctypes.data, 4096, stream)
    owner.free(address)
    owner.drop_stream(stream)
    assert gpu.misuses == ["freed while 1 have it open", "a stream was dropped with copies on it"]


def test_fake_registration_overlapping_another_is_refused(owner: FakeCuda) -> None:
    memory = np.zeros(3 * 4096, np.uint8)
    owner.register(memory.ctypes.data, 8192)
    with pytest.raises(cuda.CudaError, match="already mapped"):
        owner.register(memory.ctypes.data + 4096, 4096)
    with pytest.raises(cuda.CudaError, match="does not correspond"):
        owner.unregister(memory.ctypes.data + 4096)


def test_fake_device_is_full_when_it_is(gpu: FakeGpu, owner: FakeCuda, other: FakeCuda) -> None:
    addresses = [owner.allocate(SIZE) for _ in range(3)]
    with pytest.raises(cuda.OutOfDeviceMemory):
        other.allocate(SIZE + 1)
    owner.free(addresses[0])
    assert other.free_bytes() == 2 * SIZE and gpu.used_bytes == 2 * SIZE
