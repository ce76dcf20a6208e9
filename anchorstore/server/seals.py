"""Seal, from the call to the answer: the one call that takes time.

::

    loop     begin_seal, format --+                        +--> finish_seal --> answer
    threads                       +--> copy and checksum --+    (mover.py)

One hop to a thread and one back: nothing else stands between the decision and the copy.  A seal
outlives its caller, because the core waits for the outcome.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from anchorstore.clock import Clock
from anchorstore.errors import InvalidRequest
from anchorstore.server import codec
from anchorstore.server.core.sealing import SEALED
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import SealWork
from anchorstore.server.hints import HintTables
from anchorstore.server.movement import Movement
from anchorstore.server.mover import CopyResult, Mover
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.base import Tier
from anchorstore.tiers.dram import Staging
from anchorstore.wire import convert
from anchorstore.wire.v1 import store_pb2 as pb

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices


def _nothing_copied(count: int) -> CopyResult:
    return CopyResult(np.zeros(count, np.bool_), np.zeros(count, np.uint64))


class Seals:
    """Carries out seals.  Not for use from other threads than the event loop's.

    Args:
        movement: told what is sealed and what is gone; None where there is no nvme.
        devices: told what is gone; None where there is no hbm.

    Attributes:
        in_flight: seals whose copies are not done yet.
    """

    def __init__(
        self,
        mover: Mover,
        hints: HintTables,
        movement: Movement | None,
        devices: Devices | None,
        core: Store,
        tier: Tier,
        clock: Clock,
        supervisor: Supervisor,
    ) -> None:
        self._core, self._tier, self._mover, self._clock = core, tier, mover, clock
        self._supervisor, self._hints, self._movement = supervisor, hints, movement
        self._devices = devices
        self.in_flight = 0

    def seal(
        self, request: pb.SealRequest, columns: convert.SealColumns, staging: Staging | None
    ) -> pb.SealResponse | asyncio.Future[pb.SealResponse]:
        """Copies staged blocks into the pool; done at once where none is to be copied."""
        self._mover.check_room()
        work = self._core.begin_seal(
            request.session_id,
            request.reservation_id,
            columns.pages,
            columns.layouts,
            request.keep_open,
            self._clock.now(),
        )
        self.forget_gone()
        for action in work.formats:
            self._tier.format(action)
        rows = work.copies.request_index
        offsets = columns.staging_offsets[rows]
        try:
            codec.check_staged(offsets, work.copies.block_bytes, staging)
        except InvalidRequest:
            self._finish(work, _nothing_copied(len(rows)))
            raise
        if staging is None or not len(rows):
            return self._finish(work, _nothing_copied(0))
        expected = None if columns.checksums is None else columns.checksums[rows]
        plan = codec.copy_plan(staging.memory, offsets, work.copies, expected)
        copied = self._mover.copy(plan)
        answer: asyncio.Future[pb.SealResponse] = asyncio.get_running_loop().create_future()
        self.in_flight += 1
        copied.add_done_callback(lambda copied: self._copied(work, copied, answer))
        return answer

    def forget_gone(self) -> None:
        """Takes out the hints of blocks that are gone, and their copies on devices; nvme's journal
        hears what it lost."""
        gone = self._core.take_gone()
        self._hints.forget(gone)
        if self._devices is not None:
            self._devices.forget(gone)
        if self._movement is not None:
            self._movement.note_gone()

    def _copied(
        self,
        work: SealWork,
        copied: asyncio.Future[CopyResult],
        answer: asyncio.Future[pb.SealResponse],
    ) -> None:
        """An error here or in a copy is a bug, whoever still waits: the supervisor is told."""
        self.in_flight -= 1
        try:
            response = self._finish(work, copied.result())
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._supervisor.fail("seal", error)
            answer.set_exception(error)
            answer.exception()  # seen, should nobody wait for it
        else:
            answer.set_result(response)

    def _finish(self, work: SealWork, result: CopyResult) -> pb.SealResponse:
        now, rows = self._clock.now(), work.copies.request_index
        results = self._core.finish_seal(work.ticket, result.ok, result.checksums, now)
        self.forget_gone()  # what was replaced, or lost a race
        sealed = np.frombuffer(results, np.uint8)[rows] == SEALED
        self._hints.insert(work.domain, work.copies, np.flatnonzero(sealed))
        if self._movement is not None:
            self._movement.wake()
        return pb.SealResponse(results=results)
