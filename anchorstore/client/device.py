"""Blocks into the memory of a CUDA device: within the device where the daemon has a copy there.

::

    lookup's device_places --> heads (mapped) + slab (opened once) --copy--> the caller's tensor
       none, replaced, no slab, no head ------> the mapped pool -----copy--> the caller's tensor
    afterwards: generations of the heads, of the pool, and the lease, as for every read

A copy in hbm may make way for another block at any moment: its generation tells, and then the block
is taken from the pool, where the lease keeps it.  So nothing that a device does costs more than a
copy across the bus; only where the caller's own device fails is the read Unavailable.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anchorstore.client.effects import THREAD_BYTES, Map, Steps, Work
from anchorstore.errors import (
    AnchorStoreError,
    InvalidRequest,
    LeaseExpired,
    TornBlock,
    Unavailable,
    UnknownSession,
)
from anchorstore.transport.cuda import CudaDevice, CudaError, DeviceLost, DeviceStuck
from anchorstore.transport.device_memory import (
    ALIGN_BYTES,
    DeviceBytes,
    DeviceSegment,
    OpenSlab,
    SlabExport,
    SlabMemory,
)
from anchorstore.transport.frames import Method
from anchorstore.transport.segment import PLACE, Places, SegmentView
from anchorstore.wire.v1 import store_pb2 as store

if TYPE_CHECKING:
    from anchorstore.client.mapping import Mapped
    from anchorstore.client.session import Session

log = logging.getLogger("anchorstore.client")

Rows = npt.NDArray[np.intp]


def open_device(ordinal: int) -> CudaDevice:
    """A device of this process, for ClientOptions.device; Unavailable without a driver or device.

    It shares the primary context with torch, and leaves the calling thread's own as it was.
    """
    from anchorstore.transport.cuda_driver import DriverDevice

    try:
        return DriverDevice(ordinal)
    except CudaError as error:
        raise Unavailable(f"cuda:{ordinal}: {error}") from error


def device_bytes(destination: Any) -> DeviceBytes:
    """A contiguous, writable piece of device memory: DeviceBytes, or what has a
    __cuda_array_interface__ (a tensor of torch, viewed as uint8 where its dtype has none)."""
    if isinstance(destination, DeviceBytes):
        return destination
    found = getattr(destination, "__cuda_array_interface__", None)
    if found is None:
        raise InvalidRequest(f"destination: {type(destination).__name__} is no device memory")
    item = np.dtype(found["typestr"]).itemsize
    shape, strides = tuple(found["shape"]), found.get("strides")
    dense = tuple(item * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if strides is not None and tuple(strides) != dense:
        raise InvalidRequest(f"destination: strides {strides} of shape {shape} are not contiguous")
    address, is_read_only = found["data"]
    if is_read_only:
        raise InvalidRequest("destination: is read-only")
    return DeviceBytes(address, item * math.prod(shape))


class Source(NamedTuple):
    """Blocks to be copied.

    Attributes:
        boot_id: of the daemon whose segments these are.
        places: on the device, one record a block [n]; segment 0 where it has no copy.
        block: the bytes of block number i in host memory.
    """

    boot_id: bytes
    places: Places
    block_bytes: int
    block: Callable[[int], memoryview]


class DeviceSide:
    """What one attachment reads with on the engine's device.

    copy() may run on any thread; the rest runs under the client's lock.

    Args:
        export: of the daemon's slab; None where it has none there, and then all comes from the
            pool.
    """

    def __init__(self, device: CudaDevice, export: SlabExport | None) -> None:
        self.device, self._export = device, export
        self._slab: SlabMemory | None = None
        self._segments: dict[int, DeviceSegment | None] = {}  # None: over, or of no use
        self._stream: int | None = None
        self._lock = threading.Lock()
        self._is_closed = self._is_given_up = False

    # ---- under the client's lock ----

    def missing(self, segment_ids: Iterable[int]) -> tuple[int, ...]:
        """Those that are to be mapped before blocks in them can be read."""
        if self._opened() is None:
            return ()
        return tuple(i for i in segment_ids if i and i not in self._segments)

    def add(self, boot_id: bytes, mapped: Mapped) -> None:
        """Takes heads in."""
        slab = self._opened()
        for segment_id, memory in mapped.segments.items():
            found = None
            try:
                if slab is not None:
                    head = SegmentView(memoryview(memory), boot_id, segment_id)
                    found = DeviceSegment(head, slab, mapped.slab_offsets[segment_id])
            except (TornBlock, InvalidRequest) as error:  # it is another one by now
                log.debug("segment %d: %s", segment_id, error)
            self._segments[segment_id] = found

    def lent(self, address: int, size_bytes: int) -> None:
        """The slab is memory of this process itself."""
        with self._lock:
            self._drop_slab()
            self._slab, self._is_given_up = SlabMemory(self.device, address, size_bytes), False

    def _opened(self) -> SlabMemory | None:
        if self._is_given_up:
            return None
        if self._slab is None and self._export is not None:
            try:
                self._slab = OpenSlab(self.device, self._export)
            except (CudaError, InvalidRequest) as error:
                self._give_up(error)
        return self._slab

    def close(self) -> None:
        """Lets go of the slab, after a copy that is under way."""
        with self._lock:
            self._is_closed = True
            self._drop_slab()
            stream, self._stream = self._stream, None
            if stream is not None:
                try:
                    self.device.drop_stream(stream)
                except CudaError as error:
                    log.debug("cuda:%d: %s", self.device.ordinal, error)

    def _drop_slab(self) -> None:
        slab, self._slab = self._slab, None
        self._segments = {}
        if isinstance(slab, OpenSlab):
            try:
                slab.close()
            except CudaError as error:
                log.debug("cuda:%d: %s", self.device.ordinal, error)

    def _give_up(self, error: Exception) -> None:
        """The slab cannot be used: everything comes from the pool."""
        name = f"cuda:{self.device.ordinal}"
        log.warning("%s: the daemon's copies there are not used: %s", name, error)
        self._is_given_up, self._segments = True, {}

    # ---- on any thread ----

    def copy(
        self, source: Source, target: DeviceBytes, seconds: float, verify: Callable[[], None]
    ) -> int:
        """Copies all blocks, back to back, and verifies them; how many lay on the device.

        Unavailable where the device fails: then what was asked for may still be written.
        """
        with self._lock:
            if self._is_closed:
                raise LeaseExpired("the attachment that these blocks belong to has ended")
            try:
                if self._stream is None:
                    self._stream = self.device.make_stream()
                here = self._from_slab(source, target, self._stream, seconds)
                self._from_pool(source, target, np.flatnonzero(~here), self._stream, seconds)
            except CudaError as error:
                raise Unavailable(f"cuda:{self.device.ordinal}: {error}") from error
        verify()
        return int(np.count_nonzero(here))

    def _from_slab(
        self, source: Source, target: DeviceBytes, stream: int, seconds: float
    ) -> npt.NDArray[np.bool_]:
        """Which blocks [n] have been copied within the device, and were theirs all the while."""
        here = np.zeros(len(source.places), np.bool_)
        try:
            for row, (segment_id, slot, _, _) in enumerate(source.places.tolist()):
                segment = self._segments.get(segment_id)
                if segment is not None:
                    block = segment.block(slot, source.block_bytes)
                    to = target.address + row * source.block_bytes
                    self.device.on_device(to, block.address, block.size_bytes, stream)
                    here[row] = True
            if here.any():
                self.device.finish(stream, seconds)
        except (DeviceLost, DeviceStuck):
            raise
        except (CudaError, InvalidRequest) as error:
            self._give_up(error)
            return np.zeros(len(source.places), np.bool_)
        for row in np.flatnonzero(here).tolist():
            segment_id, slot, generation, _ = source.places[row].tolist()
            segment = self._segments[segment_id]
            assert segment is not None, "it was copied from"
            here[row] = segment.slot_stands(slot, generation)
        return here

    def _from_pool(
        self, source: Source, target: DeviceBytes, rows: Rows, stream: int, seconds: float
    ) -> None:
        """Copies these blocks from this process's view of the pool, or from what was fetched."""
        if not len(rows):
            return
        size, kept = source.block_bytes, []  # kept until the copies are done
        for row in rows.tolist():
            block = np.frombuffer(source.block(row), np.uint8)
            kept.append(block)
            self.device.to_device(target.address + row * size, block.ctypes.data, size, stream)
        self.device.finish(stream, seconds)


