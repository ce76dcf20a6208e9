"""A process that works an nvme device without end, until it is killed.

    python -m tests.integration.nvme_writer PATH SEED ENGINE

It says on its output what it is about to touch and what it has been promised, a line each, so that
whoever kills it knows what must be found again::

    touch UNIT           the slot is about to be written, or its block to be given up
    keep UNIT GENERATION a flush has ended since it was written
"""

from __future__ import annotations

import os
import pathlib
import sys

import numpy as np
import numpy.typing as npt

from anchorstore.keys import Namespace
from anchorstore.layout import KvLayout
from anchorstore.tiers.nvme.device import NvmeDevice, Options
from anchorstore.tiers.nvme.format import UNIT_BYTES, slot_bytes_of, xxh3
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import WritePlan
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.seam import aligned
from anchorstore.units import MIB

CAPACITY_BYTES, SEGMENT_BYTES, JOURNAL_BYTES = 12 * MIB, MIB, 256 * 1024
BATCH = 12
NOTE = NamespaceNote(Namespace("default", "crash", bytes(32)), 16)
LAYOUTS = (KvLayout(1, 1, 31, "uint8", 0, 1), KvLayout(1, 1, 150, "uint8", 0, 1))
"""One unit a slot, five units a slot; even segments hold the first, odd ones the second."""


def content(path_hash: npt.NDArray[np.uint64], block_bytes: int) -> npt.NDArray[np.uint8]:
    """The one right content of a block."""
    seed = [int(word) for word in path_hash]
    return np.random.default_rng(seed).integers(0, 256, block_bytes, np.uint8)


def open_device(path: pathlib.Path, engine: str) -> NvmeDevice:
    """The device of the test."""
    options = Options(
        engine=engine,
        limits=Limits(depth=4, deadline_seconds=60.0),
        journal_bytes=JOURNAL_BYTES,
        flush_seconds=0.002,
    )
    return NvmeDevice.open(
        path, CAPACITY_BYTES, SEGMENT_BYTES, log=lambda text: None, options=options
    )


class Writer:
    """Random batches over one device."""

    def __init__(self, device: NvmeDevice, seed: int) -> None:
        self.device, self.random = device, np.random.default_rng(seed)
        self.memory = np.frombuffer(aligned(BATCH * 8 * UNIT_BYTES), np.uint8)
        self.namespace = device.namespace_number(NOTE)
        self.kinds = [device.kind_number(layout) for layout in LAYOUTS]
        self.generation = int(device.recover().entries["generation"].max(initial=0))
        self.unflushed: list[tuple[int, int]] = []

    def say(self, *lines: str) -> None:
        os.write(1, "".join(f"{line}\n" for line in lines).encode())

    def turn(self) -> None:
        """Writes a batch or gives some up; sometimes waits for the journal."""
        kind = int(self.random.integers(2))
        size = LAYOUTS[kind].block_bytes()
        slot_units = slot_bytes_of(size) // UNIT_BYTES
        segment_units = SEGMENT_BYTES // UNIT_BYTES
        segment = kind + 2 * int(self.random.integers(self.device.segments // 2))
        slots = self.random.choice(segment_units // slot_units, BATCH, replace=False)
        units = (segment * segment_units + slots * slot_units).astype(np.uint32)
        self.say(*(f"touch {unit}" for unit in units.tolist()))
        touched = set(units.tolist())
        self.unflushed = [pair for pair in self.unflushed if pair[0] not in touched]
        self.device.note_gone(units)
        if self.random.random() < 0.8:
            self._write(kind, size, units)
        if self.random.random() < 0.3:
            self.device.flush().result()
            self.say(*(f"keep {unit} {generation}" for unit, generation in self.unflushed))
            self.unflushed.clear()

    def _write(self, kind: int, size: int, units: npt.NDArray[np.uint32]) -> None:
        self.generation += 2
        hashes = self.random.integers(0, 2**63, (BATCH, 4), np.uint64)
        offsets = np.arange(BATCH, dtype=np.uint64) * np.uint64(8 * UNIT_BYTES)
        checksums = []
        for offset, path_hash in zip(offsets.tolist(), hashes, strict=True):
            self.memory[offset : offset + size] = content(path_hash, size)
            checksums.append(xxh3(self.memory[offset : offset + size]))
        plan = WritePlan(
            segment_index=np.zeros(BATCH, np.uint32),
            offset=offsets,
            block_bytes=np.full(BATCH, size, np.uint64),
            unit=units,
            generation=np.full(BATCH, self.generation, np.uint32),
            page=np.arange(BATCH, dtype=np.uint32),
            parent_hash=np.roll(hashes, 1, axis=0),
            path_hash=hashes,
            namespace=np.full(BATCH, self.namespace, np.uint32),
            kind=np.full(BATCH, self.kinds[kind], np.uint16),
            layout_key=np.full(BATCH, 5 + kind, np.uint64),
            lineage=np.zeros(BATCH, np.uint8),
            checksum=np.array(checksums, np.uint64),
        )
        done = self.device.write(plan, lambda _: self.memory).result()
        assert done.ok.all(), done.status
        self.device.note_blocks(plan.entries(done.ok))
        self.unflushed += [(unit, self.generation) for unit in units.tolist()]


def main() -> None:
    path, seed, engine = sys.argv[1:]
    os.write(1, b"begun\n")
    writer = Writer(open_device(pathlib.Path(path), engine), int(seed))
    while True:
        writer.turn()


if __name__ == "__main__":
    main()
