"""Moves sealed blocks from staging memory into the pool, off the event loop.

::

    loop:     begin_seal -> CopyPlan --+                      +--> finish_seal(ok, checksums)
    threads:                           +-> slice -> slice -> -+
              a block:  generation odd | copy | xxh3 of the POOL's bytes | compare | record | even

The staging memory belongs to the writer and may change at any time, so what is hashed is what
lies in the pool: the checksum names exactly the bytes that readers will get.  A block whose
checksum differs from the writer's keeps its odd generation, which no reader accepts.  Copying and
hashing both run without the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.errors import Overloaded
from anchorstore.tiers.base import Tier
from anchorstore.transport.segment import GENERATION, RECORD_BODY, record_offset

SLICE_BYTES_MIN = 512 * 1024  # below it, waking a second thread costs more than it saves
RETRY_AFTER_MS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class CopyPlan:
    """Blocks to copy; columns of equal length [n].

    Attributes:
        source: the writer's staging memory [bytes].
        source_offsets: where each block lies in it, checked by the caller to lie within.
        segment_indices, slots, offsets: where it goes in the tier.
        block_bytes: its size.
        generations: the odd generation that marks it as being written.
        path_hashes: u64[n, 4], layout_keys: u64[n], for the slot's record.
        lineage: of all of them.
        expected: the writer's xxh3 of each block; None where it gave none.
    """

    source: npt.NDArray[np.uint8]
    source_offsets: npt.NDArray[np.uint64]
    segment_indices: npt.NDArray[np.uint32]
    slots: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    block_bytes: npt.NDArray[np.uint64]
    generations: npt.NDArray[np.uint32]
    path_hashes: npt.NDArray[np.uint64]
    layout_keys: npt.NDArray[np.uint64]
    lineage: int
    expected: npt.NDArray[np.uint64] | None

    def __len__(self) -> int:
        return len(self.offsets)


@dataclasses.dataclass(slots=True)
class CopyResult:
    """Per block [n]: whether its bytes are those that the writer meant, and their xxh3."""

    ok: npt.NDArray[np.bool_]
    checksums: npt.NDArray[np.uint64]


@dataclasses.dataclass(eq=False, slots=True)
class _Job:
    """A plan that the threads work on."""

    plan: CopyPlan
    result: CopyResult
    slices_left: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[CopyResult]
    error: Exception | None = None

    @property
    def size_bytes(self) -> int:
        return int(self.plan.block_bytes.sum())


def copy_slice(tier: Tier, plan: CopyPlan, result: CopyResult, start: int, stop: int) -> None:
    """Copies blocks start..stop-1 of the plan and fills their part of the result."""
    expected = None if plan.expected is None else plan.expected[start:stop].tolist()
    rows = zip(
        plan.source_offsets[start:stop].tolist(),
        plan.segment_indices[start:stop].tolist(),
        plan.slots[start:stop].tolist(),
        plan.offsets[start:stop].tolist(),
        plan.block_bytes[start:stop].tolist(),
        plan.generations[start:stop].tolist(),
        plan.layout_keys[start:stop].tolist(),
        strict=True,
    )
    for row, (source, segment, slot, offset, size, generation, key) in enumerate(rows):
        assert generation % 2 == 1, f"slot {slot}: generation {generation} is not a writer's"
        memory, record = tier.memory(segment), record_offset(slot)
        GENERATION.pack_into(memory, record, generation)
        target = memory[offset : offset + size]
        np.copyto(target, plan.source[source : source + size])
        checksum = xxhash.xxh3_64_intdigest(target)
        good = expected is None or checksum == expected[row]
        if good:
            path_hash = plan.path_hashes[start + row].tobytes()
            body = (plan.lineage, key, checksum, path_hash)
            RECORD_BODY.pack_into(memory, record + GENERATION.size, *body)
            GENERATION.pack_into(memory, record, generation + 1)
        result.ok[start + row] = good
        result.checksums[start + row] = checksum


def slices(block_bytes: npt.NDArray[np.uint64], parts: int) -> list[tuple[int, int]]:
    """Cuts n blocks into at most `parts` runs of about equal bytes, none needlessly small."""
    ends = np.cumsum(block_bytes)
    total = int(ends[-1])
    parts = max(1, min(parts, total // SLICE_BYTES_MIN, len(ends)))
    marks = [total * part // parts for part in range(1, parts)]
    cuts = np.searchsorted(ends, marks) + 1
    edges = [0, *cuts.tolist(), len(ends)]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


class Mover:
    """A bounded pool of copying threads.

    Args:
        tier: where the blocks go.
        threads: copies at the same time.
        queue_max: seals accepted but not yet copied; a further one is Overloaded.
    """

    def __init__(self, tier: Tier, threads: int, queue_max: int) -> None:
        assert threads >= 1, threads
        self._tier, self._threads, self._queue_max = tier, threads, queue_max
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="mover")
        self._lock = threading.Lock()  # over every job's slices_left
        self.queued = 0
        self.queued_bytes = 0
        self.bytes_copied = 0
        self.blocks_copied = 0

    def check_room(self) -> None:
        """Overloaded where the queue is full."""
        if self.queued >= self._queue_max:
            error = Overloaded(
                f"seal: {self.queued} seals are waiting to be copied, limit {self._queue_max} "
                "(limits.mover_queue)"
            )
            error.retry_after_ms = RETRY_AFTER_MS
            raise error

    def copy(self, plan: CopyPlan) -> asyncio.Future[CopyResult]:
        """Begins a plan of at least one block, from the event loop; nothing stops it."""
        count, loop = len(plan), asyncio.get_running_loop()
        parts = slices(plan.block_bytes, self._threads)
        result = CopyResult(np.zeros(count, np.bool_), np.zeros(count, np.uint64))
        job = _Job(plan, result, len(parts), loop, loop.create_future())
        self.queued += 1
        self.queued_bytes += job.size_bytes
        for start, stop in parts:
            self._executor.submit(self._run, job, start, stop)
        return job.done

    def _run(self, job: _Job, start: int, stop: int) -> None:
        """One slice, in a thread; whoever ends last tells the loop."""
        try:
            copy_slice(self._tier, job.plan, job.result, start, stop)
        except Exception as error:  # noqa: BLE001 - handed to the loop, whatever it is
            job.error = error
        with self._lock:
            job.slices_left -= 1
            is_last = not job.slices_left
        if is_last:
            job.loop.call_soon_threadsafe(self._ended, job)

    def _ended(self, job: _Job) -> None:
        self.queued -= 1
        self.queued_bytes -= job.size_bytes
        if job.error is not None:
            job.done.set_exception(job.error)
            return
        self.bytes_copied += job.size_bytes
        self.blocks_copied += len(job.plan)
        job.done.set_result(job.result)

    def close(self) -> None:
        """Waits for the copies in flight."""
        self._executor.shutdown(wait=True)
