"""From dram to nvme, on the event loop: batches written ahead of need, and what the journal hears.

::

    a seal --wake--> begin_demote --> WritePlan --> NvmeTier.write      threads, devices
                     a work a device                     |
       journal <-- note_blocks <-- finish_demote <-------+  Done: which blocks were written
       journal <-- note_gone   <-- take_cold_gone           what nvme gave up
       journal <-- note_used   <-- take_cold_used           once a minute: what a restart holds dear

Each device has room for so many blocks on their way, and each work is one device's: who is slow
holds up nobody else, and gets less.  Little is on its way at a time, some milliseconds of writing a
device, so that little of the pool is pinned.

What a device had no time for is tried again, with pauses, as long as it takes blocks.  A device
that wrote nothing of a work gets no other for a while.  When that is so of all of them the core is
told, and lets memory go unwritten; a work now and then finds out whether it has passed.
"""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock
from anchorstore.server.core.store import Store
from anchorstore.server.core.work import DemoteWork, KnownNamespace
from anchorstore.server.device_watch import DeviceWatch
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.base import Tier
from anchorstore.tiers.nvme.device import NvmeDevice
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import Done, Status, WritePlan, chosen
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.units import MIB

BATCH_BYTES_MAX = 32 * MIB  # begun at a time
BATCH_BLOCKS_MAX = 64
BATCHES_A_DEVICE = 8
PINNED_POOL_PART = 16  # all that is on its way pins at most one in so many of the pool
PAUSE_SECONDS = 0.25  # between two looks where nobody wakes us
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 5.0
IN_TIME_PART = 0.5  # of what a device may write until a deadline, it has on its way
TRIES_MAX = 4  # of blocks that a device had no time for, before they wait for their turn again
FLUSH_POLL_SECONDS = 0.01
USED_SECONDS = 60.0  # how coarsely the journals know what was used when
USED_PAGES_MAX = 32_768  # told in one go


@dataclasses.dataclass(eq=False, slots=True)
class _Batch:
    """Blocks on their way to a device.  Masks [n]: `ok` are written, `left` are tried again."""

    ticket: int
    outlet: Outlet
    plan: WritePlan
    ok: npt.NDArray[np.bool_]
    left: npt.NDArray[np.bool_]
    tries: int = 1


@dataclasses.dataclass(eq=False, slots=True)
class Outlet:
    """One device, as something to write to.  `blocks` are on their way there; it gets no others
    before `retry_at`."""

    device: NvmeDevice
    blocks: int = 0
    retry_at: float = 0.0
    retry_seconds: float = RETRY_SECONDS

    @property
    def takes_blocks(self) -> bool:
        """Whether it does, now or soon."""
        return self.device.health.state == State.HEALTHY

    def rests(self, now: float) -> bool:
        """Whether it gets nothing at present, whatever there is to write."""
        return now < self.retry_at or self.device.queue.is_stalled()

    def room(self, blocks_max: int, block_bytes: float) -> int:
        """How many more blocks it may have on their way: not those that it would be too late for,
        where so many bytes a second are the limit."""
        limits = self.device.limits
        if limits.write_bytes_per_second:
            in_time = limits.write_bytes_per_second * limits.deadline_seconds * IN_TIME_PART
            blocks_max = min(blocks_max, max(1, int(in_time / block_bytes)))
        return max(0, blocks_max - self.blocks)

    def learn(self, wrote: bool, now: float) -> None:
        """A work has ended: it wrote some of it, or nothing."""
        if wrote:
            self.retry_at, self.retry_seconds = 0.0, RETRY_SECONDS
        elif now >= self.retry_at:  # else another work of the same moment has said so
            self.retry_at = now + self.retry_seconds
            self.retry_seconds = min(2 * self.retry_seconds, RETRY_SECONDS_MAX)


