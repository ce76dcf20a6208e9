"""One nvme device: a file or block device that holds blocks, and the journal that finds them again.

::

    open --> superblock, lock      write(plan) --> scheduler --> engine --> kernel
      |                            read(plan)  -->     "           xxh3 judged
      +--> recover: journal        note_blocks, note_gone --> journal --> kernel
           -> live blocks

Nothing here decides what is stored or where: the core hands out slots (units) and generations.
Nothing is believed either: a block is handed on only where the slot's bytes have its checksum.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import threading
from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock, SystemClock
from anchorstore.errors import ConfigError
from anchorstore.layout import Layout
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme import region as nvme_region
from anchorstore.tiers.nvme.engines import Engine, EngineFactory, ThreadEngine
from anchorstore.tiers.nvme.format import (
    SUPERBLOCK_BYTES,
    SUPERBLOCK_COPIES,
    UNIT_BYTES,
    Entries,
    Superblock,
)
from anchorstore.tiers.nvme.health import Health
from anchorstore.tiers.nvme.jobs import Job, MemoryOf, ReadJob, WriteJob
from anchorstore.tiers.nvme.journal import Journal
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import Done, ReadPlan, Status, WritePlan, promise
from anchorstore.tiers.nvme.queue_engine import aio_engine, ring_engine
from anchorstore.tiers.nvme.replay import Recovered
from anchorstore.tiers.nvme.scheduler import Limits, Scheduler
from anchorstore.tiers.nvme.seam import FileSeam, Log, OpenFile, aligned, open_direct, read_all
from anchorstore.units import format_bytes

ENGINES: Mapping[str, EngineFactory] = {
    "io_uring": ring_engine,
    "aio": aio_engine,
    "threads": ThreadEngine,
}
"""Where the kernel does not allow one, the next is taken."""
BEST_ENGINE = next(iter(ENGINES))


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a device is used.

    Attributes:
        engine: one of ENGINES, to begin with.
        limits: of its queue.
        journal_bytes: of each of the two journal regions, for a new device; 0 = by capacity.
        flush_seconds: from a note to the journal, at most.
        retry_seconds: from a degrading fault to the next try.
    """

    engine: str = "threads"
    limits: Limits = dataclasses.field(default_factory=Limits)
    journal_bytes: int = 0
    flush_seconds: float = 0.05
    retry_seconds: float = 30.0


