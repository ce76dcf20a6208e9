"""A plan while the device works on it: cut into runs, each one call to the kernel.

::

    plan    | a | b | c | d | e |        blocks in the caller's order: anchors first, say
    slots   | 7 | 8 | 9 | 3 | 4 |        neighbours in the file
    runs    [ a   b   c ][ d   e ]       a run: preadv(offset of slot 7, [a, tail, b, tail, ...])

Whole pages of a block move straight between pool and file; its last bytes share one or two scratch
pages with the footer.  A run that fails is tried again block by block, so that one bad sector costs
one block.

What can be worked out for all blocks of a plan at once is, when the job is made; what is left for
each block is a few steps of plain Python, since those decide how many small blocks a core moves.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

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
from anchorstore.tiers.nvme.seam import aligned

MemoryOf = Callable[[int], npt.NDArray[np.uint8]]
"""All bytes of the memory that a plan's `segment_index` names."""

_FOOTER_NAMES = (
    *("generation", "page", "block_bytes", "lineage", "checksum", "layout_key"),
    *("path_hash", "parent_hash", "namespace", "kind"),
)
RUN_BYTES_MAX = 1024 * 1024
RUN_BLOCKS_MAX = 64
TAIL_BYTES_MAX = 2 * UNIT_BYTES
_ZEROS = memoryview(bytes(TAIL_BYTES_MAX))


def address_of(buffer: memoryview) -> int:
    """Where writable memory lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@dataclasses.dataclass(slots=True, eq=False)
class Run:
    """Blocks `start` to `stop` - 1 of a job; they lie side by side in the file."""

    job: Job
    start: int
    stop: int
    size: int  # bytes of the slots

    def __len__(self) -> int:
        return self.stop - self.start


class Scratch:
    """Room for the ends of the slots of one run.

    ::

        | .... tail 0 | tail 1, a long one | .... tail 2 |
                                  tail:  rest of the block | zeros | footer

    Every tail ends where its room ends, so that footer n always lies at the same place.
    """

    def __init__(self) -> None:
        memory = aligned(RUN_BLOCKS_MAX * TAIL_BYTES_MAX)
        start = address_of(memory)
        ends = range(TAIL_BYTES_MAX, len(memory) + 1, TAIL_BYTES_MAX)
        self.ends = [start + end for end in ends]  # addresses
        self.footers = [memory[end - FOOTER_BYTES : end] for end in ends]
        self.tails = {
            size: [memory[end - size : end] for end in ends] for size in (UNIT_BYTES, TAIL_BYTES_MAX)
        }


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
        self._codes = bytearray(len(plan))
        self.status = np.frombuffer(self._codes, np.uint8)
        self.blocks_left = len(plan)
        self.deadline = 0.0
        self.error: Exception | None = None  # a broken invariant: the future's exception
        self._memory_of, self._device_key = memory_of, device_key
        self._memories: dict[int, tuple[memoryview, int]] = {}
        sizes = plan.block_bytes.astype(np.int64)
        slots = nvme_format.align_many(plan.block_bytes + np.uint64(FOOTER_BYTES)).astype(np.int64)
        whole = sizes - sizes % UNIT_BYTES
        places = (plan.unit.astype(np.int64) - base_unit) * UNIT_BYTES + data_offset
        self._places: list[int] = places.tolist()
        self._segments: list[int] = plan.segment_index.tolist()
        self._offsets: list[int] = plan.offset.tolist()
        self._sizes: list[int] = sizes.tolist()
        self._whole: list[int] = whole.tolist()
        self._tails: list[int] = (slots - whole).tolist()
        self._footers = self._footers_of(plan)
        self.runs = collections.deque(self._cut(places, slots))

    def _footers_of(self, plan: WritePlan | ReadPlan) -> list[bytes]:
        """What the footer of each block shows, as far as the plan says."""
        footers = np.zeros(len(plan), FOOTER)
        footers["device_key"] = self._device_key
        for name in _FOOTER_NAMES:
            footers[name] = getattr(plan, name, 0)
        sealed = nvme_format.sealed_footers(footers)
        return [sealed[at : at + FOOTER_BYTES] for at in range(0, len(sealed), FOOTER_BYTES)]

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

    def singles(self, run: Run) -> list[Run]:
        """A run of each of its blocks alone."""
        sizes = zip(self._whole, self._tails, strict=True)
        slots = [whole + tail for whole, tail in list(sizes)[run.start : run.stop]]
        return [Run(self, at, at + 1, size) for at, size in enumerate(slots, run.start)]

    def offset_of(self, run: Run) -> int:
        """Where the run starts in the file."""
        return self._places[run.start]

    def buffers(self, run: Run, scratch: Scratch) -> list[memoryview]:
        """The memory of a run, in the file's order."""
        found = []
        for at, index in enumerate(range(run.start, run.stop)):
            if self._whole[index]:
                found.append(self._block(index)[: self._whole[index]])
            found.append(scratch.tails[self._tails[index]][at])
        return found

    def vectors(self, run: Run, scratch: Scratch, into: memoryview) -> int:
        """The same as addresses and lengths u64[2 n] in `into`; the number of their pairs."""
        used = 0
        for at, index in enumerate(range(run.start, run.stop)):
            whole, tail = self._whole[index], self._tails[index]
            if whole:
                into[used], into[used + 1] = self._address(index), whole
                used += 2
            into[used], into[used + 1] = scratch.ends[at] - tail, tail
            used += 2
        return used // 2

    def tails(self, run: Run, scratch: Scratch) -> Iterator[tuple[memoryview, int]]:
        """The scratch of each slot's end, and where that lies in the file."""
        for at, index in enumerate(range(run.start, run.stop)):
            yield scratch.tails[self._tails[index]][at], self._places[index] + self._whole[index]

    def fill(self, run: Run, scratch: Scratch) -> None:
        """Makes the ends of slots that are to be written."""

    def judge(self, run: Run, scratch: Scratch) -> None:
        """The kernel has moved all bytes of the run: says how it went with each block."""
        raise NotImplementedError

    def settle(self, run: Run, verdict: Status) -> None:
        """Says the same of all blocks of a run."""
        self._codes[run.start : run.stop] = bytes((verdict,)) * len(run)

    def _memory(self, segment: int) -> tuple[memoryview, int]:
        """A segment's bytes, and where they lie."""
        found = self._memories.get(segment)
        if found is None:
            memory = memoryview(self._memory_of(segment))
            found = self._memories[segment] = memory, address_of(memory)
        return found

    def _address(self, index: int) -> int:
        memory, address = self._memory(self._segments[index])
        offset = self._offsets[index]
        assert offset + self._sizes[index] <= len(memory), f"block {index} exceeds its segment"
        return address + offset

    def _block(self, index: int) -> memoryview:
        memory, _ = self._memory(self._segments[index])
        start, size = self._offsets[index], self._sizes[index]
        block = memory[start : start + size]
        assert len(block) == size, f"block {index} exceeds its segment"
        return block


