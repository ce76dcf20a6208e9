"""What the contract of a tier is driven with: one rig a tier, each by its own means of production.

::

    test_tiers.py --> Rig <-+- DramRig    the mover's copies; clients map the segment
                            +- HbmRig     lanes; clients map the head and open the slab

A rig writes and reads blocks as the daemon does, and looks at them as another process does.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.server.mover import CopyPlan, CopyResult, copy_slice
from anchorstore.tiers.base import Moves, SlotTier
from anchorstore.tiers.dram import DramTier
from anchorstore.tiers.hbm import HbmTier
from anchorstore.transport.cuda import CudaDevice
from anchorstore.transport.segment import SegmentShape, SegmentView

BOOT = bytes(range(16))
SEGMENT_BYTES = 2 * 2**20
SEGMENTS = 3
DOMAIN = "default"
HALF_BYTES = 64 * 1024  # so that most blocks travel in pieces


@dataclasses.dataclass(frozen=True)
class Format:
    """The core's order, as far as a tier sees it."""

    index: int
    segment_id: int
    slot_bytes: int
    first_generation: int = 0
    fresh_memory: bool = False

    @property
    def slots(self) -> int:
        return SegmentShape(SEGMENT_BYTES, self.slot_bytes).slots


@dataclasses.dataclass(frozen=True)
class Block:
    """Bytes for a slot; `generation` is the odd one that it shows while it is written."""

    form: Format
    slot: int
    data: npt.NDArray[np.uint8]
    generation: int = 1
    lineage: int = 3

    @property
    def checksum(self) -> int:
        return xxhash.xxh3_64_intdigest(self.data)

    @property
    def offset(self) -> int:
        return SegmentShape(SEGMENT_BYTES, self.form.slot_bytes).offset(self.slot)

    @property
    def layout_key(self) -> int:
        return 7_000_000_000_000 + self.slot

    @property
    def path_hash(self) -> npt.NDArray[np.uint64]:
        return np.arange(4, dtype=np.uint64) + np.uint64(100 * self.slot + 1)


class Rig(Protocol):
    """A tier and the two sides of it."""

    @property
    def tier(self) -> SlotTier: ...

    def write(self, blocks: Sequence[Block], checksums: Sequence[int] | None = None) -> list[bool]:
        """Stores blocks, whose bytes have these xxh3 by what their writer says."""

    def read(self, blocks: Sequence[Block]) -> list[bytes | None]:
        """What the daemon reads of sealed blocks; None where it is not what was sealed."""

    def seen(self, block: Block) -> bytes:
        """The slot's bytes, as a process that may read the segment sees them."""

    def damage(self, block: Block) -> None:
        """Changes the block where it lies."""

    def close(self) -> None:
        """Ends the tier; an AssertionError where it leaves something behind."""


def view(rig: Rig, form: Format) -> SegmentView:
    """The segment's header and records, as a client maps them."""
    mapped = mmap.mmap(rig.tier.descriptor(form.index), SEGMENT_BYTES, prot=mmap.PROT_READ)
    return SegmentView(memoryview(mapped), BOOT, form.segment_id)


def _packed(blocks: Sequence[Block]) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """One host memory with all blocks, at odd places, and where each starts."""
    sizes = [len(block.data) + 13 for block in blocks]
    starts = [5 + sum(sizes[:row]) for row in range(len(blocks))]
    memory = np.zeros(5 + sum(sizes), np.uint8)
    for block, start in zip(blocks, starts, strict=True):
        memory[start : start + len(block.data)] = block.data
    return memory, starts


