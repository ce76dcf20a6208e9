"""The hbm tier: blocks in a device's memory, which engines on that device read in place.

::

    host                                             device
    +----------------------------------+             +--------------------------------------+
    | head: memfd, mapped by clients   |             | slab: one allocation                 |
    |   header | records               |             |   segment 0 | segment 1 | ...        |
    |   (the rest is never touched)    |             |   (unused)  slot 0 | slot 1 | ...    |
    +----------------------------------+             +--------------------------------------+
    dram slots <----------- lanes: pinned halves, side streams -----------> slots

A segment has the shape that it has in dram (transport/segment.py) and is cut in two: its header
and records stay in host memory, where only the daemon can write them, and a reader looks there
before and after it copies, as it does for dram.  So a reader on the device pays one copy within
the device, and the records cost no trip across the bus.

The slab is the daemon's own, exported once by CUDA IPC, or an engine's, opened once.  Either way
whoever opens it can write to it; so a tier serves one domain, and what is read back to the host
is compared with its checksum.

A lost device takes this tier offline and nothing else: moves answer "not moved", the heads say
that the segments are over, and `lost` is told once.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from anchorstore.errors import ConfigError, Forbidden, InvalidRequest
from anchorstore.tiers.base import FormatAction, MemoryOf, Moved, Moves
from anchorstore.tiers.device_slab import EngineSlab, OwnSlab, Slab
from anchorstore.tiers.dram import Warn
from anchorstore.tiers.heads import Heads, SealedMemory
from anchorstore.tiers.lanes import Lane
from anchorstore.transport import segment as segments_format
from anchorstore.transport.cuda import CudaDevice, CudaError, DeviceLost, DeviceStuck
from anchorstore.transport.device_memory import SlabExport
from anchorstore.units import MIB, format_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class HbmOptions:
    """How blocks travel.

    Attributes:
        lanes: jobs under way at once, each with a thread.
        half_bytes: pinned memory of a lane, twice.
        seconds: a device that has not finished a load by then is given up.
        queue_max: jobs accepted but not begun, beyond which has_room() says no.
    """

    lanes: int = 2
    half_bytes: int = 8 * MIB
    seconds: float = 10.0
    queue_max: int = 64


@dataclasses.dataclass(slots=True)
class HbmCounters:
    """What has travelled; failed blocks are those of either direction that did not arrive."""

    blocks_written: int = 0
    blocks_read: int = 0
    blocks_failed: int = 0
    bytes_written: int = 0
    bytes_read: int = 0


class HbmTier:
    """Segments of a slab; see anchorstore.tiers.base.DeviceTier.

    Args:
        slab: becomes the tier's; as many segments as fit are cut from it.
        boot_id: 16 bytes, written into each segment's header.
        domain: the only one whose blocks may lie here, and whose sessions may open the slab.
        warn: told when memory could not be pinned, or given back.
        lost: told the reason, once, when the tier goes offline; from any thread.
    """

    name = "hbm"

    def __init__(
        self,
        slab: Slab,
        segment_bytes: int,
        boot_id: bytes,
        domain: str,
        options: HbmOptions,
        warn: Warn,
        lost: Callable[[str], None],
    ) -> None:
        self.segments, self.segment_bytes = slab.size_bytes // segment_bytes, segment_bytes
        assert self.segments and segment_bytes % segments_format.ALIGN_BYTES == 0, segment_bytes
        self.domain, self.counters = domain, HbmCounters()
        self.offline_reason = ""
        self._slab, self._options = slab, options
        self._warn, self._lost = warn, lost
        self._lock = threading.Lock()
        self._queued, self._is_device_gone = 0, False
        self._lanes: list[Lane] = []
        self._idle: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        try:
            self._heads = Heads(
                self.segments, boot_id, lambda: SealedMemory("anchorstore-hbm", segment_bytes)
            )
        except OSError:
            slab.close()
            raise
        try:
            self._open_lanes()
        except CudaError:
            self._close_parts()
            raise
        self._threads = ThreadPoolExecutor(options.lanes, thread_name_prefix="hbm")

    def _open_lanes(self) -> None:
        for _ in range(self._options.lanes):
            lane = Lane(
                self._slab.device,
                self._options.half_bytes,
                self._options.seconds,
                self._address_of,
                self._heads.memory,
            )
            self._lanes.append(lane)
            self._idle.put(lane)
        refusal = self._lanes[0].refusal
        if refusal is not None:
            self._warn(f"hbm: copies take a detour, memory could not be pinned: {refusal}")

    def _address_of(self, index: int) -> int:
        return self._slab.address + index * self.segment_bytes

    # ---- segments ----

    def format(self, action: FormatAction) -> None:
        """See SlotTier.  The device's memory stays, since clients may have it open: whoever maps
        the old head is told that it is over, and new memory means a new head."""
        self._heads.format(action)

    def records(self, index: int) -> segments_format.Records:
        """See SlotTier."""
        return self._heads.records(index)

    def index_of(self, segment_id: int) -> int:
        """See SlotTier."""
        return self._heads.index_of(segment_id)

    def descriptor(self, index: int) -> int:
        """See SlotTier: the head's.  Its slots read as zeros; the blocks lie in the slab."""
        return self._heads.descriptor(index)

    def export_for(self, domain: str) -> SlabExport:
        """What a session needs to open the slab; segment i starts at i x segment_bytes in it.
        Forbidden for any other domain than the tier's."""
        if domain != self.domain:
            raise Forbidden(f"hbm: cuda:{self._slab.device.ordinal} is another domain's")
        return self._slab.export()

    @property
    def bus_id(self) -> str:
        """Place of its device on the bus."""
        return self._slab.device.bus_id

    @property
    def device_name(self) -> str:
        """For people, e.g. "cuda:0 at 0000:3B:00.0"."""
        device = self._slab.device
        return f"cuda:{device.ordinal} at {device.bus_id}"

    # ---- moves ----

    @property
    def is_online(self) -> bool:
        """See DeviceTier."""
        return not self.offline_reason

    def has_room(self) -> bool:
        """Whether another job may be queued."""
        return self._queued < self._options.queue_max

    def write(self, moves: Moves, memory_of: MemoryOf) -> Future[Moved]:
        """See DeviceTier."""
        return self._submit(Lane.write, moves, memory_of)

    def read(self, moves: Moves, memory_of: MemoryOf) -> Future[Moved]:
        """See DeviceTier."""
        return self._submit(Lane.read, moves, memory_of)

    def _submit(
        self,
        copy: Callable[[Lane, Moves, MemoryOf], Moved],
        moves: Moves,
        memory_of: MemoryOf,
    ) -> Future[Moved]:
        with self._lock:
            self._queued += 1
        return self._threads.submit(self._run, copy, moves, memory_of)

    def _run(
        self,
        copy: Callable[[Lane, Moves, MemoryOf], Moved],
        moves: Moves,
        memory_of: MemoryOf,
    ) -> Moved:
        with self._lock:
            self._queued -= 1
        moved = np.zeros(len(moves), np.bool_)
        lane = self._idle.get()
        try:
            if self.is_online:
                moved = copy(lane, moves, memory_of)
        except (DeviceLost, DeviceStuck) as error:
            self._is_device_gone = True
            self.take_offline(str(error))
        finally:
            self._idle.put(lane)
        if not self.is_online:  # also where another lane has noticed it meanwhile
            moved[:] = False
        self._count(moves.block_bytes[moved], len(moves), is_write=copy is Lane.write)
        return moved

    def _count(self, arrived: npt.NDArray[np.uint64], asked: int, *, is_write: bool) -> None:
        blocks, size = len(arrived), int(arrived.sum())
        with self._lock:
            self.counters.blocks_failed += asked - blocks
            if is_write:
                self.counters.blocks_written += blocks
                self.counters.bytes_written += size
            else:
                self.counters.blocks_read += blocks
                self.counters.bytes_read += size

    # ---- the end ----

    def take_offline(self, reason: str) -> None:
        """Nothing lies here any more: the device, or the engine whose memory it is, has gone."""
        with self._lock:
            if self.offline_reason:
                return
            self.offline_reason = reason
        self._heads.strike_all()
        self._lost(reason)

    def close(self) -> None:
        """See SlotTier.  A device that is gone is asked for nothing any more, and what it might
        still write to stays pinned."""
        self._threads.shutdown(wait=True)
        self._close_parts()

    def _close_parts(self) -> None:
        try:
            if not self._is_device_gone:
                for lane in self._lanes:
                    lane.close()
                self._slab.close()
        except CudaError as error:
            self._warn(f"hbm: memory was not given back: {error}")
        self._heads.close()


