"""A plan while the device works on it: cut into runs, each one call to the kernel.

::

    plan    | a | b | c | d | e |        blocks in the caller's order: anchors first, say
    slots   | 7 | 8 | 9 | 3 | 4 |        neighbours in the file
    runs    [ a   b   c ][ d   e ]       a run: preadv(offset of slot 7, [a, tail, b, tail, ...])

Whole pages of a block move straight between pool and file; its last bytes share one or two scratch
pages with the footer.  A run that fails is tried again block by block, so that one bad sector costs
one block.

A read asks for no footer at its end: bytes that have the block's checksum are the block, whatever
stands behind them.  Only where they have not is the block read again *closely*, with its footer,
which says what the slot holds instead.

How many small blocks a core moves is decided by the Python that runs for each of them, between two
calls, with cold caches.  Hence a plan is opened once, for all its blocks and in the engine's
thread; what is left for a block is a few plain steps.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

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
from anchorstore.tiers.nvme.seam import address_of, aligned

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
_OK = Status.OK


@dataclasses.dataclass(slots=True, eq=False)
class Run:
    """Blocks `start` to `stop` - 1 of a job; they lie side by side in the file."""

    job: Job
    start: int
    stop: int
    offset: int  # where its first slot lies in the file
    size: int  # bytes to move
    is_close: bool  # the last slot's footer is among them

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
            size: [memory[end - size : end] for end in ends]
            for size in (UNIT_BYTES, TAIL_BYTES_MAX)
        }


class Block(NamedTuple):
    """One block of a plan."""

    place: int  # its slot in the file
    memory: memoryview  # its bytes
    address: int  # where they lie
    whole: int  # bytes of it that move straight: whole pages
    rest: int  # bytes of its last page, where that is not whole
    tail: int  # bytes of the slot's end
    checksum: int


class Job:
    """One plan in the queue.  The scheduler's lock guards it until a run is taken.

    Args:
        base_unit: the plan's number of the device's first unit.
        data_offset: where that unit lies in the file.
        is_close: whether its runs begin so.
    """

    is_write = False

    def __init__(
        self,
        plan: WritePlan | ReadPlan,
        memory_of: MemoryOf,
        base_unit: int,
        data_offset: int,
        device_key: int,
        *,
        is_close: bool,
    ) -> None:
        self.future: Future[Done] = promise()
        self._codes = bytearray(len(plan))
        self.status = np.frombuffer(self._codes, np.uint8)
        self.blocks_left = len(plan)
        self.deadline = 0.0
        self.error: Exception | None = None  # a broken invariant: the future's exception
        self._plan, self._memory_of, self._device_key = plan, memory_of, device_key
        slots = nvme_format.align_many(plan.block_bytes + np.uint64(FOOTER_BYTES)).astype(np.int64)
        places = (plan.unit.astype(np.int64) - base_unit) * UNIT_BYTES + data_offset
        self._places: list[int] = places.tolist()
        self._slots: list[int] = slots.tolist()
        self._pages: list[int] = nvme_format.align_many(plan.block_bytes).tolist()
        self._opened: list[Block] = []
        self._footers: list[bytes] = []
        self.runs = collections.deque(self._cut(places, slots, is_close))

    def _run(self, start: int, stop: int, slots_bytes: int, is_close: bool) -> Run:
        last = stop - 1
        size = slots_bytes if is_close else slots_bytes - self._slots[last] + self._pages[last]
        return Run(self, start, stop, self._places[start], size, is_close)

    def _cut(
        self, places: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], is_close: bool
    ) -> list[Run]:
        """Runs of neighbours, none above the limits but for a single block."""
        runs: list[Run] = []
        joined = (places[1:] == places[:-1] + slots[:-1]).tolist()
        start, total = 0, 0
        for at, size in enumerate(self._slots):
            is_full = total + size > RUN_BYTES_MAX or at - start >= RUN_BLOCKS_MAX
            if at and (is_full or not joined[at - 1]):
                runs.append(self._run(start, at, total, is_close))
                start, total = at, 0
            total += size
        return [*runs, self._run(start, len(slots), total, is_close)]

    def __len__(self) -> int:
        return len(self._places)

    def single(self, at: int, is_close: bool) -> Run:
        """A run of one block alone."""
        return self._run(at, at + 1, self._slots[at], is_close)

    def singles(self, run: Run) -> list[Run]:
        """A run of each of its blocks alone, as close as itself."""
        return [self.single(at, run.is_close) for at in range(run.start, run.stop)]

    def blocks(self, run: Run) -> list[Block]:
        """The blocks of a run."""
        if not self._opened:
            self._opened = self._open()  # two threads may both do it: the same comes out
        return self._opened[run.start : run.stop]

    def _open(self) -> list[Block]:
        plan, found = self._plan, []
        segments = plan.segment_index.tolist()
        memories = {at: memoryview(self._memory_of(at)) for at in set(segments)}
        addresses = {at: address_of(memory) for at, memory in memories.items()}
        for place, slot, pages, segment, offset, size, checksum in zip(
            *(self._places, self._slots, self._pages, segments, plan.offset.tolist()),
            *(plan.block_bytes.tolist(), plan.checksum.tolist()),
            strict=True,
        ):
            memory = memories[segment][offset : offset + size]
            assert len(memory) == size, f"a block of {size} bytes at {offset} exceeds its segment"
            whole = size - size % UNIT_BYTES
            ends = pages - whole, slot - whole
            address = addresses[segment] + offset
            found.append(Block(place, memory, address, whole, *ends, checksum))
        return found

    def footers(self, run: Run) -> list[bytes]:
        """What the slots' footers show, as far as the plan says."""
        if not self._footers:
            self._footers = self._all_footers()
        return self._footers[run.start : run.stop]

    def _all_footers(self) -> list[bytes]:
        footers = np.zeros(len(self), FOOTER)
        footers["device_key"] = self._device_key
        for name in _FOOTER_NAMES:
            footers[name] = getattr(self._plan, name, 0)
        if self.is_write:
            nvme_format.seal_footers(footers)
        data = footers.tobytes()
        return [data[at : at + FOOTER_BYTES] for at in range(0, len(data), FOOTER_BYTES)]

    def buffers(self, run: Run, scratch: Scratch) -> list[memoryview]:
        """The memory of a run, in the file's order."""
        found = []
        for at, block in enumerate(self.blocks(run)):
            if block.whole:
                found.append(block.memory[: block.whole])
            found.append(scratch.tails[block.tail][at])
        if not run.is_close:
            found[-1] = found[-1][: block.rest]
        return found if len(found[-1]) else found[:-1]

    def straight(self, run: Run) -> int:
        """The address of the run's memory, where all of it lies there in one piece; 0 where not."""
        if self.is_write or run.is_close or len(run) > 1:
            return 0
        [block] = self.blocks(run)
        return 0 if block.rest else block.address

    def vectors(self, run: Run, scratch: Scratch, into: memoryview) -> int:
        """The same as addresses and lengths u64[2 n] in `into`; the number of their pairs."""
        used = 0
        for at, (_, _, address, whole, _, tail, _) in enumerate(self.blocks(run)):
            if whole:
                into[used], into[used + 1] = address, whole
                used += 2
            into[used], into[used + 1] = scratch.ends[at] - tail, tail
            used += 2
        if not run.is_close:
            into[used - 1] = self.blocks(run)[-1].rest
            used -= 0 if into[used - 1] else 2
        return used // 2

    def tails(self, run: Run, scratch: Scratch) -> Iterator[tuple[memoryview, int]]:
        """The scratch of each slot's end, and where that lies in the file."""
        for at, block in enumerate(self.blocks(run)):
            yield scratch.tails[block.tail][at], block.place + block.whole

    def fill(self, run: Run, scratch: Scratch) -> None:
        """Makes the ends of slots that are to be written."""

    def judge(self, run: Run, scratch: Scratch) -> list[Run]:
        """The kernel has moved all bytes of the run: says how it went with each block.  Returns
        closer looks at those whose bytes are wrong, which only their footers can say more of.
        """
        raise NotImplementedError

    def settle(self, run: Run, verdict: Status) -> None:
        """Says the same of all blocks of a run."""
        self._codes[run.start : run.stop] = bytes((verdict,)) * len(run)

    def give_up(self, run: Run, verdict: Status) -> None:
        """Says the same of all its blocks that nothing is known of."""
        for at in range(run.start, run.stop):
            self._codes[at] = self._codes[at] or verdict


