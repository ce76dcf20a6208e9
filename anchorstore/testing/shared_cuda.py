"""A FakeGpu whose memory real processes share: allocations are files in a folder.

::

    daemon's process                 folder                       engine's process
    FakeCuda on SharedFakeGpu --> allocation.<handle>  <-- FakeCuda on SharedFakeGpu
                                  lost, stuck: faults that all of them meet

So a daemon and an engine meet on "a device" as they would on a real one: by a handle that one gives
the other.  Three things it cannot show: capacity counts within each process alone, `opened` counts
are a process's own, and what a killed process had allocated stays until the folder is removed.
"""

from __future__ import annotations

import mmap
import os
import pathlib

import numpy as np

from anchorstore.testing.fake_cuda import Allocation, FakeCuda, FakeGpu
from anchorstore.transport import cuda


class SharedFakeGpu(FakeGpu):
    """See the module.

    Args:
        folder: of this device; every process names the same one.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        capacity_bytes: int = 1 << 30,
        bus_id: str = "0000:01:00.0",
    ) -> None:
        self.folder = folder
        super().__init__(capacity_bytes, bus_id)

    # ---- faults ----

    @property
    def lost_code(self) -> int:
        """See FakeGpu; of every process."""
        return _number(self.folder / "lost")

    @lost_code.setter
    def lost_code(self, code: int) -> None:
        if code:
            (self.folder / "lost").write_text(str(code))

    @property
    def is_stuck(self) -> bool:
        """See FakeGpu; in every process."""
        return (self.folder / "stuck").exists()

    @is_stuck.setter
    def is_stuck(self, stuck: bool) -> None:
        if stuck:
            (self.folder / "stuck").touch()

    # ---- memory ----

    def take(self, size_bytes: int, owner: FakeCuda) -> Allocation:
        """See FakeGpu."""
        if size_bytes > self.capacity_bytes - self.used_bytes:
            raise cuda.error_of("allocate", cuda.OUT_OF_MEMORY, "out of memory")
        handle = os.urandom(cuda.HANDLE_BYTES // 2).hex().encode()
        path = self._path(handle)
        with path.open("xb") as file:
            file.truncate(size_bytes)
        made = Allocation(_mapped(path), handle, owner)
        made.memory[:] = 0xA5
        self.by_handle[handle] = made
        return made

    def find(self, handle: bytes) -> Allocation | None:
        """See FakeGpu."""
        known = super().find(handle)
        if known is None and _is_ours(handle) and self._path(handle).exists():
            known = self.by_handle[handle] = Allocation(_mapped(self._path(handle)), handle, None)
        return known

    def give_back(self, allocation: Allocation) -> None:
        """See FakeGpu."""
        super().give_back(allocation)
        self._path(allocation.handle).unlink()

    @property
    def used_bytes(self) -> int:
        """Of this process's own allocations."""
        return sum(found.memory.size for found in self.by_handle.values() if found.owner)

    def _path(self, handle: bytes) -> pathlib.Path:
        return self.folder / f"allocation.{handle.decode()}"


def _is_ours(handle: bytes) -> bool:
    return all(character in b"0123456789abcdef" for character in handle)


def _mapped(path: pathlib.Path) -> np.ndarray:
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def _number(path: pathlib.Path) -> int:
    try:
        return int(path.read_text() or cuda.SUCCESS)
    except FileNotFoundError:
        return cuda.SUCCESS
