"""A plan while the device works on it: cut into runs, each one call to the kernel.

::

    plan    | a | b | c | d | e |        blocks in the caller's order: anchors first, say
    slots   | 7 | 8 | 9 | 3 | 4 |        neighbours in the file
    runs    [ a   b   c ][ d   e ]       a run: preadv(offset of slot 7, [a, tail, b, tail, ...])

Whole pages of a block move straight between pool and file; its last bytes share one or two scratch
pages with the footer.  A run that fails is tried again block by block, so that one bad sector costs
one block.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.format import FOOTER_BYTES, UNIT_BYTES, Footer, footer_of, xxh3
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status, WritePlan

MemoryOf = Callable[[int], npt.NDArray[np.uint8]]
"""All bytes of the memory that a plan's `segment_index` names."""

RUN_BYTES_MAX = 1024 * 1024
RUN_BLOCKS_MAX = 64
TAIL_BYTES_MAX = 2 * UNIT_BYTES
SCRATCH_BYTES = RUN_BLOCKS_MAX * TAIL_BYTES_MAX


class Run(NamedTuple):
    """Blocks `start` to `stop` - 1 of a job; they lie side by side in the file."""

    job: Job
    start: int
    stop: int
    size: int  # bytes of the slots


class Place(NamedTuple):
    """One block's part of a run."""

    whole: npt.NDArray[np.uint8]  # the pages that move straight
    rest: npt.NDArray[np.uint8]  # the block's last bytes, below a page
    tail: memoryview  # scratch: rest | zeros | footer
    block: npt.NDArray[np.uint8]


