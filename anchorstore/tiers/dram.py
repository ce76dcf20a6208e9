"""The dram tier: a pool of memfd segments that clients map read-only, and staging memories.

::

    daemon                                        client of the segment's domain
    +-----------------------------+               +---------------------------+
    | segment: memfd, mapped r/w  |---descriptor->| mapped read-only          |
    |   sealed: no shrink, grow,  |               |   a writable mapping, a   |
    |   or new writable mapping   |               |   write(2): EPERM         |
    +-----------------------------+               +---------------------------+
    | staging: memfd of a session |<--descriptor--| mapped r/w: the only      |
    |   sealed: no shrink or grow |               |   memory a client writes  |
    +-----------------------------+               +---------------------------+

The seals are what lets the two sides distrust each other: a client cannot damage the pool, nor
truncate its staging memory under the daemon (that would be a SIGBUS).  A segment whose domain
changes gets new memory: whoever still maps the old one keeps only the old bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from anchorstore.errors import CapacityFull, ConfigError
from anchorstore.tiers.base import FormatAction, Progress
from anchorstore.tiers.memory import huge_page_bytes_free
from anchorstore.transport import segment as segments_format
from anchorstore.units import MIB, format_bytes

HUGE_PAGE_BYTES = 2 * MIB
PREFAULT_CHUNK_BYTES = 32 * MIB
DESCRIPTORS_SPARE = 4096  # sockets, staging memories, files, beside the segments' two each

_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1, 2, 4, 16
_MFD_HUGETLB_2MB = 4 | 21 << 26
_MADV_POPULATE_WRITE = 23  # Linux 5.14

Warn = Callable[[str], None]


def _memfd(name: str, size: int, flags: int = 0) -> tuple[int, mmap.mmap]:
    """A new memory file of `size` bytes and its writable mapping; OSError without the memory."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(descriptor, size)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise


class SealedMemory:
    """A memory file that only the daemon can write.  Mappings end with the last view of them."""

    def __init__(self, name: str, size: int, flags: int = 0) -> None:
        self.descriptor, mapping = _memfd(name, size, flags)
        seals = _SEAL_SHRINK | _SEAL_GROW | _SEAL_FUTURE_WRITE | _SEAL_SEAL
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, seals)
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)

    def close(self) -> None:
        """Lets go of the descriptor."""
        os.close(self.descriptor)


class _Region(SealedMemory):
    """One memory file of the pool."""

    def __init__(self, size: int, flags: int) -> None:
        super().__init__("anchorstore-pool", size, flags)
        self.records: segments_format.Records | None = None
        self.segment_id: int | None = None


