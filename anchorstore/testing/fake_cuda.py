"""CUDA's few calls on host memory: one device that several "processes" share, and what may fail.

::

    FakeGpu                       what the device is and holds; breaks when told
      ^         ^
    FakeCuda  FakeCuda            one process each: addresses, handles, streams, pinned memory

It is as unhelpful as the real one where that finds mistakes: a copy between pinned memory and the
device happens when its stream is waited for and no sooner; an address of another process means
nothing; an address outside of any allocation kills the context for good; memory freed while
another process has it open is noted in `FakeGpu.misuses`.  Its limits are an honest part of it,
too: no time passes, and the order between streams is the order in which they are waited for.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from anchorstore.transport import cuda

_ADDRESS_STEP = 1 << 40  # between the allocations of one process
_NAMES = {
    cuda.INVALID_VALUE: "invalid argument",
    cuda.OUT_OF_MEMORY: "out of memory",
    cuda.INVALID_CONTEXT: "invalid device context",
    cuda.ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    cuda.HOST_MEMORY_ALREADY_REGISTERED: "part or all of the memory is already mapped",
    cuda.HOST_MEMORY_NOT_REGISTERED: "pointer does not correspond to a registered memory region",
    cuda.NOT_SUPPORTED: "operation not supported",
}


def _error(call: str, code: int) -> cuda.CudaError:
    return cuda.error_of(call, code, _NAMES.get(code, "injected"))


@dataclasses.dataclass(eq=False, slots=True)
class Allocation:
    """A piece of the device's memory.  `opened` counts the processes that mapped its handle."""

    memory: npt.NDArray[np.uint8]
    handle: bytes
    owner: FakeCuda | None
    opened: int = 0
    is_freed: bool = False


class FakeGpu:
    """A device with `capacity_bytes`, at a place on the bus.

    Attributes:
        lost_code: set it, and every call of every process fails with it from then on.
        is_stuck: set it, and nothing that was queued is ever done.
        misuses: what a real device would have punished by undefined behaviour.
    """

    def __init__(self, capacity_bytes: int = 1 << 30, bus_id: str = "0000:01:00.0") -> None:
        self.capacity_bytes, self.bus_id = capacity_bytes, bus_id
        self.lost_code = cuda.SUCCESS
        self.is_stuck = False
        self.misuses: list[str] = []
        self.by_handle: dict[bytes, Allocation] = {}
        self._numbers = itertools.count(1)

    @property
    def used_bytes(self) -> int:
        """In allocations that were not freed."""
        return sum(found.memory.size for found in self.by_handle.values())

    def take(self, size_bytes: int, owner: FakeCuda) -> Allocation:
        """New memory, full of what lay there before."""
        if size_bytes > self.capacity_bytes - self.used_bytes:
            raise _error("allocate", cuda.OUT_OF_MEMORY)
        handle = next(self._numbers).to_bytes(cuda.HANDLE_BYTES, "little")
        made = Allocation(np.full(size_bytes, 0xA5, np.uint8), handle, owner)
        self.by_handle[handle] = made
        return made

    def find(self, handle: bytes) -> Allocation | None:
        """The allocation that a handle stands for."""
        return self.by_handle.get(handle)

    def give_back(self, allocation: Allocation) -> None:
        """Frees it: nobody opens it any more."""
        allocation.is_freed = True
        del self.by_handle[allocation.handle]


