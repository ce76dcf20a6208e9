"""A device on a directory, memory beside it, and blocks with made-up keys: what the tests share."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock
from anchorstore.keys import Namespace
from anchorstore.layout import KvLayout
from anchorstore.tiers.nvme.device import ENGINES, NvmeDevice, Options
from anchorstore.tiers.nvme.engines import EngineFactory
from anchorstore.tiers.nvme.format import UNIT_BYTES, slot_bytes_of, xxh3
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import ReadPlan, WritePlan
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.seam import OpenFile, aligned, open_direct
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.units import MIB

SEGMENT_BYTES = MIB
CAPACITY_BYTES = 16 * MIB
NOTE = NamespaceNote(Namespace("default", "tiny", bytes(32)), 16)
OPTIONS = Options(limits=Limits(depth=2, deadline_seconds=30.0), flush_seconds=0.001)


def kind_of(block_bytes: int) -> KvLayout:
    """A layout whose block has `block_bytes`, a multiple of 128."""
    return KvLayout(1, 1, block_bytes // 128, "uint8", 0, 1)


def open_device(
    path: pathlib.Path,
    *,
    options: Options = OPTIONS,
    open_file: OpenFile = open_direct,
    clock: Clock | None = None,
    log: list[str] | None = None,
    engines: Mapping[str, EngineFactory] = ENGINES,
    **changed: Any,
) -> NvmeDevice:
    """A small device."""
    sizes = {"capacity_bytes": CAPACITY_BYTES, "segment_bytes": SEGMENT_BYTES}
    base_unit = changed.pop("base_unit", 0)
    return NvmeDevice.open(
        path,
        **(sizes | changed),
        log=(log if log is not None else []).append,
        options=options,
        base_unit=base_unit,
        open_file=open_file,
        clock=clock,
        engines=engines,
    )


class Memory:
    """Two segments that O_DIRECT takes."""

    def __init__(self) -> None:
        self.segments = [np.frombuffer(aligned(2 * MIB), np.uint8) for _ in range(2)]

    def of(self, index: int) -> npt.NDArray[np.uint8]:
        return self.segments[index]


@dataclasses.dataclass
class Blocks:
    """`count` blocks of one size, in slots `first_unit` and on, with random bytes."""

    memory: Memory
    plan: WritePlan
    bytes_: list[bytes]

    @classmethod
    def made(
        cls,
        device: NvmeDevice | NvmeTier,
        count: int,
        block_bytes: int,
        *,
        seed: int = 1,
        first_unit: int = 0,
        generation: int = 2,
        stride: int = 1,
    ) -> Blocks:
        random = np.random.default_rng(seed)
        memory = Memory()
        step = -(-block_bytes // UNIT_BYTES) * UNIT_BYTES
        slot_units = slot_bytes_of(block_bytes) // UNIT_BYTES
        number = np.arange(count)
        data = []
        for at in range(count):
            block = random.integers(0, 256, block_bytes, np.uint8)
            memory.segments[0][at * step : at * step + block_bytes] = block
            data.append(block.tobytes())
        hashes = random.integers(0, 2**63, (count, 4), np.uint64)
        layout = kind_of(block_bytes)
        plan = WritePlan(
            segment_index=np.zeros(count, np.uint32),
            offset=(number * step).astype(np.uint64),
            block_bytes=np.full(count, block_bytes, np.uint64),
            unit=(first_unit + number * slot_units * stride).astype(np.uint32),
            generation=np.full(count, generation, np.uint32),
            page=number.astype(np.uint32),
            parent_hash=np.roll(hashes, 1, axis=0),
            path_hash=hashes,
            namespace=np.full(count, device.namespace_number(NOTE), np.uint32),
            kind=np.full(count, device.kind_number(layout), np.uint16),
            layout_key=np.full(count, 77, np.uint64),
            lineage=np.full(count, 3, np.uint8),
            checksum=np.array([xxh3(block) for block in data], np.uint64),
        )
        return cls(memory, plan, data)

    def reading(self, **changed: npt.NDArray[Any]) -> ReadPlan:
        """The plan that reads them into segment 1."""
        names = [field.name for field in dataclasses.fields(ReadPlan)]
        columns = {name: getattr(self.plan, name) for name in names}
        columns["segment_index"] = np.ones(len(self.plan), np.uint32)
        return ReadPlan(**(columns | changed))

    def read_back(self, plan: ReadPlan) -> list[bytes]:
        """The bytes in segment 1 where the plan puts them."""
        rows = zip(plan.offset.tolist(), plan.block_bytes.tolist(), strict=True)
        return [self.memory.segments[1][at : at + size].tobytes() for at, size in rows]


def write(device: NvmeDevice | NvmeTier, blocks: Blocks) -> None:
    """Writes and notes all blocks."""
    done = device.write(blocks.plan, blocks.memory.of).result(30)
    assert done.ok.all(), done.status
    device.note_blocks(blocks.plan.entries(done.ok))


def statuses(
    device: NvmeDevice | NvmeTier, blocks: Blocks, plan: ReadPlan | None = None
) -> list[int]:
    """Reads; bytes of the blocks that came are compared with those written."""
    plan = plan or blocks.reading()
    blocks.memory.segments[1][:] = 0
    done = device.read(plan, blocks.memory.of).result(30)
    for ok, found, meant in zip(
        done.ok.tolist(), blocks.read_back(plan), blocks.bytes_, strict=True
    ):
        assert not ok or found == meant, "a read answered OK with other bytes"
    found_statuses: list[int] = done.status.tolist()
    return found_statuses
