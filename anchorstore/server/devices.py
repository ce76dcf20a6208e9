"""The devices of the hbm tier: opened at the start, lent by engines, found for a session.

::

    tiers.hbm.devices --open--> Hot: the daemon's slab on a device --+
    an engine's Lend  --open--> Hot: that engine's slab -------------+--> of(bus id, domain)
                                                                     +--> by segment id: heads

A session names its device, and gets the slab there that is its domain's.  A lent slab serves while
the session that lent it lives; then it is taken offline, and let go of.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from anchorstore.config.hbm import HbmConfig, SlabConfig
from anchorstore.errors import (
    AnchorStoreError,
    CapacityFull,
    ConfigError,
    Forbidden,
    InvalidRequest,
)
from anchorstore.server import codec
from anchorstore.server.attached import Attached
from anchorstore.server.core.mirror import Mirror, MirrorConfig
from anchorstore.server.core.types import Bools, Gone
from anchorstore.server.hot import Hot, HotStatus
from anchorstore.tiers.base import Tier
from anchorstore.tiers.hbm import HbmOptions, HbmTier, daemon_tier, engine_tier
from anchorstore.transport.cuda import CudaError, CudaPlatform
from anchorstore.transport.device_memory import SlabExport
from anchorstore.transport.segment import DEVICE_IDS_FROM, Places
from anchorstore.wire.v1 import store_pb2 as pb

Warn = Callable[[str], None]
SEGMENTS_LENT_MAX = 4096


@dataclasses.dataclass(eq=False, slots=True)
class _Lent:
    """A slab of an engine's; `hot` is None until it is open."""

    hot: Hot | None = None
    is_over: bool = False