def daemon_tier(
    device: CudaDevice,
    capacity_bytes: int,
    segment_bytes: int,
    boot_id: bytes,
    domain: str,
    options: HbmOptions,
    warn: Warn,
    lost: Callable[[str], None],
) -> HbmTier:
    """A tier on memory of the daemon's own.  ConfigError where it cannot be had."""
    size = capacity_bytes // segment_bytes * segment_bytes
    if size < segment_bytes or segment_bytes < 2 * segments_format.ALIGN_BYTES:
        raise ConfigError(
            f"tiers.hbm: {capacity_bytes} bytes in segments of {segment_bytes} hold no block"
        )
    try:
        slab = OwnSlab(device, size)
        return HbmTier(slab, segment_bytes, boot_id, domain, options, warn, lost)
    except (CudaError, OSError) as error:
        raise ConfigError(
            f"tiers.hbm: {format_bytes(size)} cannot be had on cuda:{device.ordinal}, "
            f"{_free_text(device)} are free: {error}"
        ) from error


def _free_text(device: CudaDevice) -> str:
    try:
        return format_bytes(device.free_bytes())
    except CudaError:
        return "unknown bytes"


def engine_tier(
    device: CudaDevice,
    export: SlabExport,
    segment_bytes: int,
    boot_id: bytes,
    domain: str,
    options: HbmOptions,
    warn: Warn,
    lost: Callable[[str], None],
) -> HbmTier:
    """A tier on memory that an engine of `domain` owns.  InvalidRequest where it cannot be used.

    Whoever made it takes it offline when the engine's session ends, and closes it.
    """
    if export.size_bytes < segment_bytes:
        raise InvalidRequest(
            f"slab: {export.size_bytes} bytes, need at least a segment of {segment_bytes}"
        )
    try:
        slab = EngineSlab(device, export)
        return HbmTier(slab, segment_bytes, boot_id, domain, options, warn, lost)
    except (CudaError, OSError) as error:
        raise InvalidRequest(f"slab: cannot be opened on {export.bus_id}: {error}") from error