class Job:
    """One plan in the queue.  The scheduler's lock guards it until a run is taken.

    Args:
        base_unit: the plan's number of the device's first unit.
        data_offset: where that unit lies in the file.
    """

    is_write = False

    def __init__(
        self,
        plan: WritePlan | ReadPlan,
        memory_of: MemoryOf,
        base_unit: int,
        data_offset: int,
        device_key: int,
    ) -> None:
        self.future: Future[Done] = Future()
        self.status = np.zeros(len(plan), np.uint8)
        self.blocks_left = len(plan)
        self.deadline = 0.0
        self.error: Exception | None = None  # a broken invariant: the future's exception
        self._memory_of, self._device_key = memory_of, device_key
        sizes = nvme_format.align_many(plan.block_bytes + np.uint64(FOOTER_BYTES))
        places = (plan.unit.astype(np.int64) - base_unit) * UNIT_BYTES + data_offset
        self._places: list[int] = places.tolist()
        self._segments: list[int] = plan.segment_index.tolist()
        self._offsets: list[int] = plan.offset.tolist()
        self._bytes: list[int] = plan.block_bytes.tolist()
        self._generations: list[int] = plan.generation.tolist()
        self._checksums: list[int] = plan.checksum.tolist()
        self._keys: list[int] = plan.layout_key.tolist()
        self._lineages: list[int] = plan.lineage.tolist()
        self._hashes = np.ascontiguousarray(plan.path_hash)
        self.runs = collections.deque(self._cut(places, sizes.astype(np.int64)))

    def _cut(self, places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> list[Run]:
        """Runs of neighbours, none above the limits but for a single block."""
        runs: list[Run] = []
        joined = (places[1:] == places[:-1] + sizes[:-1]).tolist()
        start, total = 0, 0
        for at, size in enumerate(sizes.tolist()):
            is_full = total + size > RUN_BYTES_MAX or at - start >= RUN_BLOCKS_MAX
            if at and (is_full or not joined[at - 1]):
                runs.append(Run(self, start, at, total))
                start, total = at, 0
            total += size
        return [*runs, Run(self, start, len(sizes), total)]

    def __len__(self) -> int:
        return len(self._places)

    def single(self, index: int) -> Run:
        """The run of one block alone."""
        return Run(self, index, index + 1, nvme_format.slot_bytes_of(self._bytes[index]))

    def place_of(self, run: Run) -> int:
        """Where the run starts in the file."""
        return self._places[run.start]

    def prepare(self, run: Run, scratch: memoryview) -> list[Any]:
        """The buffers of a run, in the file's order."""
        buffers: list[Any] = []
        for index, place in zip(range(run.start, run.stop), self._split(run, scratch), strict=True):
            if len(place.whole):
                buffers.append(place.whole)
            buffers.append(place.tail)
            self._before(index, place)
        return buffers

    def complete(self, run: Run, scratch: memoryview) -> None:
        """The kernel has moved all bytes of the run."""
        for index, place in zip(range(run.start, run.stop), self._split(run, scratch), strict=True):
            self.status[index] = self._after(index, place)

    def tails(self, run: Run, scratch: memoryview) -> Iterator[tuple[memoryview, int]]:
        """The scratch of each slot's end, and where that lies in the file."""
        for index, place in zip(range(run.start, run.stop), self._split(run, scratch), strict=True):
            yield place.tail, self._places[index] + len(place.whole)

    def _split(self, run: Run, scratch: memoryview) -> list[Place]:
        places, used = [], 0
        for index in range(run.start, run.stop):
            size, offset = self._bytes[index], self._offsets[index]
            memory = self._memory_of(self._segments[index])
            whole = size - size % UNIT_BYTES
            tail_bytes = nvme_format.slot_bytes_of(size) - whole
            block = memory[offset : offset + size]
            assert len(block) == size, f"a block of {size} bytes at {offset} exceeds its segment"
            tail = scratch[used : used + tail_bytes]
            places.append(Place(block[:whole], block[whole:], tail, block))
            used += tail_bytes
        return places

    def _before(self, index: int, place: Place) -> None:
        """Fills what is to be written."""

    def _after(self, index: int, place: Place) -> Status:
        """Judges what was moved."""
        raise NotImplementedError

    def path_hash(self, index: int) -> bytes:
        """32 bytes."""
        return bytes(self._hashes[index])


class WriteJob(Job):
    """Blocks on their way to the device."""

    is_write = True

    def __init__(self, plan: WritePlan, *rest: Any) -> None:
        super().__init__(plan, *rest)
        self._pages: list[int] = plan.page.tolist()
        self._namespaces: list[int] = plan.namespace.tolist()
        self._kinds: list[int] = plan.kind.tolist()
        self._parents = np.ascontiguousarray(plan.parent_hash)

    def _before(self, index: int, place: Place) -> None:
        tail, size = place.tail, len(place.rest)
        tail[:size] = place.rest.data
        tail[size:-FOOTER_BYTES] = bytes(len(tail) - size - FOOTER_BYTES)
        tail[-FOOTER_BYTES:] = Footer(
            generation=self._generations[index],
            page=self._pages[index],
            block_bytes=self._bytes[index],
            lineage=self._lineages[index],
            checksum=self._checksums[index],
            layout_key=self._keys[index],
            path_hash=self.path_hash(index),
            parent_hash=self._parents[index].tobytes(),
            namespace=self._namespaces[index],
            kind=self._kinds[index],
        ).encoded(self._device_key)

    def _after(self, index: int, place: Place) -> Status:
        return Status.OK


class ReadJob(Job):
    """Blocks on their way to memory."""

    def judge_footers(self, run: Run, scratch: memoryview) -> None:
        """The ends of the slots are there: what they say, whatever lies before them."""
        for index, place in zip(range(run.start, run.stop), self._split(run, scratch), strict=True):
            self.status[index] = self._footer_verdict(index, place)

    def _footer_verdict(self, index: int, place: Place) -> Status:
        footer = footer_of(place.tail[-FOOTER_BYTES:], self._device_key)
        if footer is None:
            return Status.FOREIGN
        if (
            footer.generation != self._generations[index]
            or footer.path_hash != self.path_hash(index)
            or footer.layout_key != self._keys[index]
            or footer.block_bytes != self._bytes[index]
            or footer.lineage != self._lineages[index]
            or footer.checksum != self._checksums[index]
        ):
            return Status.OTHER
        return Status.OK

    def _after(self, index: int, place: Place) -> Status:
        verdict = self._footer_verdict(index, place)
        if verdict != Status.OK:
            return verdict
        if len(place.rest):
            place.rest[:] = np.frombuffer(place.tail[: len(place.rest)], np.uint8)
        return Status.OK if xxh3(place.block) == self._checksums[index] else Status.TORN