def _populate(memory: npt.NDArray[np.uint8], start: int, stop: int) -> None:
    """Makes the kernel back memory[start:stop] with pages, without the interpreter's lock."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(memory.ctypes.data + start)
    if libc.madvise(address, ctypes.c_size_t(stop - start), _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code in (12, 14):  # ENOMEM, EFAULT: no page is left
        raise ConfigError(
            f"memory: the host ran out while the pool was touched: {os.strerror(code)}"
        )
    memory[start:stop:4096] = 0  # an older kernel; nothing lies there yet


class DramTier:
    """`segments` regions of `segment_bytes`; see anchorstore.tiers.base.Tier.

    Args:
        boot_id: 16 bytes, written into each segment's header.
        huge_pages: "auto" (where enough are reserved), "never", or "require" (else ConfigError).
        warn: told when huge pages were wanted and could not be had.
    """

    name = "dram"

    def __init__(
        self, segments: int, segment_bytes: int, boot_id: bytes, huge_pages: str, warn: Warn
    ) -> None:
        if segments < 1 or segment_bytes < segments_format.ALIGN_BYTES * 2:
            raise ConfigError(
                f"tiers.dram: {segments} segments of {segment_bytes} bytes hold no block, need at "
                f"least 1 of {2 * segments_format.ALIGN_BYTES}"
            )
        self.segments, self.segment_bytes = segments, segment_bytes
        self._boot_id, self._warn = boot_id, warn
        self.huge_pages = self._wants_huge_pages(huge_pages)
        _raise_descriptor_limit(2 * segments + DESCRIPTORS_SPARE, warn)
        self._regions: list[_Region] = []
        try:
            for _ in range(segments):
                self._regions.append(self._new_region(huge_pages))
        except OSError as error:
            self.close()
            raise ConfigError(
                f"tiers.dram: cannot create {segments} segments of {segment_bytes} bytes: {error}"
            ) from error
        self._index: dict[int, int] = {}

    def _wants_huge_pages(self, mode: str) -> bool:
        if mode == "never":
            return False
        pool = self.segments * self.segment_bytes
        free = huge_page_bytes_free()
        fits = self.segment_bytes % HUGE_PAGE_BYTES == 0 and free >= pool
        if mode == "require" and not fits:
            raise ConfigError(
                f'tiers.dram.huge_pages is "require": the pool of {format_bytes(pool)} in segments '
                f"of {format_bytes(self.segment_bytes)} needs as much in free 2 MiB pages, found "
                f"{format_bytes(free)}"
            )
        return fits

    def _new_region(self, mode: str = "auto") -> _Region:
        """OSError without the memory or a descriptor; small pages where huge ones have run out."""
        if self.huge_pages:
            try:
                return _Region(self.segment_bytes, _MFD_HUGETLB_2MB)
            except OSError as error:
                if mode == "require":
                    raise
                self._warn(f"no huge page for a segment, small pages instead: {error}")
                self.huge_pages = False
        return _Region(self.segment_bytes, 0)

    def prefault(self, progress: Progress, stopped: Callable[[], bool] = lambda: False) -> None:
        """Backs the whole pool with memory; runs in a thread, before the first format.

        `progress` is called after every chunk; `stopped` lets a shutdown end it early.
        """
        done, total = 0, self.segments * self.segment_bytes
        for region in self._regions:
            for start in range(0, self.segment_bytes, PREFAULT_CHUNK_BYTES):
                if stopped():
                    return
                stop = min(start + PREFAULT_CHUNK_BYTES, self.segment_bytes)
                _populate(region.memory, start, stop)
                done += stop - start
                progress(done, total)

    def format(self, action: FormatAction) -> None:
        """See Tier.  New memory is backed as it is written, not here: this runs on the loop.

        OSError where there is none to be had: the core believes it is done, so the daemon stops.
        """
        region = self._regions[action.index]
        if region.segment_id is not None:
            del self._index[region.segment_id]
        if action.fresh_memory:
            region.close()
            region = self._regions[action.index] = self._new_region()
        shape = segments_format.SegmentShape(self.segment_bytes, action.slot_bytes)
        assert shape.slots == action.slots, (shape, action)
        assert action.segment_id not in self._index, action
        region.records = segments_format.format_segment(
            memoryview(region.memory),
            self._boot_id,
            action.segment_id,
            action.slot_bytes,
            action.first_generation,
        )
        region.segment_id = action.segment_id
        self._index[action.segment_id] = action.index

    def memory(self, index: int) -> npt.NDArray[np.uint8]:
        """See Tier."""
        return self._regions[index].memory

    def records(self, index: int) -> segments_format.Records:
        """See Tier."""
        found = self._regions[index].records
        assert found is not None, f"segment at {index} was never formatted"
        return found

    def index_of(self, segment_id: int) -> int:
        """See Tier."""
        return self._index[segment_id]

    def descriptor(self, index: int) -> int:
        """See Tier."""
        return self._regions[index].descriptor

    def close(self) -> None:
        """See Tier."""
        for region in self._regions:
            region.close()
        self._regions.clear()


class Staging:
    """The memory that one session writes; the daemon reads it (or fills it for a remote one).

    It lives until the session has ended and the last copy out of it is done.  Its pages go back to
    the host when it is closed, whoever still maps it: blocks of an ended session never get sealed.
    """

    def __init__(self, size: int) -> None:
        self.descriptor, mapping = _memfd("anchorstore-staging", size)
        fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)
        self.size_bytes, self.is_closed = size, False
        self._mapping = mapping

    def close(self) -> None:
        """Gives the pages back; views of the memory stay good, but show zeros."""
        self.is_closed = True
        with contextlib.suppress(OSError):  # else they go with the last mapping
            self._mapping.madvise(mmap.MADV_REMOVE)
        os.close(self.descriptor)


class StagingPool:
    """Hands out staging memories within one budget.

    Args:
        total_bytes: of all sessions together.
        session_bytes_max: of one session; a larger wish is granted in part.
    """

    def __init__(self, total_bytes: int, session_bytes_max: int) -> None:
        self.total_bytes, self.session_bytes_max = total_bytes, session_bytes_max
        self.used_bytes = 0
        self._of_session: dict[bytes, Staging] = {}

    def granted_bytes(self, wanted: int) -> int:
        """What a wish for `wanted` bytes gets; CapacityFull beyond the budget."""
        size = min(segments_format.align(wanted), self.session_bytes_max)
        if size > self.total_bytes - self.used_bytes:
            raise CapacityFull(
                f"staging: {size} bytes wanted, {self.total_bytes - self.used_bytes} left of "
                f"{self.total_bytes} (limits.staging_total)"
            )
        return size

    def open(self, session_id: bytes, wanted: int) -> int:
        """Gives a session its staging memory; returns its bytes, 0 where none was wanted."""
        assert session_id not in self._of_session, "a session has one staging memory"
        size = self.granted_bytes(wanted)
        if size:
            try:
                self._of_session[session_id] = Staging(size)
            except OSError as error:
                raise CapacityFull(f"staging: no memory of {size} bytes: {error}") from error
            self.used_bytes += size
        return size

    def of(self, session_id: bytes) -> Staging | None:
        """The session's staging memory; None where it has none."""
        return self._of_session.get(session_id)

    def drop(self, session_id: bytes) -> None:
        """Takes the memory of an ended session back; nothing where it has none."""
        staging = self._of_session.pop(session_id, None)
        if staging is not None:
            self.used_bytes -= staging.size_bytes
            staging.close()

    def close(self) -> None:
        """Takes back all."""
        for session_id in list(self._of_session):
            self.drop(session_id)


def _raise_descriptor_limit(wanted: int, warn: Warn) -> None:
    """Lifts the soft limit of open files, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    if target < wanted:
        warn(f"open files: {wanted} wanted, hard limit {hard}")
