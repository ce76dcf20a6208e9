"""Goal: each call reaches the driver's library with the arguments that cuda.h declares.
Method: compile a libcuda on host memory (libcuda_stub.c; against the real cuda.h where there is
one) and drive it by ctypes.  What only a device can show is in tests/gpu.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.transport import cuda
from anchorstore.transport.cuda_driver import Driver, DriverDevice, DriverPlatform, device_count

STUB = pathlib.Path(__file__).with_name("libcuda_stub.c")
CUDA_HOME = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    built = tmp_path_factory.mktemp("stub") / "libcuda_stub.so"
    header = CUDA_HOME / "include"
    real = ["-DWITH_CUDA_H", f"-I{header}"] if (header / "cuda.h").exists() else []
    subprocess.run(
        [compiler, "-w", *real, "-shared", "-fPIC", "-o", str(built), str(STUB)],
        check=True,
    )
    return str(built)


@pytest.fixture
def stub(library: str) -> Iterator[ctypes.CDLL]:
    """The library's own variables; it must be left in balance."""
    loaded = ctypes.CDLL(library)
    for name in ("stub_stuck", "stub_query_result"):
        ctypes.c_int.in_dll(loaded, name).value = 0
    yield loaded
    assert value(loaded, "stub_depth") == 0, "every context pushed is popped"
    assert value(loaded, "stub_streams") == 0


@pytest.fixture
def device(library: str, stub: ctypes.CDLL) -> Iterator[DriverDevice]:
    made = DriverDevice(1, library)
    yield made
    made.release()
    assert value(stub, "stub_contexts") == 0