def copy_steps(
    session: Session,
    source: Source,
    destination: Any,
    deadline_seconds: float | None,
    *,
    load: Callable[[float | None], Steps[None]],
    verify: Callable[[], None],
) -> Steps[None]:
    """Copies all blocks, one after another, into device memory; `load` makes them readable in host
    memory, `verify` raises where that was not what was sealed."""
    side = session.device_side
    if side is None:
        raise InvalidRequest("the client has no device (ClientOptions.device)")
    target, size = device_bytes(destination), len(source.places) * source.block_bytes
    if target.size_bytes != size:
        raise InvalidRequest(
            f"destination has {target.size_bytes} bytes, the {len(source.places)} blocks have "
            f"{size}"
        )
    if not size:
        return
    until = session.until(deadline_seconds)
    yield from load(deadline_seconds)
    wanted = side.missing(np.unique(source.places["segment"]).tolist())
    if wanted:
        yield from _map_heads(session, side, source.boot_id, wanted, until)
    seconds = max(0.0, until - session.clock.now())
    copy = functools.partial(side.copy, source, target, seconds, verify)
    on_device = yield Work(copy, max(size, THREAD_BYTES))
    session.counters.add("blocks_on_device", on_device)


def _map_heads(
    session: Session, side: DeviceSide, boot_id: bytes, wanted: tuple[int, ...], until: float
) -> Steps[None]:
    """Maps heads; whatever is wrong with that, the pool has the blocks."""
    try:
        yield from session.enter_or_raise(until)
        attachment = session.attachment
        if attachment is None or attachment.boot_id != boot_id or session.device_side is not side:
            return
        side.add(boot_id, (yield Map(attachment.session_id, boot_id, wanted, False, until)))
    except AnchorStoreError as error:
        log.debug("%s: no heads of segments on the device: %s", session.address, error)


