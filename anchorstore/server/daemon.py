"""The composition root: puts the daemon together, watches it, takes it down.

::

    start:  check memory -> HTTP -> open nvme, hbm -> build the house -> bind everything -> prefault
            -> accept -> ready
    stop:   signal -> drain (puts, then what waits for nvme) -> close
            a second signal, or a failure: close at once
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from anchorstore import __version__
from anchorstore.clock import Clock, SystemClock
from anchorstore.config import Config, parse_address, problems
from anchorstore.errors import ConfigError
from anchorstore.server import house, opening
from anchorstore.server.assembly import store_config
from anchorstore.server.carriers import Carriers
from anchorstore.server.core.policies import FlopAware
from anchorstore.server.core.store import Store
from anchorstore.server.house import House
from anchorstore.server.housekeeping import keep_house, tune_once
from anchorstore.server.http import Health, HttpServer, routes_of
from anchorstore.server.logs import make_logger
from anchorstore.server.metrics import CONTENT_TYPE, Metrics
from anchorstore.server.mover import Mover
from anchorstore.server.opening import MakePlatform
from anchorstore.server.service import Service
from anchorstore.server.signals import Signals, first_of, unless
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.dram import DramTier
from anchorstore.tiers.memory import check_room
from anchorstore.tiers.nvme.seam import OpenFile, open_direct
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.transport.reasons import reason_of
from anchorstore.units import format_bytes

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices

BOOT_ID_BYTES = 16
SECRET_BYTES = 32
DRAIN_POLL_SECONDS = 0.02
PREFAULT_REPORT_SECONDS = 5.0
EXIT_OK, EXIT_FAILED = 0, 1


class Daemon:
    """All parts of one running daemon.  Made within a running event loop.

    Args:
        config: checked by load().
        log: where events go.
        clock: what time it is.
        open_file: how the nvme tier opens its files.
        make_platform: gives the hbm tier its devices; called where one is configured.
    """

    def __init__(
        self,
        config: Config,
        log: FilteringBoundLogger,
        clock: Clock,
        open_file: OpenFile = open_direct,
        make_platform: MakePlatform = opening.cuda_platform,
    ) -> None:
        wrong = problems(config)
        if wrong:
            raise ConfigError("; ".join(wrong))
        check_room(config.tiers.dram.capacity_bytes)
        self.config, self.log, self.clock = config, log, clock
        self.boot_id = os.urandom(BOOT_ID_BYTES)
        self.health, self.metrics = Health(), Metrics(CollectorRegistry())
        self.supervisor = Supervisor(self._report)
        dram = config.tiers.dram
        self.tier = DramTier(
            dram.pool_segments, dram.pool_segment_bytes, self.boot_id, dram.huge_pages, self._warn
        )
        self.http: HttpServer | None = None
        self.nvme: NvmeTier | None = None
        self.devices: Devices | None = None
        self._open_file, self._make_platform = open_file, make_platform
        self._opening: asyncio.Future[NvmeTier] | None = None
        self._house: House | None = None
        self._prefault_stopped = threading.Event()

    # ---- its parts, once it has started ----

    @property
    def house(self) -> House:
        """What serves."""
        assert self._house is not None, "the daemon has not been started"
        return self._house

    @property
    def core(self) -> Store:
        """What decides."""
        return self.house.core

    @property
    def service(self) -> Service:
        """The store's calls."""
        return self.house.service

    @property
    def mover(self) -> Mover:
        """Copies."""
        return self.house.mover

    @property
    def carriers(self) -> Carriers:
        """The ways in."""
        return self.house.carriers

    def _report(self, name: str, error: BaseException) -> None:
        self.log.error("a part of the daemon failed", part=name, exc_info=error)

    def _warn(self, text: str) -> None:
        self.log.warning(text)

    # ---- start ----

    async def start(self) -> None:
        """Everything up to ready."""
        await self._start_http()
        if self.config.tiers.nvme.devices:
            await self._open_nvme()
        if self.config.tiers.hbm.is_wanted:
            await self._open_hbm()
        core = await self._make_core()
        self._house = house.build(
            self.config,
            core,
            self.tier,
            self.nvme,
            self.devices,
            self.clock,
            self.supervisor,
            self.metrics,
            self.log,
        )
        self.carriers.bind()
        await self._prefault()
        await self.carriers.start()
        self._spawn()
        gc.collect()
        gc.freeze()  # what lives as long as the daemon is never walked again
        self.health.starting = ""
        self.metrics.set_ready(True)
        self.log.info("ready", **self.carriers.addresses())

    def _spawn(self) -> None:
        """The work in the background."""
        pause_seconds = self.config.deadlines.housekeeping_seconds
        self.supervisor.spawn("housekeeping", keep_house(self.service, pause_seconds))
        policy, _ = self.service.core.last_tier
        if isinstance(policy, FlopAware):
            tuning = tune_once(self.service.core, policy, pause_seconds)
            self.supervisor.watch("tuning", tuning).add_done_callback(self._note_tuned)
        if self.service.movement is not None:
            self.supervisor.spawn("movement", self.service.movement.run())

    def _note_tuned(self, task: asyncio.Task[FlopAware]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.log.info("tuned", policy=FlopAware.name, alpha=task.result().alpha)

    async def _open_nvme(self) -> None:
        """In a thread: a device's journal takes seconds to read."""

        def tell(what: str) -> None:
            self.health.starting = what

        tell("nvme")
        wanted = (self.config.tiers.nvme, self._warn, tell, self._open_file)
        loop = asyncio.get_running_loop()
        self._opening = loop.run_in_executor(None, opening.open_tier, *wanted)
        self.nvme = await asyncio.shield(self._opening)
        opening.tell_devices(self.nvme, self.log)

    async def _open_hbm(self) -> None:
        """In a thread: a driver takes up to seconds to start."""
        self.health.starting = "hbm"
        devices = opening.make_devices(
            self.config.tiers.hbm,
            self._make_platform(),
            self.tier,
            self.boot_id,
            self._warn,
            self.supervisor.fail,
        )
        await asyncio.to_thread(devices.open)
        self.devices = devices
        opening.tell_cuda_devices(devices, self.log)

    async def _make_core(self) -> Store:
        """The core, with what the journals name."""
        secret = os.urandom(SECRET_BYTES)
        if self.nvme is None:
            return Store(store_config(self.config), self.boot_id, secret=secret)
        self.health.starting = "nvme restore"
        shape = opening.nvme_shape(self.config, self.nvme)
        core = Store(store_config(self.config, shape), self.boot_id, secret=secret)
        await asyncio.to_thread(opening.restore, core, self.nvme, self.clock, self.log)
        return core

    async def _start_http(self) -> None:
        if not self.config.listen.http:
            return
        host, port = parse_address(self.config.listen.http)
        routes = routes_of(self.health, self.metrics.exposition, CONTENT_TYPE)
        http = HttpServer(
            routes,
            deadline_seconds=self.config.deadlines.http_seconds,
            connections_max=self.config.limits.http_connections,
            counts=self.metrics,
            fail=self.supervisor.fail,
        )
        try:
            await http.start(host, port)
        except OSError as error:
            raise ConfigError(
                f"listen.http: cannot bind {host}:{port} (--http): {reason_of(error)}"
            ) from error
        self.http = http
        self.log.info("http listens", address=f"{host}:{http.port}")

    async def _prefault(self) -> None:
        dram = self.config.tiers.dram
        if not dram.prefault:
            return
        self.health.starting = "prefault 0%"

        clock = self.clock
        started = told = clock.now()

        def progress(done: int, total: int) -> None:
            nonlocal told
            self.health.starting = f"prefault {100 * done // total}%"
            self.metrics.set_prefaulted(done)
            if clock.now() - told >= PREFAULT_REPORT_SECONDS:
                told = clock.now()
                self.log.info("prefaulting", done_bytes=done, total_bytes=total)

        await asyncio.to_thread(self.tier.prefault, progress, self._prefault_stopped.is_set)
        self.log.info(
            "pool prefaulted",
            capacity=format_bytes(self.tier.segments * self.tier.segment_bytes),
            huge_pages=self.tier.huge_pages,
            seconds=clock.now() - started,
        )

    # ---- stop ----

    async def drain(self) -> None:
        """No new work; waits for seals and open reservations, and for what is to be written to
        nvme, at most node.drain."""
        self.service.is_draining = self.health.draining = True
        self.metrics.set_ready(False)
        await self.carriers.drain()
        clock = self.clock
        deadline = clock.now() + self.config.node.drain_seconds
        while self._is_busy() and clock.now() < deadline:  # noqa: ASYNC110 - the core has no event
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        if self.service.movement is not None:
            await self.service.movement.drain(deadline)

    def _is_busy(self) -> bool:
        """Whether a put is still under way."""
        now = self.clock.now()
        return bool(self.service.seals.in_flight or self.core.status(now).reservations)

    async def close(self) -> None:
        """Ends everything now; safe after a start that failed half-way."""
        self._prefault_stopped.set()
        if self._house is not None:
            await self._house.carriers.stop()
        if self.http is not None:
            await self.http.close()
        await self.supervisor.stop()
        await self._close_nvme()
        if self.devices is not None:  # copies to a device read the pool
            await self.devices.close()
        if self._house is not None:
            self._house.close()
        self.tier.close()

    async def _close_nvme(self) -> None:
        """The devices, whose calls use the pool."""
        if self._opening is None:
            return
        await asyncio.wait({self._opening})
        if self._opening.exception() is not None:  # start() has told
            return
        if not await asyncio.to_thread(self._opening.result().close):
            self.log.warning("nvme: a device still holds calls that it does not answer")


async def _live(daemon: Daemon, signals: Signals) -> None:
    """Starts, serves and drains; returns when it is time to close."""
    failed = daemon.supervisor.failed
    await unless(daemon.start(), signals.first, failed)
    await first_of(signals.first, failed)
    if not failed.is_set():
        daemon.log.info("draining", limit_seconds=daemon.config.node.drain_seconds)
        await unless(daemon.drain(), signals.second, failed)


async def run(
    config: Config,
    log: FilteringBoundLogger | None = None,
    make_platform: MakePlatform = opening.cuda_platform,
) -> int:
    """Runs a daemon until a signal or a failure; returns the process's exit code.

    ConfigError where it cannot be started as configured.
    """
    if log is None:
        log = make_logger(config.log, config.node.name or os.uname().nodename, sys.stderr)
    signals = Signals(asyncio.get_running_loop())
    try:
        daemon = Daemon(config, log, SystemClock(), make_platform=make_platform)
        log.info("starting", version=__version__, boot_id=daemon.boot_id, pid=os.getpid())
        try:
            await _live(daemon, signals)
        finally:
            await daemon.close()
    finally:
        signals.close()
    failed = daemon.supervisor.failure is not None
    log.info("stopped", failed=failed)
    return EXIT_FAILED if failed else EXIT_OK


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: half the time of a small call."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def serve(
    config: Config,
    log: FilteringBoundLogger | None = None,
    make_platform: MakePlatform = opening.cuda_platform,
) -> int:
    """run() on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(config, log, make_platform))
