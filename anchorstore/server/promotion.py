"""From nvme to dram, on the event loop: one read of each block, however many wait for it.

::

    begin    formats | slots' generations odd
    start    Reads -> NvmeTier.read               in turns; threads
                          |
    finish   finish_promote | records, even  <----+  Done: which blocks are proven
             hints | whoever waits for the ticket

All but `begin` are pieces for the background: a look-up that memory can answer goes before them.
A slot shows an odd generation until its bytes are proven, which no reader accepts; and nothing
about it is said to anybody before finish_promote.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock
from anchorstore.server.background import Background, Piece
from anchorstore.server.core.store import Store
from anchorstore.server.core.work import PromoteWork, Promotion
from anchorstore.server.hints import HintTables
from anchorstore.server.reads import Reads
from anchorstore.tiers.base import Tier
from anchorstore.tiers.nvme.plans import Done, ReadPlan

Ended = Callable[[int, bool], None]
"""Told which ticket has ended, and whether anything has changed by it."""


class Promotions:
    """Carries out promotions.  Not for use from other threads than the event loop's.

    Args:
        forget_gone: takes out the hints of what the core has let go.
        room_taken: told when a promotion has taken slots.
    """

    def __init__(
        self,
        reads: Reads,
        core: Store,
        tier: Tier,
        clock: Clock,
        background: Background,
        hints: HintTables,
        forget_gone: Callable[[], None],
        room_taken: Callable[[], None],
    ) -> None:
        self._core, self._tier, self._reads, self._clock = core, tier, reads, clock
        self._background, self._hints = background, hints
        self._forget_gone, self._room_taken = forget_gone, room_taken
        self._listeners: dict[int, list[Ended]] = {}

    def begin(self, promotion: Promotion) -> None:
        """Begins to read what nobody reads yet."""
        work = promotion.work
        if work is None:
            return
        self._forget_gone()
        for action in work.formats:
            self._tier.format(action)
        for segment, rows in _by_segment(work.segment_index):
            self._tier.records(segment)["generation"][work.slot[rows]] = work.generation[rows]
        self._listeners[work.ticket] = []
        self._post(functools.partial(self._start, work))
        self._room_taken()

    def listen(self, tickets: Iterable[int], ended: Ended) -> None:
        """Has `ended` called at the end of each of these open tickets."""
        for ticket in tickets:
            self._listeners[ticket].append(ended)

    def _post(self, piece: Piece) -> None:
        self._background.post("promotion", piece)

    def _start(self, work: PromoteWork) -> None:
        plan = ReadPlan(
            segment_index=work.segment_index,
            offset=work.offset,
            block_bytes=work.block_bytes,
            unit=work.unit,
            generation=work.cold_generation,
            path_hash=work.path_hash,
            layout_key=work.layout_key,
            lineage=work.lineage,
            checksum=work.checksum,
        )
        reading = self._reads.read(work.namespace_id, plan)
        reading.add_done_callback(lambda _: self._post(lambda: self._finish(work, reading)))

    def _finish(self, work: PromoteWork, reading: asyncio.Future[Done]) -> None:
        done = reading.result()
        lost = done.lost
        there = self._core.finish_promote(work.ticket, done.ok, lost, self._clock.now())
        self._show(work, there)
        self._forget_gone()
        self._hints.insert(work.domain, work, np.flatnonzero(there))
        has_news = bool(there.any() or lost.any())
        for ended in self._listeners.pop(work.ticket):  # now: nothing pins the blocks any more
            ended(work.ticket, has_news)

    def _show(self, work: PromoteWork, there: npt.NDArray[np.bool_]) -> None:
        """Records of the slots that can be read now, their generations last."""
        chosen = np.flatnonzero(there)
        for segment, rows in _by_segment(work.segment_index[chosen]):
            rows = chosen[rows]
            records, slots = self._tier.records(segment), work.slot[rows]
            records["lineage"][slots] = work.lineage[rows]
            records["layout_key"][slots] = work.layout_key[rows]
            records["checksum"][slots] = work.checksum[rows]
            records["path_hash"][slots] = work.path_hash[rows]
            records["generation"][slots] = work.generation[rows] + np.uint32(1)


def _by_segment(
    segments: npt.NDArray[np.uint32],
) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """(segment, positions of its elements), for each."""
    for segment in np.unique(segments).tolist():
        yield segment, np.flatnonzero(segments == segment)
