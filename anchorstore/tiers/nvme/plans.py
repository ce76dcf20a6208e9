"""What the shell asks of a device, and what it gets back: columns, one element a block."""

from __future__ import annotations

import dataclasses
import enum
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from anchorstore.tiers.nvme.format import ENTRY, Entries

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


class Status(enum.IntEnum):
    """How it went with one block.

    Of a read, FAILED, TORN, OTHER and FOREIGN mean that the block is lost; REFUSED and LATE that
    it was not tried and may still be there.
    """

    PENDING = 0
    OK = 1
    FAILED = 2  # the device answered with an error
    TORN = 3  # the bytes have another checksum
    OTHER = 4  # the slot holds another block, or another generation
    FOREIGN = 5  # the slot has no footer of this device
    REFUSED = 6  # the queue is full, the device is degraded, or the kernel put it off
    LATE = 7  # its deadline passed before it was begun


T = TypeVar("T")


def promise() -> Future[T]:
    """A future that cannot be cancelled: what it stands for happens anyway."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


LOST = (Status.FAILED, Status.TORN, Status.OTHER, Status.FOREIGN)


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """The end of a plan: no byte of it moves any more.  `status` u8[n], of Status."""

    status: U8

    @property
    def ok(self) -> Bools:
        """Which blocks were moved."""
        return np.asarray(self.status == Status.OK)

    @property
    def lost(self) -> Bools:
        """Which blocks of a read are there no more."""
        return np.isin(self.status, LOST)


@dataclasses.dataclass(frozen=True, slots=True)
class WritePlan:
    """Blocks to copy from memory to the device; columns [n].

    Attributes:
        segment_index, offset: where each lies in memory: a multiple of 4096 there.
        block_bytes: its size.
        unit, generation: its slot on the device, and what the slot shall show.
        page, parent_hash u64[n, 4], path_hash u64[n, 4]: its place in the tree.
        namespace, kind: numbers that the device gave (`note_namespace`, `note_kind`).
        layout_key, lineage, checksum: as in the record of a dram slot.
    """

    segment_index: U32
    offset: U64
    block_bytes: U64
    unit: U32
    generation: U32
    page: U32
    parent_hash: U64
    path_hash: U64
    namespace: U32
    kind: U16
    layout_key: U64
    lineage: U8
    checksum: U64

    def __len__(self) -> int:
        return len(self.unit)

    def entries(self, which: Bools) -> Entries:
        """What the journal keeps of the chosen blocks."""
        entries = np.zeros(int(which.sum()), ENTRY)
        for name in ENTRY.names or ():
            if name != "zero":
                entries[name] = getattr(self, name)[which]
        return entries


@dataclasses.dataclass(frozen=True, slots=True)
class ReadPlan:
    """Blocks to copy from the device to memory; columns [n], as in WritePlan.

    `generation` is the one that the device's slot must show.
    """

    segment_index: U32
    offset: U64
    block_bytes: U64
    unit: U32
    generation: U32
    path_hash: U64
    layout_key: U64
    lineage: U8
    checksum: U64

    def __len__(self) -> int:
        return len(self.unit)


def chosen(plan: WritePlan | ReadPlan, which: Bools | npt.NDArray[np.intp]) -> WritePlan | ReadPlan:
    """The plan of some of the blocks, named by a mask or by ascending numbers."""
    if which.all() if which.dtype == np.bool_ else len(which) == len(plan):
        return plan
    columns = {field.name: getattr(plan, field.name)[which] for field in dataclasses.fields(plan)}
    return type(plan)(**columns)