class WriteJob(Job):
    """Blocks on their way to the device."""

    is_write = True

    def fill(self, run: Run, scratch: Scratch) -> None:
        for at, index in enumerate(range(run.start, run.stop)):
            tail = scratch.tails[self._tails[index]][at]
            rest = self._sizes[index] - self._whole[index]
            if rest:
                tail[:rest] = self._block(index)[-rest:]
            tail[rest:-FOOTER_BYTES] = _ZEROS[: len(tail) - FOOTER_BYTES - rest]
            scratch.footers[at][:] = self._footers[index]

    def judge(self, run: Run, scratch: Scratch) -> None:
        self.settle(run, Status.OK)


class ReadJob(Job):
    """Blocks on their way to memory."""

    def __init__(self, plan: ReadPlan, *where: Any) -> None:
        super().__init__(plan, *where)
        self._checksums: list[int] = plan.checksum.tolist()

    def judge(self, run: Run, scratch: Scratch) -> None:
        self.judge_footers(run, scratch)
        for at, index in enumerate(range(run.start, run.stop)):
            if self._codes[index] != Status.OK:
                continue
            block = self._block(index)
            rest = len(block) - self._whole[index]
            if rest:
                block[-rest:] = scratch.tails[self._tails[index]][at][:rest]
            if xxh3(block) != self._checksums[index]:
                self._codes[index] = Status.TORN

    def judge_footers(self, run: Run, scratch: Scratch) -> None:
        """The ends of the slots are there: what they say, whatever lies before them."""
        for at, index in enumerate(range(run.start, run.stop)):
            self._codes[index] = self._verdict(bytes(scratch.footers[at]), self._footers[index])

    def _verdict(self, found: bytes, wanted: bytes) -> Status:
        if not nvme_format.is_footer(found, self._device_key):
            return Status.FOREIGN
        is_it = (
            found[FOOTER_BLOCK] == wanted[FOOTER_BLOCK]
            and found[FOOTER_GENERATION] == wanted[FOOTER_GENERATION]
        )
        return Status.OK if is_it else Status.OTHER
