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
from anchorstore.tiers.heads import (
    F_ADD_SEALS,
    SEAL_GROW,
    SEAL_SEAL,
    SEAL_SHRINK,
    Heads,
    SealedMemory,
    memory_file,
)
from anchorstore.tiers.memory import huge_page_bytes_free
from anchorstore.transport import segment as segments_format
from anchorstore.units import MIB, format_bytes

HUGE_PAGE_BYTES = 2 * MIB
PREFAULT_CHUNK_BYTES = 32 * MIB
DESCRIPTORS_SPARE = 4096  # sockets, staging memories, files, beside the segments' two each

_NAME = "anchorstore-pool"
_MFD_HUGETLB_2MB = 4 | 21 << 26
_MADV_POPULATE_WRITE = 23  # Linux 5.14

Warn = Callable[[str], None]


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
        self._warn = warn
        self.huge_pages = self._wants_huge_pages(huge_pages)
        self._must_be_huge = huge_pages == "require"
        _raise_descriptor_limit(2 * segments + DESCRIPTORS_SPARE, warn)
        try:
            self._heads = Heads(segments, boot_id, self._new_memory)
        except OSError as error:
            raise ConfigError(
                f"tiers.dram: cannot create {segments} segments of {segment_bytes} bytes: {error}"
            ) from error
        self._must_be_huge = False  # of a running daemon: small pages are better than none

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

    def _new_memory(self) -> SealedMemory:
        """OSError without the memory or a descriptor; small pages where huge ones have run out."""
        if self.huge_pages:
            try:
                return SealedMemory(_NAME, self.segment_bytes, _MFD_HUGETLB_2MB)
            except OSError as error:
                if self._must_be_huge:
                    raise
                self._warn(f"no huge page for a segment, small pages instead: {error}")
                self.huge_pages = False
        return SealedMemory(_NAME, self.segment_bytes)

    def prefault(self, progress: Progress, stopped: Callable[[], bool] = lambda: False) -> None:
        """Backs the whole pool with memory; runs in a thread, before the first format.

        `progress` is called after every chunk; `stopped` lets a shutdown end it early.
        """
        done, total = 0, self.segments * self.segment_bytes
        for index in range(self.segments):
            for start in range(0, self.segment_bytes, PREFAULT_CHUNK_BYTES):
                if stopped():
                    return
                stop = min(start + PREFAULT_CHUNK_BYTES, self.segment_bytes)
                _populate(self.memory(index), start, stop)
                done += stop - start
                progress(done, total)

    def format(self, action: FormatAction) -> None:
        """See Tier.  New memory is backed as it is written, not here: this runs on the loop.

        OSError where there is none to be had: the core believes it is done, so the daemon stops.
        """
        self._heads.format(action)

    def memory(self, index: int) -> npt.NDArray[np.uint8]:
        """See Tier."""
        return self._heads.memory(index)

    def records(self, index: int) -> segments_format.Records:
        """See Tier."""
        return self._heads.records(index)

    def index_of(self, segment_id: int) -> int:
        """See Tier."""
        return self._heads.index_of(segment_id)

    def descriptor(self, index: int) -> int:
        """See Tier."""
        return self._heads.descriptor(index)

    def close(self) -> None:
        """See Tier."""
        self._heads.close()


class Staging:
    """The memory that one session writes; the daemon reads it (or fills it for a remote one).

    It lives until the session has ended and the last copy out of it is done.  Its pages go back to
    the host when it is closed, whoever still maps it: blocks of an ended session never get sealed.
    """

    def __init__(self, size: int) -> None:
        self.descriptor, mapping = memory_file("anchorstore-staging", size)
        fcntl.fcntl(self.descriptor, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_SEAL)
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
