"""The composition root: puts the daemon together, watches it, takes it down.

::

    config -> core.Store -+-> Service -+-> LocalListener   Unix socket
              DramTier  --+   Admin   -+-> RemoteListener  framed TCP   (off by default)
              Mover ------+            +-> RpcServer       gRPC         (off by default)
              StagingPool-+                HttpServer      /metrics /livez /readyz
    start:  check memory -> bind everything -> HTTP -> prefault -> accept -> ready
    stop:   signal -> drain -> close        a second signal, or a failure: close at once
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from anchorstore import __version__
from anchorstore.clock import Clock, SystemClock
from anchorstore.config import Config, parse_address, problems
from anchorstore.errors import ConfigError
from anchorstore.server.admin import Admin
from anchorstore.server.assembly import authenticator, service_limits, store_config
from anchorstore.server.carriers import Carriers
from anchorstore.server.core.store import Store
from anchorstore.server.dispatch import Dispatcher
from anchorstore.server.hints import BLOCKS_MAX, HintTables
from anchorstore.server.housekeeping import keep_house
from anchorstore.server.http import Health, HttpServer, routes_of
from anchorstore.server.logs import make_logger
from anchorstore.server.metrics import CONTENT_TYPE, Metrics
from anchorstore.server.mover import Mover
from anchorstore.server.service import Service
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.dram import DramTier, StagingPool
from anchorstore.tiers.memory import check_room
from anchorstore.transport.reasons import reason_of
from anchorstore.units import format_bytes

BOOT_ID_BYTES = 16
SECRET_BYTES = 32
DRAIN_POLL_SECONDS = 0.02
PREFAULT_REPORT_SECONDS = 5.0
EXIT_OK, EXIT_FAILED = 0, 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Daemon:
    """All parts of one running daemon.  Made within a running event loop.

    Args:
        config: checked by load().
        log: where events go.
        clock: what time it is.
    """

    def __init__(self, config: Config, log: FilteringBoundLogger, clock: Clock) -> None:
        wrong = problems(config)
        if wrong:
            raise ConfigError("; ".join(wrong))
        check_room(config.tiers.dram.capacity_bytes)
        self.config, self.log = config, log
        self.boot_id = os.urandom(BOOT_ID_BYTES)
        self.health, self.metrics = Health(), Metrics(CollectorRegistry())
        self.supervisor = Supervisor(self._report)
        dram = config.tiers.dram
        self.tier = DramTier(
            dram.pool_segments, dram.pool_segment_bytes, self.boot_id, dram.huge_pages, self._warn
        )
        self.core = Store(store_config(config), self.boot_id, secret=os.urandom(SECRET_BYTES))
        self.mover = Mover(self.tier, config.limits.mover_threads, config.limits.mover_queue)
        self.hints = HintTables(self.tier, self.boot_id, BLOCKS_MAX if dram.direct_reads else 0)
        self.service = Service(
            core=self.core,
            tier=self.tier,
            mover=self.mover,
            stagings=StagingPool(
                config.limits.staging_total_bytes, config.limits.staging_per_session_bytes
            ),
            auth=authenticator(config),
            clock=clock,
            limits=service_limits(config),
            boot_id=self.boot_id,
            supervisor=self.supervisor,
            log=log,
            hints=self.hints,
        )
        self.admin = Admin(
            self.service,
            self.supervisor,
            config.limits.list_pages,
            lambda: self.tier.huge_pages,
        )
        self.metrics.add_store(lambda: self.admin.status_for(None), config)
        self.metrics.add_mover(self.mover)
        dispatcher = Dispatcher(self.service, self.admin, self.supervisor, clock, self.metrics, log)
        self.carriers = Carriers(config, dispatcher)
        self.http: HttpServer | None = None
        self._prefault_stopped = threading.Event()

    def _report(self, name: str, error: BaseException) -> None:
        self.log.error("a part of the daemon failed", part=name, exc_info=error)

    def _warn(self, text: str) -> None:
        self.log.warning(text)

    async def start(self) -> None:
        """Everything up to ready."""
        self.carriers.bind()
        await self._start_http()
        await self._prefault()
        await self.carriers.start()
        self.supervisor.spawn(
            "housekeeping",
            keep_house(
                self.service,
                self.config.deadlines.housekeeping_seconds,
                self.config.limits.evict_step_blocks,
            ),
        )
        gc.collect()
        gc.freeze()  # what lives as long as the daemon is never walked again
        self.health.starting = ""
        self.metrics.set_ready(True)
        self.log.info("ready", **self.carriers.addresses())

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

        clock = self.service.clock
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

    async def drain(self) -> None:
        """No new work; waits for seals and open reservations, at most node.drain."""
        self.service.is_draining = self.health.draining = True
        self.metrics.set_ready(False)
        await self.carriers.drain()
        clock = self.service.clock
        deadline = clock.now() + self.config.node.drain_seconds
        while self._is_busy() and clock.now() < deadline:  # noqa: ASYNC110 - the core has no event
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    def _is_busy(self) -> bool:
        """Whether a put is still under way."""
        now = self.service.clock.now()
        return bool(self.service.seals.in_flight or self.core.status(now).reservations)

    async def close(self) -> None:
        """Ends everything now; safe after a start that failed half-way."""
        self._prefault_stopped.set()
        await self.carriers.stop()
        if self.http is not None:
            await self.http.close()
        await self.supervisor.stop()
        self.mover.close()
        self.service.stagings.close()
        self.hints.close()
        self.tier.close()


class Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def close(self) -> None:
        """Gives the signals back."""
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)


async def _first(*events: asyncio.Event) -> None:
    """Returns once one of `events` is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _unless(work: Coroutine[Any, Any, None], *events: asyncio.Event) -> None:
    """Runs `work`, but gives it up as soon as one of `events` is set; its errors come through."""
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(_first(*events))
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stop.cancel()
        task.cancel()
        await asyncio.wait({task})


async def _live(daemon: Daemon, signals: Signals) -> None:
    """Starts, serves and drains; returns when it is time to close."""
    failed = daemon.supervisor.failed
    await _unless(daemon.start(), signals.first, failed)
    await _first(signals.first, failed)
    if not failed.is_set():
        daemon.log.info("draining", limit_seconds=daemon.config.node.drain_seconds)
        await _unless(daemon.drain(), signals.second, failed)


async def run(config: Config, log: FilteringBoundLogger | None = None) -> int:
    """Runs a daemon until a signal or a failure; returns the process's exit code.

    ConfigError where it cannot be started as configured.
    """
    if log is None:
        log = make_logger(config.log, config.node.name or os.uname().nodename, sys.stderr)
    signals = Signals(asyncio.get_running_loop())
    try:
        daemon = Daemon(config, log, SystemClock())
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


def serve(config: Config, log: FilteringBoundLogger | None = None) -> int:
    """run() on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run(config, log))