class DramRig:
    """Blocks get there as a seal brings them, and are read in place."""

    def __init__(self) -> None:
        self.tier = DramTier(SEGMENTS, SEGMENT_BYTES, BOOT, "never", print)

    def write(self, blocks: Sequence[Block], checksums: Sequence[int] | None = None) -> list[bool]:
        source, starts = _packed(blocks)
        expected = checksums or [block.checksum for block in blocks]
        plan = CopyPlan(
            source=source,
            source_offsets=np.array(starts, np.uint64),
            segment_indices=np.array([block.form.index for block in blocks], np.uint32),
            slots=np.array([block.slot for block in blocks], np.uint32),
            offsets=np.array([block.offset for block in blocks], np.uint64),
            block_bytes=np.array([len(block.data) for block in blocks], np.uint64),
            generations=np.array([block.generation for block in blocks], np.uint32),
            path_hashes=np.array([block.path_hash for block in blocks], np.uint64),
            layout_keys=np.array([block.layout_key for block in blocks], np.uint64),
            lineage=blocks[0].lineage,
            expected=np.array(expected, np.uint64),
        )
        result = CopyResult(np.zeros(len(blocks), np.bool_), np.zeros(len(blocks), np.uint64))
        copy_slice(self.tier, plan, result, 0, len(blocks))
        return [bool(ok) for ok in result.ok]

    def read(self, blocks: Sequence[Block]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for block in blocks:
            data = self._slot(block)
            record = self.tier.records(block.form.index)[block.slot]
            good = int(record["generation"]) == block.generation + 1
            good = good and xxhash.xxh3_64_intdigest(data) == int(record["checksum"])
            found.append(data.tobytes() if good else None)
        return found

    def _slot(self, block: Block) -> npt.NDArray[np.uint8]:
        memory = self.tier.memory(block.form.index)
        return memory[block.offset : block.offset + len(block.data)]

    def seen(self, block: Block) -> bytes:
        return bytes(view(self, block.form).block(block.slot, len(block.data)))

    def damage(self, block: Block) -> None:
        self._slot(block)[0] ^= 1

    def close(self) -> None:
        self.tier.close()


@dataclasses.dataclass(frozen=True)
class Reader:
    """How another process (or, on one real device, this one) reaches the slab."""

    device: CudaDevice
    address: int


class HbmRig:
    """Blocks get there by lanes, and are read by whoever opened the slab.

    Args:
        reader: asked once, where the slab is for a reader.
        ended: called when all is closed: says what was left behind.
    """

    def __init__(
        self, tier: HbmTier, reader: Callable[[], Reader], ended: Callable[[], list[str]]
    ) -> None:
        self.tier, self._reader, self._ended = tier, reader, ended

    def _moves(self, blocks: Sequence[Block], starts: list[int], checksums: list[int]) -> Moves:
        return Moves(
            memories=np.full(len(blocks), 4, np.uint32),
            memory_offsets=np.array(starts, np.uint64),
            segments=np.array([block.form.index for block in blocks], np.uint32),
            slots=np.array([block.slot for block in blocks], np.uint32),
            offsets=np.array([block.offset for block in blocks], np.uint64),
            block_bytes=np.array([len(block.data) for block in blocks], np.uint64),
            generations=np.array([block.generation for block in blocks], np.uint32),
            checksums=np.array(checksums, np.uint64),
            path_hashes=np.array([block.path_hash for block in blocks], np.uint64),
            layout_keys=np.array([block.layout_key for block in blocks], np.uint64),
            lineages=np.array([block.lineage for block in blocks], np.uint8),
        )

    def write(self, blocks: Sequence[Block], checksums: Sequence[int] | None = None) -> list[bool]:
        source, starts = _packed(blocks)
        expected = list(checksums or [block.checksum for block in blocks])
        moves = self._moves(blocks, starts, expected)
        moved = self.tier.write(moves, {4: source}.__getitem__).result()
        return [bool(ok) for ok in moved]

    def read(self, blocks: Sequence[Block]) -> list[bytes | None]:
        target, starts = _packed(blocks)
        target[:] = 0
        moves = self._moves(blocks, starts, [block.checksum for block in blocks])
        moves = dataclasses.replace(moves, generations=moves.generations + np.uint32(1))
        moved = self.tier.read(moves, {4: target}.__getitem__).result()
        return [
            target[start : start + len(block.data)].tobytes() if ok else None
            for ok, start, block in zip(moved, starts, blocks, strict=True)
        ]

    def _copy(self, block: Block, data: npt.NDArray[np.uint8], *, is_write: bool) -> None:
        """Another process's own copy between a slot and its memory."""
        reader = self._reader()
        place = reader.address + block.form.index * SEGMENT_BYTES + block.offset
        stream = reader.device.make_stream()
        if is_write:
            reader.device.to_device(place, data.ctypes.data, len(data), stream)
        else:
            reader.device.to_host(data.ctypes.data, place, len(data), stream)
        reader.device.finish(stream, 10.0)
        reader.device.drop_stream(stream)

    def seen(self, block: Block) -> bytes:
        found = np.zeros(len(block.data), np.uint8)
        self._copy(block, found, is_write=False)
        return found.tobytes()

    def damage(self, block: Block) -> None:
        data = block.data.copy()
        data[0] ^= 1
        self._copy(block, data, is_write=True)

    def close(self) -> None:
        self.tier.close()
        left = self._ended()
        assert not left, left
