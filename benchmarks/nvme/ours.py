"""The tier's side: a device with every slot written, batches of blocks in and out.

What the daemon does for a block is all there: footers made and judged, checksums of what was read,
straight between the file and memory that lies as the pool's does.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import pathlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Literal

import numpy as np
import numpy.typing as npt

from anchorstore.keys import Namespace
from anchorstore.layout import KvLayout
from anchorstore.tiers.nvme.device import NvmeDevice, Options
from anchorstore.tiers.nvme.format import UNIT_BYTES, align, slot_bytes_of, xxh3
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import Done, ReadPlan, WritePlan
from anchorstore.tiers.nvme.scheduler import Limits
from anchorstore.tiers.nvme.seam import aligned
from anchorstore.units import MIB
from benchmarks.nvme.figures import Round

Numbers = npt.NDArray[np.int64]
Order = Literal["random", "wide", "adjoining"]
NOTE = NamespaceNote(Namespace("default", "benchmark", bytes(32)), 16)
HUGE_BYTES = 2 * MIB
PLANS_OUT = 2  # so that the queue never runs dry between two
JOURNAL_BYTES = 8 * MIB
PLAN_BYTES = 2 * MIB  # of a plan, where `depth` blocks are fewer
WIDE_PLAN_BYTES = 16 * MIB


def memory(size: int, is_huge: bool) -> npt.NDArray[np.uint8]:
    """Memory such as the pool's, of its pages; OSError without enough huge ones in reserve."""
    if not is_huge:
        return np.frombuffer(aligned(size), np.uint8)
    descriptor = os.memfd_create("benchmark", os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    try:
        os.ftruncate(descriptor, -(-size // HUGE_BYTES) * HUGE_BYTES)
        return np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    finally:
        os.close(descriptor)


class Ours:
    """One device of `stored_bytes` of blocks of one size."""

    def __init__(
        self,
        device: NvmeDevice,
        block_bytes: int,
        stored_bytes: int,
        depth: int,
        is_huge: bool = False,
    ) -> None:
        self._device, self._block_bytes = device, block_bytes
        slot_units = slot_bytes_of(block_bytes) // UNIT_BYTES
        segment_units = device.segment_bytes // UNIT_BYTES
        a_segment = segment_units // slot_units
        count = min(stored_bytes // block_bytes, a_segment * device.segments)
        number = np.arange(count)
        self._units = (
            number // a_segment * segment_units + number % a_segment * slot_units
        ).astype(np.uint32)
        self._random = np.random.default_rng(1)
        self._hashes = self._random.integers(0, 2**63, (count, 4), np.uint64)
        self._depth, self._step = depth, align(block_bytes)
        size = self._step * self._blocks_in_plan("wide")
        *self._memories, self._source = (memory(size, is_huge) for _ in range(PLANS_OUT + 1))
        self._source[:size] = self._random.integers(0, 256, size, np.uint8)
        self._checksums = np.zeros(count, np.uint64)
        self._source_checksums = np.array(
            [xxh3(self._source[at : at + block_bytes]) for at in range(0, size, self._step)],
            np.uint64,
        )
        self._namespace, self._kind = (
            device.namespace_number(NOTE),
            device.kind_number(KvLayout(1, 1, block_bytes // 128, "uint8", 0, 1)),
        )

    def fill(self) -> None:
        """Writes every slot once."""
        batch = self._blocks_in_plan("wide")
        for at in range(0, len(self._units), batch):
            which = np.arange(at, min(at + batch, len(self._units)))
            assert self._write(which).result().ok.all()

    def _write(self, which: Numbers) -> Future[Done]:
        count = len(which)
        self._checksums[which] = self._source_checksums[:count]
        plan = WritePlan(
            segment_index=np.zeros(count, np.uint32),
            offset=np.arange(count, dtype=np.uint64) * np.uint64(self._step),
            block_bytes=np.full(count, self._block_bytes, np.uint64),
            unit=self._units[which],
            generation=np.full(count, 2, np.uint32),
            page=which.astype(np.uint32),
            parent_hash=self._hashes[which],
            path_hash=self._hashes[which],
            namespace=np.full(count, self._namespace, np.uint32),
            kind=np.full(count, self._kind, np.uint16),
            layout_key=np.full(count, 1, np.uint64),
            lineage=np.zeros(count, np.uint8),
            checksum=self._checksums[which],
        )
        return self._device.write(plan, lambda _: self._source)

    def _read(self, which: Numbers, memory: int) -> Future[Done]:
        count = len(which)
        plan = ReadPlan(
            segment_index=np.full(count, memory, np.uint32),
            offset=np.arange(count, dtype=np.uint64) * np.uint64(self._step),
            block_bytes=np.full(count, self._block_bytes, np.uint64),
            unit=self._units[which],
            generation=np.full(count, 2, np.uint32),
            path_hash=self._hashes[which],
            layout_key=np.full(count, 1, np.uint64),
            lineage=np.zeros(count, np.uint8),
            checksum=self._checksums[which],
        )
        return self._device.read(plan, self._memories.__getitem__)

    def _blocks_in_plan(self, order: Order) -> int:
        """A part of what is stored, so that no two plans that are out share a block."""
        plan_bytes = WIDE_PLAN_BYTES if order == "wide" else PLAN_BYTES
        most = len(self._units) // PLANS_OUT
        return min(most, max(self._depth, plan_bytes // self._block_bytes))

    def _chosen(self, order: Order, count: int, among: int) -> Iterator[Numbers]:
        """Plan by plan, for ever."""
        while True:
            if order == "adjoining":
                yield int(self._random.integers(among - count + 1)) + np.arange(count)
                continue
            mixed = self._random.permutation(among)
            yield from (mixed[at : at + count] for at in range(0, among - count + 1, count))

    def run(self, is_write: bool, order: Order, seconds: float) -> Round:
        """Plans for so long, each of random slots or of adjoining ones, as the pages of a path
        lie."""
        out: collections.deque[Future[Done]] = collections.deque()
        half = len(self._units) // PLANS_OUT
        chosen = self._chosen(order, self._blocks_in_plan(order), half)
        turn, moved = 0, 0
        started, busy = time.perf_counter(), time.process_time()
        while True:
            is_over = time.perf_counter() - started >= seconds
            if not is_over:
                memory = turn % PLANS_OUT
                which = next(chosen) + memory * half
                out.append(self._write(which) if is_write else self._read(which, memory))
                turn += 1
            if len(out) == PLANS_OUT or (is_over and out):
                done = out.popleft().result()
                assert done.ok.all(), f"a block failed: {done.status}"
                moved += len(done.status) * self._block_bytes
            if is_over and not out:
                break
        return Round(moved, time.perf_counter() - started, time.process_time() - busy)


@contextlib.contextmanager
def opened(
    path: pathlib.Path,
    block_bytes: int,
    stored_bytes: int,
    engine: str,
    depth: int,
    *,
    is_huge: bool = False,
) -> Iterator[Ours | None]:
    """Our side on a device in `path`, with memory on huge pages or on the usual ones; None where
    the kernel does not allow that engine."""
    segment_bytes = max(64 * MIB, align(4 * slot_bytes_of(block_bytes)))
    slots_bytes = stored_bytes // block_bytes * slot_bytes_of(block_bytes)
    segments = -(-slots_bytes // (segment_bytes - slot_bytes_of(block_bytes))) + 1
    capacity = segments * segment_bytes + 3 * JOURNAL_BYTES
    options = Options(
        engine=engine,
        limits=Limits(depth=depth, deadline_seconds=60.0),
        journal_bytes=JOURNAL_BYTES,
    )
    log: list[str] = []
    device = NvmeDevice.open(path, capacity, segment_bytes, log=log.append, options=options)
    try:
        if device.engine != engine:
            yield None
            return
        subject = Ours(device, block_bytes, stored_bytes, depth, is_huge)
        subject.fill()
        yield subject
    finally:
        device.close()
        (path / "anchorstore.nvme").unlink()
