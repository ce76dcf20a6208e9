"""The few CUDA calls that memory on a device needs, behind one protocol.

::

    HbmTier, Lane, OpenSlab --> CudaDevice <-+- DriverDevice   libcuda.so.1 (cuda_driver.py)
                                             +- FakeCuda       host memory (anchorstore/testing)
    who opens them ------> CudaPlatform <----+- DriverPlatform, FakePlatform

It is the driver's interface, not the runtime's or torch's: libcuda.so.1 comes with the kernel's
driver, so the daemon needs no wheel of some GB; and a refused call is a return value here, while
the runtime keeps it and reports it again from somebody else's next kernel.

An error is one of four kinds, and what follows depends on the kind alone::

    CudaError
      x OutOfDeviceMemory   ask for less, or later
      x CudaUnavailable     no driver, no such device
      x DeviceStuck         no answer in time: what was asked may still happen
      x DeviceLost          every later call fails too: what lay there is gone
"""

from __future__ import annotations

from typing import Protocol

HANDLE_BYTES = 64  # of an exported allocation

SUCCESS = 0
OUT_OF_MEMORY = 2
INVALID_VALUE = 1
INVALID_CONTEXT = 201
NOT_READY = 600
ILLEGAL_ADDRESS = 700
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
NOT_SUPPORTED = 801
UNKNOWN = 999

UNAVAILABLE_CODES = frozenset({3, 34, 36, 46, 100, 101, 102, 802, 803, 804, 805, 807, 808, 809})
"""No driver, an older one, a stub of one, or no device that this process may use."""

LOST_CODES = frozenset(
    {4, 214, 220, 226, 702, 709, 710, *range(714, 720), 721, 806, 810, 911, UNKNOWN}
    | {ILLEGAL_ADDRESS}
)
"""The context is beyond repair: each later call in it returns the same."""


class CudaError(Exception):
    """A call that CUDA refused.

    Attributes:
        call: its name.
        code: CUresult; 0 where no call was made.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})" if code else f"{call}: {text}")
        self.call, self.code = call, code


class OutOfDeviceMemory(CudaError):
    """The device has not that much memory free."""


class CudaUnavailable(CudaError):
    """There is no driver or no such device."""


class DeviceStuck(CudaError):
    """The device did not finish in time."""


class DeviceLost(CudaError):
    """The device, or this process's context on it, is gone."""


def error_of(call: str, code: int, text: str) -> CudaError:
    """The error that a result code other than success stands for."""
    assert code != SUCCESS, f"{call} succeeded"
    if code == OUT_OF_MEMORY:
        return OutOfDeviceMemory(call, code, text)
    if code in UNAVAILABLE_CODES:
        return CudaUnavailable(call, code, text)
    if code in LOST_CODES:
        return DeviceLost(call, code, text)
    return CudaError(call, code, text)


class CudaDevice(Protocol):
    """One device as one process sees it.  Any thread may call; every call may raise CudaError.

    Addresses and streams are integers; an address means something in this process alone.
    """

    @property
    def ordinal(self) -> int:
        """Its number among the devices that this process sees."""

    @property
    def bus_id(self) -> str:
        """Its place on the host's bus, e.g. "0000:3B:00.0": the same in every process."""

    def free_bytes(self) -> int:
        """Device memory that nobody has taken."""

    def allocate(self, size_bytes: int) -> int:
        """New device memory; OutOfDeviceMemory where it cannot be had."""

    def free(self, address: int) -> None:
        """Gives an allocation back.  Nobody may have its handle open."""

    def extent(self, address: int) -> tuple[int, int]:
        """Base and bytes of the allocation around an address, own or opened."""

    def export_handle(self, address: int) -> bytes:
        """HANDLE_BYTES with which another process opens the whole allocation, read-write."""

    def open_handle(self, handle: bytes) -> int:
        """Maps another process's allocation; not one's own."""

    def close_handle(self, address: int) -> None:
        """Ends such a mapping."""

    def register(self, address: int, size_bytes: int, *, read_only: bool = False) -> None:
        """Pins host memory, so that copies from and to it need no detour.  `read_only` for memory
        that this process cannot write; not every device takes it."""

    def unregister(self, address: int) -> None:
        """Ends a registration; `address` is where it began."""

    def make_stream(self) -> int:
        """A queue of copies beside all others."""

    def drop_stream(self, stream: int) -> None:
        """Ends a stream."""

    def to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queues a copy from host memory, which must keep still until the stream has finished."""

    def to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queues a copy to host memory."""

    def on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queues a copy within the device."""

    def finish(self, stream: int, seconds: float) -> None:
        """Returns once everything queued is done; DeviceStuck after `seconds`."""

    def release(self) -> None:
        """Lets go of the device."""


class CudaPlatform(Protocol):
    """The devices that one process sees.  Every call may raise CudaError."""

    def device(self, ordinal: int) -> CudaDevice:
        """By number, CUDA_VISIBLE_DEVICES counted in; CudaUnavailable where there is none."""

    def device_at(self, bus_id: str) -> CudaDevice:
        """The device that another process means; CudaUnavailable where this one does not see it."""