class FakeCuda:
    """See anchorstore.transport.cuda.CudaDevice: one process's view of a FakeGpu.

    Args:
        can_register: False: pinning host memory is refused.
        can_export: False: handles are refused.

    Attributes:
        copies, detours: copies asked for; those of them by way of memory that is not pinned.
        waits: times that a stream was waited for.
        registered: bytes by address, of pinned host memory.
    """

    def __init__(
        self,
        gpu: FakeGpu,
        ordinal: int = 0,
        *,
        can_register: bool = True,
        can_export: bool = True,
    ) -> None:
        self.gpu, self._ordinal = gpu, ordinal
        self.can_register, self.can_export = can_register, can_export
        self.copies = self.detours = self.waits = 0
        self.registered: dict[int, int] = {}
        self.streams: dict[int, collections.deque[Callable[[], None]]] = {}
        self._mapped: dict[int, Allocation] = {}
        self._opened: collections.Counter[int] = (
            collections.Counter()
        )  # of mapped handles, by address
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._lost_code = cuda.SUCCESS
        self._failures: dict[str, list[tuple[int, int]]] = {}

    def fail(self, call: str, code: int, *, after: int = 0) -> None:
        """Makes a later call of that name fail once, after `after` that succeed."""
        self._failures.setdefault(call, []).append((after, code))

    def _begin(self, call: str) -> None:
        """What every call may meet."""
        if self._lost_code or self.gpu.lost_code:
            raise _error(call, self._lost_code or self.gpu.lost_code)
        waiting = self._failures.get(call, [])
        due = [code for after, code in waiting if after == 0]
        self._failures[call] = [(after - 1, code) for after, code in waiting if after]
        if due:
            self._refuse(call, due[0])

    def _refuse(self, call: str, code: int) -> None:
        error = _error(call, code)
        if isinstance(error, cuda.DeviceLost):
            self._lost_code = code
        raise error

    # ---- CudaDevice: memory ----

    @property
    def ordinal(self) -> int:
        """See CudaDevice."""
        return self._ordinal

    @property
    def bus_id(self) -> str:
        """See CudaDevice."""
        return self.gpu.bus_id

    def free_bytes(self) -> int:
        """See CudaDevice."""
        with self._lock:
            self._begin("free_bytes")
            return self.gpu.capacity_bytes - self.gpu.used_bytes

    def allocate(self, size_bytes: int) -> int:
        """See CudaDevice."""
        with self._lock:
            self._begin("allocate")
            return self._map(self.gpu.take(size_bytes, self))

    def _map(self, allocation: Allocation) -> int:
        address = next(self._numbers) * _ADDRESS_STEP + (id(self) % 1021) * 4096
        self._mapped[address] = allocation
        return address

    def free(self, address: int) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("free")
            allocation = self._mapped.get(address)
            if allocation is None or allocation.owner is not self:
                self._refuse("free", cuda.INVALID_VALUE)
                return
            if allocation.opened:
                self.gpu.misuses.append(f"freed while {allocation.opened} have it open")
            del self._mapped[address]
            self.gpu.give_back(allocation)

    def _find(self, call: str, address: int, size_bytes: int = 1) -> tuple[int, Allocation]:
        for base, allocation in self._mapped.items():
            if base <= address and address + size_bytes <= base + allocation.memory.size:
                return base, allocation
        raise _error(call, cuda.INVALID_VALUE)

    def extent(self, address: int) -> tuple[int, int]:
        """See CudaDevice."""
        with self._lock:
            self._begin("extent")
            base, allocation = self._find("extent", address)
            return base, allocation.memory.size

    def export_handle(self, address: int) -> bytes:
        """See CudaDevice."""
        with self._lock:
            self._begin("export_handle")
            if not self.can_export:
                self._refuse("export_handle", cuda.NOT_SUPPORTED)
            _, allocation = self._find("export_handle", address)
            if allocation.owner is not self:
                self._refuse("export_handle", cuda.INVALID_VALUE)
            return allocation.handle

    def open_handle(self, handle: bytes) -> int:
        """See CudaDevice."""
        with self._lock:
            self._begin("open_handle")
            allocation = self.gpu.find(handle)
            if allocation is None:
                raise _error("open_handle", cuda.INVALID_VALUE)
            if allocation.owner is self:
                raise _error("open_handle", cuda.INVALID_CONTEXT)
            allocation.opened += 1
            for address, mapped in self._mapped.items():
                if mapped is allocation:
                    self._opened[address] += 1
                    return address
            address = self._map(allocation)
            self._opened[address] = 1
            return address

    def close_handle(self, address: int) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("close_handle")
            allocation = self._mapped.get(address)
            if allocation is None or allocation.owner is self:
                self._refuse("close_handle", cuda.INVALID_VALUE)
                return
            allocation.opened -= 1
            self._opened[address] -= 1
            if not self._opened[address]:
                del self._mapped[address]

    def register(self, address: int, size_bytes: int, *, read_only: bool = False) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("register")
            if not self.can_register or read_only:
                self._refuse("register", cuda.NOT_SUPPORTED)
            if size_bytes <= 0:
                self._refuse("register", cuda.INVALID_VALUE)
            for base, size in self.registered.items():
                if base < address + size_bytes and address < base + size:
                    self._refuse("register", cuda.HOST_MEMORY_ALREADY_REGISTERED)
            self.registered[address] = size_bytes

    def unregister(self, address: int) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("unregister")
            if address not in self.registered:
                self._refuse("unregister", cuda.HOST_MEMORY_NOT_REGISTERED)
            del self.registered[address]

    # ---- CudaDevice: copies ----

    def make_stream(self) -> int:
        """See CudaDevice."""
        with self._lock:
            self._begin("make_stream")
            stream = next(self._numbers)
            self.streams[stream] = collections.deque()
            return stream

    def drop_stream(self, stream: int) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("drop_stream")
            if self.streams.pop(stream):
                self.gpu.misuses.append("a stream was dropped with copies on it")

    def to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        self._copy("to_device", target, source, size_bytes, stream)

    def to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        self._copy("to_host", source, target, size_bytes, stream)

    def _copy(self, call: str, place: int, host: int, size: int, stream: int) -> None:
        with self._lock:
            self._begin(call)
            self.copies += 1
            on_device = self._found(call, place, size)

            def act() -> None:
                address = on_device()
                if address is not None:
                    ends = (address, host) if call == "to_device" else (host, address)
                    ctypes.memmove(*ends, size)

            self.streams[stream].append(act)
            if not self._is_pinned(host, size):
                self.detours += 1
                self._drain(stream)

    def on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("on_device")
            self.copies += 1
            ends = [self._found("on_device", place, size_bytes) for place in (target, source)]

            def act() -> None:
                to, from_ = (end() for end in ends)
                if to is not None and from_ is not None:
                    ctypes.memmove(to, from_, size_bytes)

            self.streams[stream].append(act)

    def _found(self, call: str, place: int, size_bytes: int) -> Callable[[], int | None]:
        """Where those bytes of the device lie in host memory, asked when the copy happens; an
        address that is none ends the context."""
        try:
            base, allocation = self._find(call, place, size_bytes)
        except cuda.CudaError:
            self._refuse(call, cuda.ILLEGAL_ADDRESS)
            raise AssertionError("refused above") from None

        def address() -> int | None:
            if allocation.is_freed:
                self.gpu.misuses.append(f"{call} of freed memory")
                return None
            return int(allocation.memory.ctypes.data) + place - base

        return address

    def _is_pinned(self, address: int, size_bytes: int) -> bool:
        return any(
            base <= address and address + size_bytes <= base + size
            for base, size in self.registered.items()
        )

    def _drain(self, stream: int) -> None:
        while self.streams[stream]:
            self.streams[stream].popleft()()

    def finish(self, stream: int, seconds: float) -> None:
        """See CudaDevice."""
        with self._lock:
            self.waits += 1
            self._begin("finish")
            if self.gpu.is_stuck:
                raise cuda.DeviceStuck("finish", 0, f"not done after {seconds:g} s")
            self._drain(stream)

    def release(self) -> None:
        """See CudaDevice."""
        with self._lock:
            self._begin("release")


class FakePlatform:
    """See anchorstore.transport.cuda.CudaPlatform: one process that sees these devices."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.processes = [FakeCuda(gpu, ordinal) for ordinal, gpu in enumerate(gpus)]

    def device(self, ordinal: int) -> FakeCuda:
        """See CudaPlatform."""
        if ordinal >= len(self.processes):
            text = f"this process sees {len(self.processes)} devices"
            raise cuda.CudaUnavailable(f"cuda:{ordinal}", 0, text)
        return self.processes[ordinal]

    def device_at(self, bus_id: str) -> FakeCuda:
        """See CudaPlatform."""
        for process in self.processes:
            if process.bus_id == bus_id:
                return process
        raise cuda.CudaUnavailable(bus_id, 0, "this process sees no device there")
