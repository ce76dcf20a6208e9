"""A slab: device memory of one process that others open and read in place.

::

    its owner                                     another process of the host
    allocate -> export_handle --SlabExport-->     OpenSlab: open_handle, once
    +---------------------------------------+     +------------------------------+
    |  offset                offset + size  |     |  place(start, size): address |
    |  | segment 0 | segment 1 | ...     |  |     |  view(start, size): as torch |
    +---------------------------------------+     |    and cupy take it          |
      one allocation of the device                +------------------------------+

A handle opens the whole allocation, for writing too; a process that opens it again gets the same
address, and must close it as often, before the owner frees the memory.  So a slab is exported to
one domain only and lives as long as its owner does.  The device is named by its place on the bus:
numbers differ between processes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from anchorstore.errors import InvalidRequest
from anchorstore.transport.cuda import HANDLE_BYTES, CudaDevice, CudaError
from anchorstore.transport.segment import SegmentView

BUS_ID_CHARACTERS_MAX = 32
ALIGN_BYTES = 4096  # of a slab within its allocation


@dataclasses.dataclass(frozen=True, slots=True)
class SlabExport:
    """What another process needs to open a slab.  InvalidRequest where it cannot be one.

    Attributes:
        bus_id: of the device, e.g. "0000:3B:00.0".
        handle: HANDLE_BYTES, of the allocation.
        offset: where in the allocation the slab starts.
        size_bytes: of the slab.
    """

    bus_id: str
    handle: bytes
    offset: int
    size_bytes: int

    def __post_init__(self) -> None:
        if len(self.handle) != HANDLE_BYTES:
            raise InvalidRequest(f"slab: a handle of {len(self.handle)} bytes, not {HANDLE_BYTES}")
        if not 0 < len(self.bus_id) <= BUS_ID_CHARACTERS_MAX:
            raise InvalidRequest(f"slab: bus id {self.bus_id[:64]!r} names no device")
        if self.size_bytes <= 0 or self.offset < 0 or self.offset % ALIGN_BYTES:
            raise InvalidRequest(
                f"slab: {self.size_bytes} bytes at {self.offset}: the one must be above 0, the "
                f"other a multiple of {ALIGN_BYTES}"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes on a device, as `torch.as_tensor(it, device="cuda:0")` and cupy take them: no copy.

    Good for as long as the slab is open; nobody keeps it so.
    """

    address: int
    size_bytes: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.size_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
        }


class SlabMemory:
    """A slab at an address of this process, whose own it may be."""

    def __init__(self, device: CudaDevice, address: int, size_bytes: int) -> None:
        self.device, self.address, self.size_bytes = device, address, size_bytes

    def place(self, start: int, size_bytes: int) -> int:
        """Address of a piece of the slab; InvalidRequest beyond its end."""
        if not 0 <= start <= start + size_bytes <= self.size_bytes:
            raise InvalidRequest(
                f"slab: {size_bytes} bytes at {start} exceed its {self.size_bytes} bytes"
            )
        return self.address + start

    def view(self, start: int, size_bytes: int) -> DeviceBytes:
        """A piece of the slab, for the libraries of this process."""
        return DeviceBytes(self.place(start, size_bytes), size_bytes)


class OpenSlab(SlabMemory):
    """Another process's slab, mapped into this one.

    InvalidRequest where it lies on another device or is larger than its allocation, which only
    the driver knows for sure; CudaError where it cannot be opened.
    """

    def __init__(self, device: CudaDevice, export: SlabExport) -> None:
        if device.bus_id != export.bus_id:
            raise InvalidRequest(f"slab: lies on device {export.bus_id}, not on {device.bus_id}")
        self._base = device.open_handle(export.handle)
        try:
            _, extent = device.extent(self._base)
            if export.offset + export.size_bytes > extent:
                raise InvalidRequest(
                    f"slab: {export.size_bytes} bytes at {export.offset} exceed the allocation of "
                    f"{extent}"
                )
        except (CudaError, InvalidRequest):
            device.close_handle(self._base)
            raise
        super().__init__(device, self._base + export.offset, export.size_bytes)

    def close(self) -> None:
        """Unmaps it.  No copy out of it may be under way."""
        self.device.close_handle(self._base)


class DeviceSegment:
    """A segment of the hbm tier as its readers have it: the head mapped, the slots in a slab.

    To read a block, check its record or generation, copy it on the device, wait for that copy, and
    look again: where slot_stands() still holds, the bytes are the sealed ones.

    Args:
        head: header and records, in host memory.
        start: where in the slab the segment begins.
    """

    def __init__(self, head: SegmentView, slab: SlabMemory, start: int) -> None:
        self.head, self._slab, self._start = head, slab, start
        slab.place(start, head.first_slot_offset + head.slots * head.slot_bytes)

    def block(self, slot: int, block_bytes: int) -> DeviceBytes:
        """The block in a slot, in place; InvalidRequest outside the slots."""
        head = self.head
        if not 0 <= slot < head.slots or block_bytes > head.slot_bytes:
            raise InvalidRequest(
                f"segment {head.segment_id}: no block of {block_bytes} bytes in slot {slot} of "
                f"{head.slots}"
            )
        offset = head.first_slot_offset + slot * head.slot_bytes
        return self._slab.view(self._start + offset, block_bytes)

    def slot_stands(self, slot: int, generation: int) -> bool:
        """Whether what was read in the slot since it showed `generation` is what it showed."""
        return self.head.slot_stands(slot, generation)