class Devices:
    """All devices of one daemon.  On the event loop alone, but for open().

    Args:
        warn: told when memory cannot be pinned and when a device is lost; from any thread.
        fail: told of a broken invariant in a copy (the supervisor's).
    """

    def __init__(
        self,
        config: HbmConfig,
        platform: CudaPlatform,
        dram: Tier,
        boot_id: bytes,
        loop: asyncio.AbstractEventLoop,
        warn: Warn,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._config, self._platform, self._dram, self._boot_id = config, platform, dram, boot_id
        self._loop, self._warn, self._fail = loop, warn, fail
        self._options = HbmOptions(
            config.lanes, config.pinned_bytes // 2, config.deadline_seconds, config.queue_jobs
        )
        self._ids = itertools.count(DEVICE_IDS_FROM)
        self._own: list[Hot] = []
        self._lent: dict[bytes, _Lent] = {}  # by the session that lent it
        self._pending: set[asyncio.Future[Any]] = set()
        self._gone_copies: dict[str, int] = {}  # counted by slabs that are gone

    # ---- opening ----

    def open(self) -> None:
        """Opens what is configured; ConfigError where it cannot be had.  Blocks for as long as the
        driver takes to start, some 100 ms to seconds."""
        try:
            for slab in self._config.devices:
                self._own.append(self._open_own(slab))
        except ConfigError:
            for hot in self._own:
                hot.close()
            raise

    def _open_own(self, slab: SlabConfig) -> Hot:
        try:
            device = self._platform.device(slab.ordinal)
        except CudaError as error:
            raise ConfigError(f"tiers.hbm.devices: {slab} cannot be used: {error}") from error
        return self._hot(
            str(slab),
            lambda lost: daemon_tier(
                device,
                slab.capacity_bytes,
                self._config.tier_segment_bytes,
                self._boot_id,
                self._config.domain,
                self._options,
                self._warn,
                lost,
            ),
        )

    def _hot(self, name: str, make_tier: Callable[[Callable[[str], None]], HbmTier]) -> Hot:
        def lost(reason: str) -> None:  # in a lane's thread
            self._warn(f"hbm: {name} is offline, the pool serves on: {reason}")
            self._loop.call_soon_threadsafe(hot.lost)

        tier = make_tier(lost)
        shape = MirrorConfig(tier.segments, tier.segment_bytes, self._config.sightings)
        hot = Hot(Mirror(shape, self._ids), self._dram, tier, self._fail)
        return hot

    # ---- finding ----

    def of(self, bus_id: str, domain: str) -> Hot | None:
        """Where copies lie for sessions of a domain on the device at that place; None where none
        can.  The daemon's own slab comes before one that is lent."""
        for hot in self._all():
            if (hot.hbm.bus_id, hot.hbm.domain) == (bus_id, domain) and hot.hbm.is_online:
                return hot
        return None

    def _all(self) -> Iterable[Hot]:
        yield from self._own
        yield from (lent.hot for lent in self._lent.values() if lent.hot is not None)

    def forget(self, gone: list[Gone]) -> None:
        """Blocks have left dram: their copies are found no more, on any device."""
        if gone:
            for hot in self._all():
                hot.forget(gone)

    def holds(self, places: Places) -> Bools:
        """Which of these blocks of dram [n] have a copy on any device; none is used by that."""
        held = np.zeros(len(places), np.bool_)
        for hot in self._all():
            held |= hot.mirror.holds(places)
        return held

    # ---- lending ----

    def lend(self, request: pb.LendRequest, session: Attached) -> asyncio.Future[pb.LendResponse]:
        """Opens an engine's slab, and has its session use it.  Forbidden, CapacityFull or
        InvalidRequest where it may not be lent, or cannot be used."""
        export = codec.slab_of(request.slab)
        if export.bus_id != session.device:
            raise InvalidRequest(
                f"slab: on {export.bus_id}, its session on {session.device or 'no device'}"
            )
        self._check_lending(request.session_id, session.domain, export)
        lent = self._lent[request.session_id] = _Lent()
        lending = asyncio.ensure_future(self._lend(request.session_id, lent, session, export))
        self._pending.add(lending)
        lending.add_done_callback(self._ended)
        return lending

    async def _lend(
        self, session_id: bytes, lent: _Lent, session: Attached, export: SlabExport
    ) -> pb.LendResponse:
        try:
            lent.hot = session.hot = await asyncio.to_thread(self._open_lent, export)
        except BaseException:
            del self._lent[session_id]
            raise
        if lent.is_over:  # the session has ended meanwhile
            self._let_go(session_id)
            raise InvalidRequest("slab: its session has ended")
        tier = lent.hot.hbm
        return pb.LendResponse(segment_bytes=tier.segment_bytes, segments=tier.segments)

    def _check_lending(self, session_id: bytes, domain: str, export: SlabExport) -> None:
        config = self._config
        if domain != config.domain or not config.lent_slabs:
            raise Forbidden(
                "slab: engines of this domain lend none (tiers.hbm.lent_slabs, tiers.hbm.domain)"
            )
        if session_id in self._lent:
            raise InvalidRequest("slab: this session has lent one already")
        if len(self._lent) >= config.lent_slabs:
            raise CapacityFull(
                f"slab: {len(self._lent)} are lent, limit {config.lent_slabs} "
                "(tiers.hbm.lent_slabs)"
            )
        segments = export.size_bytes // config.segment_bytes_of(export.size_bytes)
        if segments > SEGMENTS_LENT_MAX:
            raise InvalidRequest(f"slab: {segments} segments, limit {SEGMENTS_LENT_MAX}")

    def _open_lent(self, export: SlabExport) -> Hot:
        try:
            device = self._platform.device_at(export.bus_id)
        except CudaError as error:
            raise InvalidRequest(f"slab: the daemon cannot use its device: {error}") from error
        return self._hot(
            f"a slab lent on {export.bus_id}",
            lambda lost: engine_tier(
                device,
                export,
                self._config.segment_bytes_of(export.size_bytes),
                self._boot_id,
                self._config.domain,
                self._options,
                self._warn,
                lost,
            ),
        )

    def session_ended(self, session_id: bytes) -> None:
        """What it had lent is its engine's again."""
        lent = self._lent.get(session_id)
        if lent is None:
            return
        lent.is_over = True
        if lent.hot is not None:
            self._let_go(session_id)

    def _let_go(self, session_id: bytes) -> None:
        hot = self._lent.pop(session_id).hot
        assert hot is not None, "let go of before it was open"
        hot.hbm.take_offline("the session that lent it has ended")
        hot.lost()
        for name, count in hot.mirror.counters.items():
            self._gone_copies[name] = self._gone_copies.get(name, 0) + count
        closing = asyncio.ensure_future(asyncio.to_thread(hot.close))
        self._pending.add(closing)
        closing.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        """An error that is not the lender's is a bug: the supervisor is told."""
        self._pending.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, AnchorStoreError):
            self._fail("hbm", error)

    # ---- operators, the end ----

    def status(self) -> list[HotStatus]:
        """Of each device."""
        return [hot.status() for hot in self._all()]

    def copies(self) -> dict[str, int]:
        """Counts since the start, of all devices together."""
        found = dict(self._gone_copies)
        for hot in self._all():
            for name, count in hot.mirror.counters.items():
                found[name] = found.get(name, 0) + count
        return found

    async def close(self) -> None:
        """Waits for copies under way; gives the memory back."""
        while self._pending:
            await asyncio.wait(self._pending)
        for hot in self._all():
            await asyncio.to_thread(hot.close)