class Movement:
    """Carries out demotions.  Not for use from other threads than the event loop's.

    Attributes:
        outlets: the devices.
    """

    def __init__(
        self, nvme: NvmeTier, core: Store, tier: Tier, clock: Clock, supervisor: Supervisor
    ) -> None:
        self._core, self._tier, self.nvme, self._clock = core, tier, nvme, clock
        self._supervisor = supervisor
        pinned_bytes = tier.segments * tier.segment_bytes // PINNED_POOL_PART
        batches = BATCHES_A_DEVICE * len(nvme.devices)
        self._batch_bytes = min(BATCH_BYTES_MAX, pinned_bytes // batches)
        self._block_bytes = float(self._batch_bytes)  # about what a block has, learned as they go
        self.outlets = [Outlet(device) for device in nvme.devices]
        self._devices = DeviceWatch(core, nvme, clock)
        self._woken = asyncio.Event()
        self._is_ending = False
        self._used_at = clock.now()

    # ---- the loop ----

    def wake(self) -> None:
        """There may be something to write."""
        self._woken.set()

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            self._devices.look()
            self.note_gone()
            if self._clock.now() - self._used_at >= USED_SECONDS:
                self._note_used()
            if self._begin():
                await asyncio.sleep(0)  # calls first
                continue
            self._woken.clear()
            try:
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                continue

    @property
    def in_flight(self) -> int:
        """Blocks that are being written."""
        return sum(outlet.blocks for outlet in self.outlets)

    def _begin(self) -> bool:
        """Begins a batch; whether there was one."""
        if self._is_ending and not self._core.blocks_to_demote:
            return False
        now, blocks = self._clock.now(), int(self._batch_bytes // self._block_bytes)
        limit = max(1, min(BATCH_BLOCKS_MAX, blocks))
        room = [
            0 if outlet.rests(now) else outlet.room(BATCHES_A_DEVICE * limit, self._block_bytes)
            for outlet in self.outlets
        ]
        self._core.pause_demotion(paused=all(outlet.rests(now) for outlet in self.outlets))
        if not any(room):
            return False
        works = self._core.begin_demote(limit, now, room)
        self.note_gone()  # what made way, before what takes its place is noted
        for work in works:
            self._block_bytes = float(work.block_bytes.mean())
            everything = np.ones(len(work), np.bool_)
            outlet = self.outlets[work.device]
            outlet.blocks += len(work)
            self._write(_Batch(work.ticket, outlet, self._plan(work), ~everything, everything))
        return bool(works)

    def _write(self, batch: _Batch) -> None:
        plan = chosen(batch.plan, batch.left)
        assert isinstance(plan, WritePlan)
        writing = asyncio.wrap_future(self.nvme.write(plan, self._tier.memory))
        writing.add_done_callback(lambda done: self._written(batch, done))

    def _plan(self, work: DemoteWork) -> WritePlan:
        """The work with the tier's numbers of namespaces and kinds."""
        spaces = {
            key: self.nvme.namespace_number(NamespaceNote(*known))
            for key, known in work.namespaces.items()
        }
        kinds = {key: self.nvme.kind_number(layout) for key, layout in work.kinds.items()}
        return WritePlan(
            segment_index=work.segment_index,
            offset=work.offset,
            block_bytes=work.block_bytes,
            unit=work.unit,
            generation=work.generation,
            page=work.page,
            parent_hash=work.parent_hash,
            path_hash=work.path_hash,
            namespace=np.array([spaces[key] for key in work.namespace_id.tolist()], np.uint32),
            kind=np.array([kinds[key] for key in work.kind_id.tolist()], np.uint16),
            layout_key=work.layout_key,
            lineage=work.lineage,
            checksum=work.checksum,
        )

    def _written(self, batch: _Batch, writing: asyncio.Future[Done]) -> None:
        """An error here is a bug: the supervisor is told."""
        try:
            status = writing.result().status
            batch.ok[batch.left] = status == Status.OK
            batch.left[batch.left] = (status == Status.LATE) | (status == Status.REFUSED)
            if batch.left.any() and batch.tries < TRIES_MAX and batch.outlet.takes_blocks:
                pause = RETRY_SECONDS * 2**batch.tries
                batch.tries += 1
                asyncio.get_running_loop().call_later(pause, self._write, batch)
                return
            batch.outlet.blocks -= len(batch.ok)
            self._finish(batch)
        except Exception as error:  # noqa: BLE001 - handed to the supervisor, whatever it is
            self._supervisor.fail("movement", error)
        self.wake()

    def _finish(self, batch: _Batch) -> None:
        stands = self._core.finish_demote(batch.ticket, batch.ok, self._clock.now())
        self.note_gone()
        if stands.any():
            self.nvme.note_blocks(batch.plan.entries(stands))
        batch.outlet.learn(bool(batch.ok.any()), self._clock.now())

    # ---- the journal ----

    def note_gone(self) -> None:
        """Tells the journal which units hold nothing any more."""
        units = self._core.take_cold_gone()
        if len(units):
            self.nvme.note_gone(units)

    def _note_used(self) -> bool:
        """Tells the journals what was used since the last time; whether there was anything.  Where
        that was a lot, there is more a second later."""
        units, now = self._core.take_cold_used(USED_PAGES_MAX), self._clock.now()
        self._used_at = now - (USED_SECONDS - 1.0 if len(units) >= USED_PAGES_MAX else 0.0)
        if len(units):
            self.nvme.note_used(units)
        return len(units) > 0

    def note_namespace(self, known: KnownNamespace) -> None:
        """What is to be known of a namespace after a restart."""
        self.nvme.namespace_number(NamespaceNote(*known))

    async def flushed(self, limit_seconds: float) -> bool:
        """Waits until the journals hold all that was noted; whether they do."""
        self.note_gone()
        flushing = asyncio.wrap_future(self.nvme.flush())
        try:
            async with asyncio.timeout(limit_seconds):
                await asyncio.shield(flushing)
        except TimeoutError:
            return False
        return all(outlet.takes_blocks for outlet in self.outlets)

    # ---- the end ----

    async def drain(self, until: float) -> None:
        """Writes what waits since its seal, and the journal, as far as time allows."""
        self._is_ending = True
        self.wake()
        while self._is_busy() and self._clock.now() < until:  # noqa: ASYNC110 - no event for all
            await asyncio.sleep(FLUSH_POLL_SECONDS)
        while self._note_used():
            await self.flushed(max(0.0, until - self._clock.now()))
        await self.flushed(max(0.0, until - self._clock.now()))

    def _is_busy(self) -> bool:
        can_write = any(outlet.takes_blocks for outlet in self.outlets)
        return bool(self.in_flight or (can_write and self._core.blocks_to_demote))
