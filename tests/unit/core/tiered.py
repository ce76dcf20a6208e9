"""A small store with an nvme tier, and a shell that writes to it and reads from it in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Component, Layout
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import LookupResult, Need, NeedAll, NvmeShape
from anchorstore.server.core.work import (
    DemoteWork,
    KnownNamespace,
    PromoteWork,
    Promotion,
    Restored,
)
from tests.unit.core.small import CONFIG, Engine, Small

SHARES = {Component.KV: 1.0, Component.ANCHOR: 1.0, Component.STATE: 1.0}
COLD_SLOT_BYTES = 8192  # of a block of 4 KiB and its footer
COLD_SEGMENT_BYTES = 4 * COLD_SLOT_BYTES
SHAPE = NvmeShape(8, COLD_SEGMENT_BYTES, SHARES, 1.0, 0.5)
ENTRY = np.dtype(
    [
        *(("path_hash", "<u8", 4), ("parent_hash", "<u8", 4), ("checksum", "<u8")),
        *(("unit", "<u4"), ("generation", "<u4"), ("page", "<u4"), ("namespace", "<u4")),
        *(("kind", "<u2"), ("lineage", "u1")),
    ]
)
"""As the journal keeps them."""

Entry = npt.NDArray[Any]


@dataclasses.dataclass
class Disk:
    """What the devices hold: by unit, what a slot shows; and the journal beside it."""

    slots: dict[int, tuple[bytes, int, int]] = dataclasses.field(default_factory=dict)
    journal: dict[int, Entry] = dataclasses.field(default_factory=dict)
    namespaces: list[KnownNamespace] = dataclasses.field(default_factory=list)
    layouts: list[Layout] = dataclasses.field(default_factory=list)

    def write(self, work: DemoteWork, which: Sequence[int]) -> None:
        """Slots of these blocks of the work show them."""
        for i in which:
            shown = (work.path_hash[i].tobytes(), int(work.generation[i]), int(work.checksum[i]))
            self.slots[int(work.unit[i])] = shown

    def note(self, work: DemoteWork, which: Sequence[int]) -> None:
        """The journal names these blocks of the work."""
        for i in which:
            entry = np.zeros(1, ENTRY)
            for name in ("path_hash", "parent_hash", "checksum", "unit", "generation", "page"):
                entry[name] = getattr(work, name)[i]
            entry["lineage"] = work.lineage[i]
            entry["namespace"] = self._number(
                self.namespaces, work.namespaces[int(work.namespace_id[i])]
            )
            entry["kind"] = self._number(self.layouts, work.kinds[int(work.kind_id[i])])
            self.journal[int(work.unit[i])] = entry

    @staticmethod
    def _number(known: list[Any], value: Any) -> int:
        if value not in known:
            known.append(value)
        return known.index(value)

    def read(self, work: PromoteWork) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which blocks are there as they should be; the others are lost."""
        ok = np.zeros(len(work), np.bool_)
        for i in range(len(work)):
            wanted = (
                work.path_hash[i].tobytes(),
                int(work.cold_generation[i]),
                int(work.checksum[i]),
            )
            ok[i] = self.slots.get(int(work.unit[i])) == wanted
        return ok, ~ok

    def entries(self) -> Entry:
        """The whole journal, by unit."""
        parts = [self.journal[unit] for unit in sorted(self.journal)]
        return np.concatenate(parts) if parts else np.zeros(0, ENTRY)


class Tiered(Small):
    """A store over two tiers, its clock and its disk."""

    def __init__(
        self, disk: Disk | None = None, *, nvme: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        shape = dataclasses.replace(SHAPE, **(nvme or {}))
        super().__init__(nvme=shape, **changes)
        self.disk = disk or Disk()

    def write(self, limit: int = 64, failing: bool = False) -> int:
        """One batch to nvme; how many blocks have a place there now."""
        works = self.store.begin_demote(limit, self.now)
        return sum(self.finish_write(work, failing) for work in works)

    def finish_write(self, work: DemoteWork, failing: bool = False) -> int:
        """Writes and notes a batch."""
        if not failing:
            self.disk.write(work, range(len(work)))
        ok = np.full(len(work), not failing)
        stands = self.store.finish_demote(work.ticket, ok, self.now)
        self.note_gone()
        self.disk.note(work, np.flatnonzero(stands).tolist())
        return int(stands.sum())

    def write_all(self) -> int:
        """Batches until nothing waits."""
        return sum(iter(self.write, 0))

    def note_gone(self) -> None:
        """Tells the journal what is no more."""
        for unit in self.store.take_cold_gone().tolist():
            self.disk.journal.pop(unit, None)

    def read(self, promotion: Promotion) -> int:
        """Carries a promotion out; how many blocks came."""
        work = promotion.work
        if work is None:
            return 0
        came = self.store.finish_promote(work.ticket, *self.disk.read(work), self.now)
        return int(came.sum())

    def restart(self) -> tuple[Tiered, Restored]:
        """Another store on the same disk, as after kill -9."""
        other = Tiered(self.disk)
        other.store = Store(self.store.config, b"c" * 16)
        disk = self.disk
        restored = other.store.restore(disk.namespaces, disk.layouts, disk.entries(), self.now)
        for unit in restored.lost_units.tolist():
            disk.journal.pop(unit)
        return other, restored


def fetch(engine: Engine, path: bytes, needs: Sequence[Need] = (NeedAll(0, 0),)) -> LookupResult:
    """A lookup that waits for what comes from nvme, once."""
    result = engine.lookup(path, needs)
    if result.promotion is not None:
        assert isinstance(engine.small, Tiered)
        engine.small.read(result.promotion)
        result = engine.lookup(path, needs)
    return result


def tiers_of(engine: Engine, path: bytes) -> list[str]:
    """Per page, the first letters of the tiers that its blocks are in: "d", "n", "dn" or ""."""
    pages = engine.store.list_pages(engine.root, 0, 1000).pages
    held = {
        page.path_hash: "".join(sorted({tier[0] for block in page.blocks for tier in block.tiers}))
        for page in pages
    }
    return [held.get(path[i : i + 32], "") for i in range(0, len(path), 32)]


__all__ = ["CONFIG", "Disk", "Tiered", "fetch", "tiers_of"]
