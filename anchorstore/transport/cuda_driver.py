"""A CUDA device by way of the driver's own library, libcuda.so.1, and ctypes.

The signatures below are those of cuda.h, stable since CUDA 4 (`_v2` is part of a symbol's name).
Calls run in the device's primary context, which this process's torch shares, pushed for the one
call and popped again: whatever context or device the calling thread had, it has afterwards.
"""

from __future__ import annotations

import ctypes
import time

from anchorstore.transport import cuda

LIBRARY = "libcuda.so.1"
REGISTER_BYTES_MAX = 64 * 2**30  # one call for 512 GiB fails on some drivers

_DEVICE, _ADDRESS, _POINTER = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
_SIZE, _FLAGS, _TEXT = ctypes.c_size_t, ctypes.c_uint, ctypes.c_char_p
_STREAM_NON_BLOCKING = 1
_OPEN_WITH_PEER_ACCESS = 1
_REGISTER_PORTABLE, _REGISTER_READ_ONLY = 1, 8
_BUS_ID_BYTES = 32
_POLL_SECONDS_MIN, _POLL_SECONDS_MAX = 20e-6, 1e-3
_POLLS_WITHOUT_SLEEP = 50


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which travels by value."""

    _fields_ = [("reserved", ctypes.c_char * cuda.HANDLE_BYTES)]


_OUT = ctypes.POINTER
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (_FLAGS,),
    "cuDriverGetVersion": (_OUT(ctypes.c_int),),
    "cuDeviceGetCount": (_OUT(ctypes.c_int),),
    "cuDeviceGet": (_OUT(_DEVICE), ctypes.c_int),
    "cuDeviceGetName": (_TEXT, ctypes.c_int, _DEVICE),
    "cuDeviceGetAttribute": (_OUT(ctypes.c_int), ctypes.c_int, _DEVICE),
    "cuDeviceGetPCIBusId": (_TEXT, ctypes.c_int, _DEVICE),
    "cuDevicePrimaryCtxRetain": (_OUT(_POINTER), _DEVICE),
    "cuDevicePrimaryCtxRelease_v2": (_DEVICE,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_OUT(_POINTER),),
    "cuMemGetInfo_v2": (_OUT(_SIZE), _OUT(_SIZE)),
    "cuMemAlloc_v2": (_OUT(_ADDRESS), _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetAddressRange_v2": (_OUT(_ADDRESS), _OUT(_SIZE), _ADDRESS),
    "cuIpcGetMemHandle": (_OUT(_Handle), _ADDRESS),
    "cuIpcOpenMemHandle_v2": (_OUT(_ADDRESS), _Handle, _FLAGS),
    "cuIpcCloseMemHandle": (_ADDRESS,),
    "cuMemHostRegister_v2": (_POINTER, _SIZE, _FLAGS),
    "cuMemHostUnregister": (_POINTER,),
    "cuStreamCreate": (_OUT(_POINTER), _FLAGS),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamQuery": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuGetErrorName": (ctypes.c_int, _OUT(_TEXT)),
    "cuGetErrorString": (ctypes.c_int, _OUT(_TEXT)),
}


class Driver:
    """The loaded library.  CudaUnavailable where there is none, or no device to be had."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, types in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = types, ctypes.c_int
        except (OSError, AttributeError) as error:
            raise cuda.CudaUnavailable(library, 0, f"no CUDA driver: {error}") from error
        self.call("cuInit", 0)

    def result(self, name: str, *arguments: object) -> int:
        """The result code of a call."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Makes a call; CudaError where it does not succeed."""
        code = self.result(name, *arguments)
        if code != cuda.SUCCESS:
            raise cuda.error_of(name, code, self.text_of(code))

    def text_of(self, code: int) -> str:
        """What a result code means, in the driver's words."""
        texts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if self.result(name, code, ctypes.byref(text)) == cuda.SUCCESS and text.value:
                texts.append(text.value.decode(errors="replace"))
        return ", ".join(texts) or "unknown error"

    @property
    def version(self) -> int:
        """Newest CUDA that the driver knows, e.g. 13000 for 13.0."""
        found = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(found))
        return found.value

    @property
    def devices(self) -> int:
        """Devices that this process sees."""
        found = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def device(self, ordinal: int) -> int:
        """Handle of a device; CudaUnavailable where this process does not see it."""
        if not 0 <= ordinal < self.devices:
            raise cuda.CudaUnavailable(
                f"cuda:{ordinal}", 0, f"this process sees {self.devices} devices"
            )
        found = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(found), ordinal)
        return found.value

    def bus_id(self, ordinal: int) -> str:
        """Where a device is; needs no context on it."""
        text = ctypes.create_string_buffer(_BUS_ID_BYTES)
        self.call("cuDeviceGetPCIBusId", text, _BUS_ID_BYTES, self.device(ordinal))
        return text.value.decode()

    def ordinal_at(self, bus_id: str) -> int:
        """The device that another process means; CudaUnavailable where this one sees none there."""
        for ordinal in range(self.devices):
            if self.bus_id(ordinal) == bus_id:
                return ordinal
        raise cuda.CudaUnavailable(bus_id, 0, "this process sees no device there")


