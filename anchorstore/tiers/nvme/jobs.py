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
from anchorstore.tiers.nvme.format import (
    FOOTER,
    FOOTER_BLOCK,
    FOOTER_BYTES,
    FOOTER_GENERATION,
    UNIT_BYTES,
    xxh3,
)
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status, WritePlan, promise

MemoryOf = Callable[[int], npt.NDArray[np.uint8]]
"""All bytes of the memory that a plan's `segment_index` names."""

_FOOTER_NAMES = (
    *("generation", "page", "block_bytes", "lineage", "checksum", "layout_key"),
    *("path_hash", "parent_hash", "namespace", "kind"),
)
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
        self.future: Future[Done] = promise()
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
        self._footers = self._footers_of(plan)
        self.runs = collections.deque(self._cut(places, sizes.astype(np.int64)))

    def _footers_of(self, plan: WritePlan | ReadPlan) -> bytes:
        """128 bytes a block: what its footer shows, as far as the plan says."""
        footers = np.zeros(len(plan), FOOTER)
        footers["device_key"] = self._device_key
        for name in _FOOTER_NAMES:
            footers[name] = getattr(plan, name, 0)
        return nvme_format.sealed_footers(footers)

    def _footer(self, index: int) -> bytes:
        return self._footers[index * FOOTER_BYTES : (index + 1) * FOOTER_BYTES]

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

    def offset_of(self, run: Run) -> int:
        """Where the run starts in the file."""
        return self._places[run.start]

    def prepare(self, run: Run, places: list[Place]) -> list[Any]:
        """The buffers of a run, in the file's order."""
        buffers: list[Any] = []
        for index, place in enumerate(places, run.start):
            if len(place.whole):
                buffers.append(place.whole)
            buffers.append(place.tail)
            self._before(index, place)
        return buffers

    def complete(self, run: Run, places: list[Place]) -> None:
        """The kernel has moved all bytes of the run."""
        for index, place in enumerate(places, run.start):
            self.status[index] = self._after(index, place)

    def tails(self, run: Run, places: list[Place]) -> Iterator[tuple[memoryview, int]]:
        """The scratch of each slot's end, and where that lies in the file."""
        for index, place in enumerate(places, run.start):
            yield place.tail, self._places[index] + len(place.whole)

    def places_of(self, run: Run, scratch: memoryview) -> list[Place]:
        """Where the parts of each block of a run go to or come from."""
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


class WriteJob(Job):
    """Blocks on their way to the device."""

    is_write = True

    def _before(self, index: int, place: Place) -> None:
        tail, size = place.tail, len(place.rest)
        tail[:size] = place.rest.data
        tail[size:-FOOTER_BYTES] = bytes(len(tail) - size - FOOTER_BYTES)
        tail[-FOOTER_BYTES:] = self._footer(index)

    def _after(self, index: int, place: Place) -> Status:
        return Status.OK


class ReadJob(Job):
    """Blocks on their way to memory."""

    def __init__(self, plan: ReadPlan, *where: Any) -> None:
        super().__init__(plan, *where)
        self._checksums: list[int] = plan.checksum.tolist()

    def judge_footers(self, run: Run, places: list[Place]) -> None:
        """The ends of the slots are there: what they say, whatever lies before them."""
        for index, place in enumerate(places, run.start):
            self.status[index] = self._footer_verdict(index, place)

    def _footer_verdict(self, index: int, place: Place) -> Status:
        found, wanted = bytes(place.tail[-FOOTER_BYTES:]), self._footer(index)
        if not nvme_format.is_footer(found, self._device_key):
            return Status.FOREIGN
        is_it = (
            found[FOOTER_BLOCK] == wanted[FOOTER_BLOCK]
            and found[FOOTER_GENERATION] == wanted[FOOTER_GENERATION]
        )
        return Status.OK if is_it else Status.OTHER

    def _after(self, index: int, place: Place) -> Status:
        verdict = self._footer_verdict(index, place)
        if verdict != Status.OK:
            return verdict
        if len(place.rest):
            place.rest[:] = np.frombuffer(place.tail[: len(place.rest)], np.uint8)
        return Status.OK if xxh3(place.block) == self._checksums[index] else Status.TORN
