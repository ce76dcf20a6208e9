"""Walks a device that no daemon owns: superblocks, journal, and every live slot.

Only reads.  A slot is judged by the code that judges it when it is served, so what is called
whole here is what a daemon would hand out.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import pathlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from anchorstore.errors import ConfigError
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.device import read_superblock
from anchorstore.tiers.nvme.engines import move
from anchorstore.tiers.nvme.format import FOOTER_BYTES, UNIT_BYTES, Entries, Superblock
from anchorstore.tiers.nvme.jobs import ReadJob, Run, Scratch
from anchorstore.tiers.nvme.plans import ReadPlan, Status
from anchorstore.tiers.nvme.region import journal_damage, read_region
from anchorstore.tiers.nvme.replay import Recovered
from anchorstore.tiers.nvme.seam import FileSeam, Log, OpenFile, aligned, open_at_rest
from anchorstore.transport.segment import layout_key
from anchorstore.units import MIB

BATCH_BYTES = 64 * MIB
VIOLATIONS_MAX = 100  # named one by one
_WORDS = {
    Status.OK: "whole",
    Status.FAILED: "unreadable",
    Status.TORN: "torn",
    Status.OTHER: "outdated",
    Status.FOREIGN: "foreign",
}


@dataclasses.dataclass(slots=True)
class Report:
    """What a device holds.

    Attributes:
        slots: live blocks by what their slots show: whole, outdated (the slot was used again and a
            crash came before that was noted), torn, foreign, unreadable.
        dropped: entries of the journal that cannot be true, and a torn tail, counted by reason.
        violations: damage, in words; what a crash leaves behind is none.
    """

    path: str
    device_id: str
    starts: int
    capacity_bytes: int
    segment_bytes: int
    segments: int
    journal_frames: int
    namespaces: int
    layouts: int
    blocks: int
    bytes: int
    slots: dict[str, int]
    dropped: dict[str, int]
    violations: list[str]
    violations_total: int

    @property
    def is_ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.violations_total


def check_device(
    path: pathlib.Path, *, checksums: bool, log: Log, open_file: OpenFile = open_at_rest
) -> Report:
    """Walks one device; ConfigError where there is none, or where a daemon owns it."""
    file = open_file(path, log)
    try:
        superblock, violations = read_superblock(file)
        if superblock is None:
            reason = "; ".join(violations) or "it is empty"
            raise ConfigError(f"nvme: {file.name} holds no device: {reason}")
        if file.size() < superblock.capacity_bytes:
            violations.append(
                f"the file has {file.size()} bytes, its superblock says {superblock.capacity_bytes}"
            )
        found = read_region(file, superblock, is_whole=True)
        if found.lost_frames:
            violations.append(journal_damage(found))
        slots: collections.Counter[str] = collections.Counter()
        total = len(violations)
        for entry, status in _walk(file, superblock, found, checksums):
            slots[_WORDS[status]] += 1
            if status not in (Status.OK, Status.OTHER):
                total += 1
                violations.append(f"unit {entry['unit']}: {_WORDS[status]}")
                del violations[VIOLATIONS_MAX:]
    except OSError as error:
        raise ConfigError(f"nvme: {file.name} cannot be read: {error.strerror}") from error
    finally:
        file.close()
    return Report(
        path=file.name,
        device_id=superblock.device_id.hex(),
        starts=superblock.starts,
        capacity_bytes=superblock.capacity_bytes,
        segment_bytes=superblock.segment_bytes,
        segments=superblock.segments,
        journal_frames=found.frames,
        namespaces=len(found.namespaces),
        layouts=len(found.kinds),
        blocks=len(found.entries),
        bytes=int(_block_bytes(found, found.entries).sum()),
        slots=dict(sorted(slots.items())),
        dropped=dict(sorted(found.dropped.items())),
        violations=violations,
        violations_total=total,
    )


def _walk(
    file: FileSeam, superblock: Superblock, found: Recovered, checksums: bool
) -> Iterator[tuple[Entries, Status]]:
    """Every live entry with what its slot shows."""
    entries, at = found.entries, 0
    memory = np.frombuffer(aligned(nvme_format.align(BATCH_BYTES)), np.uint8)
    while at < len(entries):
        sizes = nvme_format.align_many(_block_bytes(found, entries[at : at + 4096]))
        ends = np.cumsum(sizes)
        count = max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
        if int(ends[0]) > len(memory):
            memory = np.frombuffer(aligned(int(ends[0])), np.uint8)
        part = entries[at : at + count]
        offsets = ends[:count] - sizes[:count]
        statuses = _judged(file, superblock, plan_of(found, part, offsets), memory, checksums)
        yield from zip(part, map(Status, statuses.tolist()), strict=True)
        at += count


def _judged(
    file: FileSeam,
    superblock: Superblock,
    plan: ReadPlan,
    memory: npt.NDArray[np.uint8],
    checksums: bool,
) -> npt.NDArray[np.uint8]:
    key = nvme_format.device_key_of(superblock.device_id)
    job = ReadJob(plan, lambda _: memory, 0, superblock.data_offset, key, is_close=True)
    scratch = Scratch()
    while job.runs:
        run = job.runs.popleft()
        code = (move if checksums else _move_footers)(file, run, scratch)
        if not code:
            (job.judge if checksums else job.judge_footers)(run, scratch)
        elif len(run) > 1:
            job.runs.extendleft(job.singles(run))
        else:
            job.settle(run, Status.FAILED)
    return job.status


def _move_footers(file: FileSeam, run: Run, scratch: Scratch) -> int:
    """Reads the end of each slot alone; 0, or the error number that ended it."""
    for tail, offset in run.job.tails(run, scratch):
        try:
            if file.preadv([tail], offset) < len(tail):
                return errno.EIO
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def plan_of(found: Recovered, entries: Entries, offsets: npt.NDArray[np.uint64]) -> ReadPlan:
    """The plan that reads these entries to `offsets` of memory 0."""
    keys: dict[tuple[int, int], int] = {}
    pairs = list(zip(entries["namespace"].tolist(), entries["kind"].tolist(), strict=True))
    for namespace, kind in set(pairs):
        root = found.namespaces[namespace].namespace.root_digest()
        layout = found.kinds[kind]
        keys[namespace, kind] = layout_key(root, layout.digest(), layout.shard())
    return ReadPlan(
        segment_index=np.zeros(len(entries), np.uint32),
        offset=offsets,
        block_bytes=_block_bytes(found, entries),
        unit=entries["unit"],
        generation=entries["generation"],
        path_hash=entries["path_hash"],
        layout_key=np.array([keys[pair] for pair in pairs], np.uint64),
        lineage=entries["lineage"],
        checksum=entries["checksum"],
    )


def _block_bytes(found: Recovered, entries: Entries) -> npt.NDArray[np.uint64]:
    sizes = np.array([kind.block_bytes() for kind in found.kinds] or [0], np.uint64)
    taken: npt.NDArray[np.uint64] = sizes[entries["kind"]]
    return taken


assert BATCH_BYTES % UNIT_BYTES == 0 and FOOTER_BYTES < UNIT_BYTES