def device_count(library: str = LIBRARY) -> int:
    """Devices that this process sees; 0 without a driver."""
    try:
        return Driver(library).devices
    except cuda.CudaUnavailable:
        return 0


class DriverDevice:
    """See anchorstore.transport.cuda.CudaDevice.

    Args:
        ordinal: which of the devices that this process sees (CUDA_VISIBLE_DEVICES counts).
    """

    def __init__(self, ordinal: int, library: str = LIBRARY) -> None:
        self.driver = Driver(library)
        self._ordinal = ordinal
        self._device = self.driver.device(ordinal)
        self._bus_id = self.driver.bus_id(ordinal)
        context = ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._context = context

    @property
    def ordinal(self) -> int:
        """See CudaDevice."""
        return self._ordinal

    @property
    def bus_id(self) -> str:
        """See CudaDevice."""
        return self._bus_id

    @property
    def name(self) -> str:
        """What its maker calls it."""
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode(errors="replace")

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute."""
        found = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(found), number, self._device)
        return found.value

    def _result(self, name: str, *arguments: object) -> int:
        self.driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            return self.driver.result(name, *arguments)
        finally:
            self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        code = self._result(name, *arguments)
        if code != cuda.SUCCESS:
            raise cuda.error_of(name, code, self.driver.text_of(code))

    # ---- memory ----

    def free_bytes(self) -> int:
        """See CudaDevice."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size_bytes: int) -> int:
        """See CudaDevice."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size_bytes)
        return address.value

    def free(self, address: int) -> None:
        """See CudaDevice."""
        self._call("cuMemFree_v2", address)

    def extent(self, address: int) -> tuple[int, int]:
        """See CudaDevice."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        return base.value, size.value

    def export_handle(self, address: int) -> bytes:
        """See CudaDevice."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def open_handle(self, handle: bytes) -> int:
        """See CudaDevice."""
        address = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, _OPEN_WITH_PEER_ACCESS)
        return address.value

    def close_handle(self, address: int) -> None:
        """See CudaDevice."""
        self._call("cuIpcCloseMemHandle", address)

    def register(self, address: int, size_bytes: int, *, read_only: bool = False) -> None:
        """See CudaDevice."""
        assert 0 < size_bytes <= REGISTER_BYTES_MAX, f"{size_bytes} bytes in one registration"
        flags = _REGISTER_PORTABLE | (_REGISTER_READ_ONLY if read_only else 0)
        self._call("cuMemHostRegister_v2", address, size_bytes, flags)

    def unregister(self, address: int) -> None:
        """See CudaDevice."""
        self._call("cuMemHostUnregister", address)

    # ---- copies ----

    def make_stream(self) -> int:
        """See CudaDevice."""
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), _STREAM_NON_BLOCKING)
        assert stream.value is not None, "a created stream is not the default one"
        return stream.value

    def drop_stream(self, stream: int) -> None:
        """See CudaDevice."""
        self._call("cuStreamDestroy_v2", stream)

    def to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size_bytes, stream)

    def to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        self._call("cuMemcpyDtoHAsync_v2", target, source, size_bytes, stream)

    def on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        self._call("cuMemcpyDtoDAsync_v2", target, source, size_bytes, stream)

    def finish(self, stream: int, seconds: float) -> None:
        """See CudaDevice.  Polls: the driver's own wait knows no deadline."""
        end, polls, pause = time.monotonic() + seconds, 0, _POLL_SECONDS_MIN
        while (code := self._result("cuStreamQuery", stream)) == cuda.NOT_READY:
            if time.monotonic() >= end:
                raise cuda.DeviceStuck("cuStreamQuery", 0, f"not done after {seconds:g} s")
            polls += 1
            if polls > _POLLS_WITHOUT_SLEEP:
                time.sleep(pause)
                pause = min(2 * pause, _POLL_SECONDS_MAX)
        if code != cuda.SUCCESS:
            raise cuda.error_of("cuStreamQuery", code, self.driver.text_of(code))

    def release(self) -> None:
        """See CudaDevice."""
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self._device)


class DriverPlatform:
    """See anchorstore.transport.cuda.CudaPlatform."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = library

    def device(self, ordinal: int) -> DriverDevice:
        """See CudaPlatform."""
        return DriverDevice(ordinal, self._library)

    def device_at(self, bus_id: str) -> DriverDevice:
        """See CudaPlatform."""
        return DriverDevice(Driver(self._library).ordinal_at(bus_id), self._library)