def value(stub: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(stub, name).value


def test_host_without_a_driver_has_no_device() -> None:
    assert device_count("libcuda-that-is-not-there.so.1") == 0
    with pytest.raises(cuda.CudaUnavailable, match=r"not-there.so.1: no CUDA driver"):
        Driver("libcuda-that-is-not-there.so.1")


def test_library_without_cuda_in_it_is_no_driver() -> None:
    with pytest.raises(cuda.CudaUnavailable, match=r"no CUDA driver: .*cuInit"):
        Driver("libc.so.6")


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_device_beyond_those_seen_is_refused(library: str, ordinal: int) -> None:
    with pytest.raises(cuda.CudaUnavailable, match=f"cuda:{ordinal}: this process sees 2 devices"):
        DriverDevice(ordinal, library)


def test_device_says_what_and_where_it_is(device: DriverDevice, library: str) -> None:
    assert device_count(library) == 2
    assert (device.ordinal, device.bus_id, device.name) == (1, "0000:3B:00.0", "Stub 1")
    assert device.attribute(113) == 41_113
    assert device.driver.version == 13_000
    assert device.free_bytes() == 1 << 26


def test_device_of_another_process_is_known_by_its_place_on_the_bus(library: str) -> None:
    driver = Driver(library)
    assert [driver.ordinal_at(place) for place in ("0000:3B:00.0", "0000:02:00.0")] == [1, 0]
    with pytest.raises(cuda.CudaUnavailable, match=r"0000:41:00\.0: .* sees no device there"):
        driver.ordinal_at("0000:41:00.0")


def test_memory_is_taken_measured_and_given_back(device: DriverDevice) -> None:
    address = device.allocate(100_000)
    assert address > 2**32, "addresses keep their upper half"
    assert device.extent(address + 99_999) == (address, 100_000)
    device.free(address)
    with pytest.raises(cuda.CudaError, match=r"cuMemFree_v2: CUDA_ERROR_STUB, as the .* \(1\)"):
        device.free(address)


def test_memory_beyond_the_device_is_out_of_memory(device: DriverDevice) -> None:
    with pytest.raises(cuda.OutOfDeviceMemory, match=r"CUDA_ERROR_OUT_OF_MEMORY, out of memory"):
        device.allocate(1 << 27)


def test_handle_travels_whole_and_by_value(device: DriverDevice, stub: ctypes.CDLL) -> None:
    address = device.allocate(4096)
    handle = device.export_handle(address)
    assert len(handle) == cuda.HANDLE_BYTES and handle[62:] == b"\7\11"
    assert device.open_handle(handle) == address
    assert value(stub, "stub_open_flags") == 1
    device.close_handle(address)
    with pytest.raises(cuda.CudaError):
        device.open_handle(bytes(64))
    device.free(address)


def test_registration_says_whether_it_is_read_only(device: DriverDevice, stub: ctypes.CDLL) -> None:
    memory = np.zeros(8192, np.uint8)
    device.register(memory.ctypes.data, 8192)
    assert value(stub, "stub_register_flags") == 1
    device.unregister(memory.ctypes.data)
    with pytest.raises(cuda.CudaError, match="cuMemHostRegister_v2"):
        device.register(memory.ctypes.data, 8192, read_only=True)
    assert value(stub, "stub_register_flags") == 9


def test_copies_arrive_when_their_stream_has_finished(
    device: DriverDevice, stub: ctypes.CDLL
) -> None:
    address, stream = device.allocate(70_000), device.make_stream()
    assert stream > 2**32 and value(stub, "stub_stream_flags") == 1
    source = np.arange(70_000, dtype=np.uint32).view(np.uint8)[:70_000]
    target = np.zeros(60_000, np.uint8)
    device.to_device(address, source.ctypes.data, 70_000, stream)
    device.to_host(target.ctypes.data, address + 10_000, 60_000, stream)
    assert not target.any()
    device.finish(stream, seconds=10.0)
    assert np.array_equal(target, source[10_000:])
    device.drop_stream(stream)
    device.free(address)


def test_copy_within_the_device_arrives_when_its_stream_has_finished(device: DriverDevice) -> None:
    source, target, stream = device.allocate(9000), device.allocate(9000), device.make_stream()
    data = np.arange(9000, dtype=np.uint32).view(np.uint8)[:9000]
    found = np.zeros(9000, np.uint8)
    device.to_device(source, data.ctypes.data, 9000, stream)
    device.on_device(target + 1000, source, 8000, stream)
    device.finish(stream, seconds=10.0)
    device.to_host(found.ctypes.data, target, 9000, stream)
    device.finish(stream, seconds=10.0)
    assert np.array_equal(found[1000:], data[:8000])
    with pytest.raises(cuda.CudaError, match="cuMemcpyDtoDAsync_v2"):
        device.on_device(12345, source, 1, stream)
    device.drop_stream(stream)
    device.free(source)
    device.free(target)


def test_platform_finds_a_device_by_number_and_by_place(device: DriverDevice, library: str) -> None:
    platform = DriverPlatform(library)
    for found in (platform.device(1), platform.device_at(device.bus_id)):
        assert (found.ordinal, found.bus_id) == (1, device.bus_id)
        found.release()
    with pytest.raises(cuda.CudaUnavailable, match="sees no device there"):
        platform.device_at("0000:99:00.0")


def test_stream_that_never_finishes_is_stuck(device: DriverDevice, stub: ctypes.CDLL) -> None:
    stream = device.make_stream()
    ctypes.c_int.in_dll(stub, "stub_stuck").value = 1
    with pytest.raises(cuda.DeviceStuck, match=r"not done after 0\.01 s"):
        device.finish(stream, seconds=0.01)
    device.drop_stream(stream)


@pytest.mark.parametrize(("code", "text"), [(700, "as the stub likes"), (999, "unknown error")])
def test_error_of_an_earlier_copy_is_a_lost_device(
    device: DriverDevice, stub: ctypes.CDLL, code: int, text: str
) -> None:
    stream = device.make_stream()
    ctypes.c_int.in_dll(stub, "stub_query_result").value = code
    with pytest.raises(cuda.DeviceLost, match=rf"cuStreamQuery: .*{text} \({code}\)") as lost:
        device.finish(stream, seconds=1.0)
    assert (lost.value.call, lost.value.code) == ("cuStreamQuery", code)
    device.drop_stream(stream)