class WriteJob(Job):
    """Blocks on their way to the device."""

    is_write = True

    def __init__(
        self, plan: WritePlan, memory_of: MemoryOf, base_unit: int, data_offset: int, key: int
    ) -> None:
        super().__init__(plan, memory_of, base_unit, data_offset, key, is_close=True)

    def fill(self, run: Run, scratch: Scratch) -> None:
        for at, (block, footer) in enumerate(zip(self.blocks(run), self.footers(run), strict=True)):
            tail, rest = scratch.tails[block.tail][at], len(block.memory) - block.whole
            if rest:
                tail[:rest] = block.memory[block.whole :]
            tail[rest:-FOOTER_BYTES] = _ZEROS[rest : block.tail - FOOTER_BYTES]
            scratch.footers[at][:] = footer

    def judge(self, run: Run, scratch: Scratch) -> list[Run]:
        self.settle(run, Status.OK)
        return []


class ReadJob(Job):
    """Blocks on their way to memory."""

    def judge(self, run: Run, scratch: Scratch) -> list[Run]:
        doubts: list[Run] = []
        for at, (_, memory, _, whole, rest, tail, checksum) in enumerate(self.blocks(run)):
            if rest:
                memory[whole:] = scratch.tails[tail][at][: len(memory) - whole]
            number = run.start + at
            if xxh3(memory) == checksum:
                self._codes[number] = _OK
            elif run.is_close:
                verdict = self._verdict(run, scratch, at)
                self._codes[number] = Status.TORN if verdict == _OK else verdict
            else:
                self._codes[number] = Status.TORN  # so much is known, whatever becomes of the look
                doubts.append(self.single(number, is_close=True))
        return doubts

    def judge_footers(self, run: Run, scratch: Scratch) -> None:
        """The ends of the slots are there: what they say, whatever lies before them."""
        for at in range(len(run)):
            self._codes[run.start + at] = self._verdict(run, scratch, at)

    def _verdict(self, run: Run, scratch: Scratch, at: int) -> Status:
        """What the footer of a run's block says."""
        found, wanted = bytes(scratch.footers[at]), self.footers(run)[at]
        if not nvme_format.is_footer(found, self._device_key):
            return Status.FOREIGN
        is_it = (
            found[FOOTER_BLOCK] == wanted[FOOTER_BLOCK]
            and found[FOOTER_GENERATION] == wanted[FOOTER_GENERATION]
        )
        return _OK if is_it else Status.OTHER
