"""What lies outside the core in the model of two tiers: memory, devices and their journal.

::

    memory   (region, offset) -> (generation, content)      formats empty a region
    disk     unit -> content, over as many units as a slot has
    journal  unit -> entry: what a restart is told

A content is (path hash, checksum): each sealed block has a checksum of its own, so that a mix-up
shows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Layout
from anchorstore.server.core.store_config import UNIT_BYTES, cold_slot_bytes_of
from anchorstore.server.core.types import Copies, FormatSegment
from anchorstore.server.core.work import DemoteWork, KnownNamespace, PromoteWork
from anchorstore.transport.segment import SegmentShape
from tests.unit.core.tiered import ENTRY

Content = tuple[bytes, int]
Bools = npt.NDArray[np.bool_]


class Memory:
    """The dram pool."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.cells: dict[tuple[int, int], tuple[int, Content | None]] = {}
        self.forms: dict[int, FormatSegment] = {}
        self.index_of: dict[int, int] = {}

    def format(self, forms: list[FormatSegment]) -> None:
        """Regions become empty."""
        for form in forms:
            self.forms[form.index] = form
            self.index_of[form.segment_id] = form.index
            for key in [key for key in self.cells if key[0] == form.index]:
                del self.cells[key]

    def seal(self, copies: Copies, i: int, checksum: int) -> None:
        """What the mover leaves behind."""
        place = (int(copies.segment_index[i]), int(copies.offset[i]))
        content = (copies.path_hash[i].tobytes(), checksum)
        self.cells[place] = (int(copies.generation[i]) + 1, content)

    def begin_read(self, work: PromoteWork) -> None:
        """Slots that are being filled from nvme."""
        for i in range(len(work)):
            place = (int(work.segment_index[i]), int(work.offset[i]))
            self.cells[place] = (int(work.generation[i]), None)

    def end_read(self, work: PromoteWork, i: int) -> None:
        """One of them is."""
        place = (int(work.segment_index[i]), int(work.offset[i]))
        content = (work.path_hash[i].tobytes(), int(work.checksum[i]))
        self.cells[place] = (int(work.generation[i]) + 1, content)

    def at(self, segment_id: int, slot: int) -> tuple[int, Content | None]:
        """What a slot holds."""
        form = self.forms[self.index_of[segment_id]]
        assert form.segment_id == segment_id, "a segment that was re-formatted"
        shape = SegmentShape(self.segment_bytes, form.slot_bytes)
        return self.cells[form.index, shape.offset(slot)]


@dataclasses.dataclass
class Disk:
    """The nvme devices."""

    slots: dict[int, tuple[Content, int, int]] = dataclasses.field(default_factory=dict)
    journal: dict[int, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    namespaces: list[KnownNamespace] = dataclasses.field(default_factory=list)
    layouts: list[Layout] = dataclasses.field(default_factory=list)

    def write(self, work: DemoteWork, i: int, memory: Memory, torn: bool) -> None:
        """Copies one block, whole or torn; what lay there is gone either way."""
        unit = int(work.unit[i])
        units = cold_slot_bytes_of(int(work.block_bytes[i])) // UNIT_BYTES
        for other, (_, _, length) in list(self.slots.items()):
            if other < unit + units and unit < other + length:
                del self.slots[other]
        _, content = memory.cells[int(work.segment_index[i]), int(work.offset[i])]
        expected = (work.path_hash[i].tobytes(), int(work.checksum[i]))
        assert content == expected, "a block that is being written has changed in dram"
        if not torn:
            self.slots[unit] = (content, int(work.generation[i]), units)

    def note(self, work: DemoteWork, i: int) -> None:
        """Journals one block."""
        entry = np.zeros(1, ENTRY)
        for name in ("path_hash", "parent_hash", "checksum", "unit", "generation", "page"):
            entry[name] = getattr(work, name)[i]
        entry["lineage"] = work.lineage[i]
        space = work.namespaces[int(work.namespace_id[i])]
        layout = work.kinds[int(work.kind_id[i])]
        for known, value in ((self.namespaces, space), (self.layouts, layout)):
            if value not in known:
                known.append(value)  # type: ignore[arg-type]
        entry["namespace"] = self.namespaces.index(space)
        entry["kind"] = self.layouts.index(layout)
        self.journal[int(work.unit[i])] = entry

    def proves(self, work: PromoteWork, i: int) -> bool:
        """Whether the slot holds what the core believes."""
        found = self.slots.get(int(work.unit[i]))
        wanted = (work.path_hash[i].tobytes(), int(work.checksum[i]))
        return found is not None and found[:2] == (wanted, int(work.cold_generation[i]))

    def entries(self) -> npt.NDArray[Any]:
        """The journal, by unit."""
        parts = [self.journal[unit] for unit in sorted(self.journal)]
        return np.concatenate(parts) if parts else np.zeros(0, ENTRY)