class NvmeDevice:
    """See above.  Plans name units from `base_unit` on; the journal counts from 0.

    Attributes:
        segments, segment_bytes: the data area.
        limits: of its queue.
        recovered: what the journal held, until `recover` hands it over.
    """

    def __init__(
        self,
        file: FileSeam,
        superblock: Superblock,
        recovered: Recovered,
        options: Options,
        base_unit: int,
        log: Log,
        clock: Clock,
        engines: Mapping[str, EngineFactory],
    ) -> None:
        self.name, self.base_unit = file.name, base_unit
        self.segments, self.segment_bytes = superblock.segments, superblock.segment_bytes
        self._file, self.data_offset = file, superblock.data_offset
        self.limits = options.limits
        self._device_key = nvme_format.device_key_of(superblock.device_id)
        self._recovered = recovered
        self.health = Health(file.name, options.retry_seconds, clock, log)
        self.journal: Journal | None = None
        if file.is_read_only:
            self.health.begin("file", "it can only be read")
        else:
            superblock, writer, left = nvme_region.open_region(file, superblock, recovered, 1)
            recovered.drop("journal_full", left)
            self.journal = Journal(
                file, superblock, writer, recovered, self.health, options.flush_seconds
            )
        self._scheduler = Scheduler(options.limits, clock)
        self._engine = self._started(options, log, engines)
        watcher = threading.Thread(target=self._scheduler.watch, name="nvme-watch", daemon=True)
        watcher.start()
        self.counters = dict.fromkeys(
            ("blocks_written", "bytes_written", "blocks_read", "bytes_read"), 0
        )

    @classmethod
    def open(
        cls,
        path: pathlib.Path,
        capacity_bytes: int,
        segment_bytes: int,
        *,
        log: Log,
        options: Options | None = None,
        base_unit: int = 0,
        open_file: OpenFile = open_direct,
        clock: Clock | None = None,
        engines: Mapping[str, EngineFactory] = ENGINES,
    ) -> NvmeDevice:
        """Opens a directory, file or block device; makes what is not there.

        A device of other size keeps the blocks that still fit; one of other segments starts empty.
        ConfigError where the path cannot be used, is in use, or holds something else.
        """
        file = open_file(path, log)
        try:
            superblock = _superblock(file, capacity_bytes, segment_bytes, options or Options(), log)
            recovered = nvme_region.read_region(file, superblock)
            if recovered.lost_frames:
                log(f"nvme: {file.name}: {nvme_region.journal_damage(recovered)}")
            recovered = nvme_region.without_unused(recovered)
            used = (file, superblock, recovered, options or Options(), base_unit, log)
            return cls(*used, clock or SystemClock(), engines)
        except OSError as error:
            file.close()
            raise ConfigError(f"nvme: {path}: {error.strerror}") from error
        except BaseException:
            file.close()
            raise

    @property
    def units(self) -> int:
        """Units of the data area."""
        return self.segments * (self.segment_bytes // UNIT_BYTES)

    def recover(self) -> Recovered:
        """What the journal held, once; its units count from `base_unit`."""
        found, self._recovered = self._recovered, Recovered()
        entries = found.entries.copy()
        entries["unit"] += np.uint32(self.base_unit)
        return dataclasses.replace(found, entries=entries)

    def _started(self, options: Options, log: Log, engines: Mapping[str, EngineFactory]) -> Engine:
        used = (self._file, self._scheduler, self.health, options.limits.depth)
        names = list(engines)
        for name, other in itertools.pairwise(names[names.index(options.engine) :]):
            try:
                return engines[name](*used)
            except OSError as error:
                log(f"nvme: {self.name}: no {name} here ({error.strerror}): {other} instead")
        return engines[names[-1]](*used)

    @property
    def engine(self) -> str:
        """How runs reach the kernel."""
        return self._engine.name

    @property
    def queue(self) -> Scheduler:
        """What waits and moves, for operators."""
        return self._scheduler

    # -- blocks

    def write(self, plan: WritePlan, memory_of: MemoryOf) -> Future[Done]:
        """Copies blocks to their slots.  The memory must stay as it is until the future is done.

        The future never has an exception, but for a broken invariant.
        """
        return self._submit(plan, memory_of)

    def read(self, plan: ReadPlan, memory_of: MemoryOf) -> Future[Done]:
        """Copies blocks to memory, which is nobody else's until the future is done.

        What is not Status.OK has left bytes there that mean nothing.
        """
        return self._submit(plan, memory_of)

    def _submit(self, plan: WritePlan | ReadPlan, memory_of: MemoryOf) -> Future[Done]:
        if not len(plan) or not self.health.may(isinstance(plan, WritePlan)):
            future: Future[Done] = promise()
            future.set_result(Done(np.full(len(plan), Status.REFUSED, np.uint8)))
            return future
        where = (memory_of, self.base_unit, self.data_offset, self._device_key)
        is_write = isinstance(plan, WritePlan)
        job: Job = (
            WriteJob(plan, *where)
            if isinstance(plan, WritePlan)
            else ReadJob(plan, *where, is_close=False)
        )
        sizes = plan.block_bytes
        job.future.add_done_callback(lambda future: self._count(is_write, sizes, future))
        self._scheduler.submit(job)
        return job.future

    def _count(self, is_write: bool, sizes: npt.NDArray[np.uint64], future: Future[Done]) -> None:
        if future.exception() is None:
            ok = future.result().ok
            word = "written" if is_write else "read"
            self.counters[f"blocks_{word}"] += int(ok.sum())
            self.counters[f"bytes_{word}"] += int(sizes[ok].sum())

    # -- the journal

    def namespace_number(self, note: NamespaceNote) -> int:
        """The number by which plans and entries name a namespace on this device."""
        return self.journal.namespace_number(note) if self.journal else 0

    def kind_number(self, layout: Layout) -> int:
        """The number by which plans and entries name a layout and shard on this device."""
        return self.journal.kind_number(layout) if self.journal else 0

    def note_blocks(self, entries: Entries) -> None:
        """Blocks that were written and may be found after a restart; units as in plans."""
        if self.journal:
            entries = entries.copy()
            entries["unit"] -= np.uint32(self.base_unit)
            self.journal.note_blocks(entries)

    def note_gone(self, units: npt.NDArray[np.uint32]) -> None:
        """Units whose blocks are no more; as in plans."""
        if self.journal:
            self.journal.note_gone(units - np.uint32(self.base_unit))

    def note_used(self, units: npt.NDArray[np.uint32]) -> None:
        """Units whose blocks were used, in the order of use; as in plans."""
        if self.journal:
            self.journal.note_used(units - np.uint32(self.base_unit))

    def flush(self) -> Future[None]:
        """Done when everything noted before is on the device, or never will be."""
        if self.journal:
            return self.journal.flush()
        future: Future[None] = promise()
        future.set_result(None)
        return future

    def close(self, timeout_seconds: float = 5.0) -> bool:
        """Ends it; False where the device still holds calls that it does not answer."""
        self._scheduler.close()
        is_done = self._engine.close(timeout_seconds)
        if self.journal:
            is_done &= self.journal.close(timeout_seconds)
        if is_done:
            self._file.close()
        return is_done


def _superblock(
    file: FileSeam, capacity_bytes: int, segment_bytes: int, options: Options, log: Log
) -> Superblock:
    """The device's superblock, its file of the wanted size; a new one where the file is empty."""
    found, damage = read_superblock(file)
    for text in damage if found is None else ():
        log(f"nvme: {file.name}: {text}: it starts empty")
    if file.is_read_only:
        if found is None:
            raise ConfigError(f"nvme: {file.name} can only be read and is no device of ours")
        return found
    sequence = 0
    if found is not None and found.segment_bytes != segment_bytes:
        log(
            f"nvme: {file.name} has segments of {format_bytes(found.segment_bytes)}, now "
            f"{format_bytes(segment_bytes)}: it starts empty"
        )
        sequence, found = found.sequence, None
    fresh = nvme_format.geometry(
        capacity_bytes, segment_bytes, options.journal_bytes, os.urandom(16)
    )
    fresh = dataclasses.replace(fresh, sequence=sequence)
    if found is not None:
        segments = (fresh.capacity_bytes - found.data_offset) // segment_bytes
        fresh = dataclasses.replace(
            found, capacity_bytes=fresh.capacity_bytes, segments=max(0, segments)
        )
        if not fresh.is_sound:
            raise ConfigError(
                f"nvme: {file.name} has {format_bytes(found.data_offset)} of journal, more than "
                f"fits into {format_bytes(capacity_bytes)}"
            )
    if file.size() != fresh.capacity_bytes:
        try:
            file.resize(fresh.capacity_bytes)
        except OSError as error:
            raise ConfigError(
                f"nvme: {file.name} cannot have {format_bytes(capacity_bytes)}: {error.strerror}"
            ) from error
    if file.size() < fresh.capacity_bytes:
        raise ConfigError(
            f"nvme: {file.name} has {format_bytes(file.size())}, fewer than the "
            f"{format_bytes(capacity_bytes)} that it shall hold"
        )
    return fresh


def read_superblock(file: FileSeam) -> tuple[Superblock | None, list[str]]:
    """The newer sound copy, and what is damaged; None for an empty file, or where no copy is sound.

    ConfigError for a file that holds something else.
    """
    pages = aligned(SUPERBLOCK_COPIES * SUPERBLOCK_BYTES)
    read_all(file, pages, 0)
    found, damage, is_ours, empty = [], [], False, []
    for number in range(SUPERBLOCK_COPIES):
        page = pages[number * SUPERBLOCK_BYTES : (number + 1) * SUPERBLOCK_BYTES]
        copy = nvme_format.superblock_of(page)
        if copy is not None:
            found.append(copy)
        elif any(page):
            damage.append(f"superblock {number} is damaged")
            is_ours |= bytes(page[: len(nvme_format.MAGIC)]) == nvme_format.MAGIC
        else:
            empty.append(f"superblock {number} is damaged: it is empty")
    if found and found[0].sequence > 1:  # by then both had been written
        damage += empty
    if damage and not found and not is_ours:
        raise ConfigError(f"nvme: {file.name} holds something else: it is not overwritten")
    return max(found, key=lambda copy: copy.sequence, default=None), damage
