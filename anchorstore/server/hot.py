"""Copies of hot blocks on one device: what the mirror decides, done.

::

    loop      lookup --> places(): find --> answer    see --work--+            +--> finish
    threads                                                       +--> lane -->+   (tiers/lanes.py)

The answer waits for no copy: who asks first reads dram, who asks after the copy reads the device.
A round of the loop begins copies of at most batch_blocks blocks a need.
A copy takes no lease on its source, since what arrives is compared with the source's checksum: a
slot that is written anew meanwhile just does not arrive.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.mirror import Mirror, MirrorWork
from anchorstore.server.core.types import BlockColumns, Gone
from anchorstore.tiers.base import Moved, Moves, Tier
from anchorstore.tiers.hbm import HbmCounters, HbmTier
from anchorstore.transport.segment import RECORD, Places, SegmentShape, slot_bytes_of


@dataclasses.dataclass(frozen=True, slots=True)
class HotStatus:
    """One device of the hbm tier, for operators.

    Attributes:
        blocks, writing: copies that can be found, and those on their way.
        offline_reason: "" where it is online.
        copies, moved: counts since the start.
    """

    device: str
    domain: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    segments_free: int
    blocks: int
    writing: int
    offline_reason: str
    copies: dict[str, int]
    moved: HbmCounters


class Hot:
    """Keeps blocks that are asked for again on the device.  On the event loop alone.

    Args:
        fail: told of a broken invariant in a copy (the supervisor's).
    """

    def __init__(
        self,
        mirror: Mirror,
        dram: Tier,
        hbm: HbmTier,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self.mirror, self.hbm = mirror, hbm
        self._dram, self._fail = dram, fail
        self._asked: list[tuple[Places, int]] = []  # and not seen yet; with their blocks' bytes

    def places(
        self, domain: str, columns: Sequence[BlockColumns], block_bytes: Sequence[int]
    ) -> list[Places]:
        """Where the blocks of each need also lie in hbm, one a block; segment 0 where they do not.

        `block_bytes` by layout.  Empty where the domain has no hbm: then nothing need be sent.
        """
        if domain != self.hbm.domain or not self.hbm.is_online:
            return []
        found = [self.mirror.find(column.places) for column in columns]
        for column, copies in zip(columns, found, strict=True):
            without = column.places[copies["segment"] == 0]
            if len(without):
                self._see_soon(without, block_bytes[column.layout])
        return found

    def forget(self, gone: Iterable[Gone]) -> None:
        """Blocks have left dram."""
        self._see()  # those that were asked for stood then
        self.mirror.forget(gone)

    def lost(self) -> None:
        """The tier is offline, and every copy gone with it."""
        self._asked.clear()
        self.mirror.clear()

    def close(self) -> None:
        """Waits for copies under way, or for a stuck device's deadline; gives the memory back."""
        self.hbm.close()

    def head_of(self, segment_id: int) -> tuple[int, int]:
        """Of a segment that a session of the domain may map: the descriptor of its head, and where
        in the slab it begins; LookupError for another id, or where the tier is offline."""
        if not self.hbm.is_online:
            raise LookupError(segment_id)
        index = self.hbm.index_of(segment_id)
        return self.hbm.descriptor(index), index * self.hbm.segment_bytes

    # ---- copies ----

    def _see_soon(self, places: Places, block_bytes: int) -> None:
        """In the loop's next round: the answer goes out first."""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._see)
        self._asked.append((places, block_bytes))

    def _see(self) -> None:
        asked, self._asked = self._asked, []
        for places, block_bytes in asked:
            if self.hbm.is_online and self.hbm.has_room():
                work = self.mirror.see(places, block_bytes)
                if work is not None:
                    self._begin(work)

    def _begin(self, work: MirrorWork) -> None:
        for order in work.formats:
            self.hbm.format(order)
        moves, rows = self._moves(work)
        loop = asyncio.get_running_loop()
        self.hbm.write(moves, self._dram.memory).add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._ended, work, rows, done)
        )

    def _moves(self, work: MirrorWork) -> tuple[Moves, npt.NDArray[np.intp]]:
        """What is to travel, and which rows of the work that is: those whose source stands."""
        shown, memories = np.zeros(len(work), RECORD), np.zeros(len(work), np.uint32)
        for segment_id in np.unique(work.sources["segment"]).tolist():
            mine = work.sources["segment"] == segment_id
            try:
                memories[mine] = index = self._dram.index_of(segment_id)
            except LookupError:  # formatted anew since
                continue
            shown[mine] = self._dram.records(index)[work.sources["slot"][mine]]
        rows = np.flatnonzero(shown["generation"] == work.sources["generation"])
        shown, shape = shown[rows], self._shape(work.block_bytes)
        moves = Moves(
            memories=memories[rows],
            memory_offsets=shape.offsets(work.sources["slot"][rows]),
            segments=work.segment_indices[rows],
            slots=work.slots[rows],
            offsets=work.offsets[rows],
            block_bytes=np.full(len(rows), work.block_bytes, np.uint64),
            generations=work.generations[rows],
            checksums=work.sources["checksum"][rows],
            path_hashes=shown["path_hash"],
            layout_keys=shown["layout_key"],
            lineages=shown["lineage"],
        )
        return moves, rows

    def _shape(self, block_bytes: int) -> SegmentShape:
        """Of the dram segments that hold such blocks."""
        return SegmentShape(self._dram.segment_bytes, slot_bytes_of(block_bytes))

    def _ended(self, work: MirrorWork, rows: npt.NDArray[np.intp], done: Future[Moved]) -> None:
        error = done.exception()
        if error is not None:
            self._fail("hbm", error)
            return
        moved = np.zeros(len(work), np.bool_)
        moved[rows] = done.result()
        self.mirror.finish(work.ticket, moved)

    # ---- operators ----

    def status(self) -> HotStatus:
        """How it goes."""
        tier = self.hbm
        return HotStatus(
            device=tier.device_name,
            domain=tier.domain,
            capacity_bytes=tier.segments * tier.segment_bytes,
            used_bytes=self.mirror.used_bytes,
            segments=tier.segments,
            segments_free=self.mirror.segments_free,
            blocks=self.mirror.blocks,
            writing=self.mirror.writing,
            offline_reason=tier.offline_reason,
            copies=dict(self.mirror.counters),
            moved=dataclasses.replace(tier.counters),
        )