def lend_steps(session: Session, address: int, size_bytes: int, until: float) -> Steps[int]:
    """Lends memory of this process to the daemon; how many bytes of it will be used."""
    side = session.device_side
    if side is None:
        raise InvalidRequest("the client has no device (ClientOptions.device)")
    try:
        base, extent = side.device.extent(address)
        handle = side.device.export_handle(base)
    except CudaError as error:
        raise InvalidRequest(f"lend: {error}") from error
    offset = address - base
    if offset % ALIGN_BYTES or not 0 < size_bytes <= extent - offset:
        raise InvalidRequest(
            f"lend: {size_bytes} bytes at {offset} of an allocation of {extent}, must lie within, "
            f"at a multiple of {ALIGN_BYTES}"
        )
    slab = store.Slab(
        device=side.device.bus_id, handle=handle, offset=offset, size_bytes=size_bytes
    )
    yield from session.enter_or_raise(until)
    attachment = session.attachment
    if attachment is None:
        attachment = yield from session.rebind(until)
    body = store.LendRequest(session_id=attachment.session_id, slab=slab).SerializeToString()
    call = session.call(Method.LEND, lambda _: (body,), until, pinned=attachment, attempts=1)
    try:
        reply = yield from session.guarded(call)
    except UnknownSession as error:
        raise LeaseExpired(str(error)) from error
    if session.device_side is side:
        side.lent(address, size_bytes)
    return int(reply.segment_bytes * reply.segments)


def slab_of(reply: store.AttachResponse) -> SlabExport | None:
    """The daemon's slab on the session's device; None where it grants none."""
    if not reply.HasField("slab"):
        return None
    slab = reply.slab
    return SlabExport(slab.device, slab.handle, slab.offset, slab.size_bytes)


def places_of(columns: store.BlockColumns, count: int) -> Places:
    """Where blocks [count] lie on the device; segment 0 where the answer names none."""
    if not columns.device_places:
        return np.zeros(count, PLACE)
    if len(columns.device_places) != count * PLACE.itemsize:
        raise InvalidRequest(
            f"reply: {len(columns.device_places)} bytes are not {count} places on the device"
        )
    return np.frombuffer(columns.device_places, PLACE)
