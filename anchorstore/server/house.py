"""The parts of a daemon that serve, put together once its tiers stand.

::

    config -> core.Store -+-> Service -+-> LocalListener   Unix socket
              DramTier  --+   Admin   -+-> RemoteListener  framed TCP   (off by default)
              NvmeTier  --+            +-> RpcServer       gRPC         (off by default)
              Devices   --+
              Mover ------+
              StagingPool-+
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from anchorstore.clock import Clock
from anchorstore.config import Config
from anchorstore.server.admin import Admin
from anchorstore.server.assembly import authenticator, service_limits
from anchorstore.server.carriers import Carriers
from anchorstore.server.core.store import Store
from anchorstore.server.dispatch import Dispatcher
from anchorstore.server.hints import BLOCKS_MAX, HintTables
from anchorstore.server.metrics import Metrics
from anchorstore.server.mover import Mover
from anchorstore.server.service import Service
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.dram import DramTier, StagingPool
from anchorstore.tiers.nvme.tier import NvmeTier

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices


@dataclasses.dataclass(frozen=True, slots=True)
class House:
    """All parts of one daemon but its tiers.  Made within a running event loop."""

    core: Store
    mover: Mover
    hints: HintTables
    service: Service
    admin: Admin
    carriers: Carriers

    def close(self) -> None:
        """Gives back what the parts hold; the carriers have been stopped before."""
        self.mover.close()
        self.service.stagings.close()
        self.hints.close()


def build(
    config: Config,
    core: Store,
    tier: DramTier,
    nvme: NvmeTier | None,
    devices: Devices | None,
    clock: Clock,
    supervisor: Supervisor,
    metrics: Metrics,
    log: FilteringBoundLogger,
) -> House:
    """Puts them together; nothing listens yet.  ConfigError for token files that cannot be used."""
    limits, dram = config.limits, config.tiers.dram
    mover = Mover(tier, limits.mover_threads, limits.mover_queue)
    hints = HintTables(tier, core.boot_id, BLOCKS_MAX if dram.direct_reads else 0)
    service = Service(
        core=core,
        tier=tier,
        mover=mover,
        stagings=StagingPool(limits.staging_total_bytes, limits.staging_per_session_bytes),
        auth=authenticator(config),
        clock=clock,
        limits=service_limits(config),
        boot_id=core.boot_id,
        supervisor=supervisor,
        log=log,
        hints=hints,
        nvme=nvme,
        devices=devices,
    )
    admin = Admin(service, supervisor, limits.list_pages, lambda: tier.huge_pages)
    metrics.add_store(lambda: admin.status_for(None), config)
    metrics.add_mover(mover)
    dispatcher = Dispatcher(service, admin, supervisor, clock, metrics, log)
    return House(core, mover, hints, service, admin, Carriers(config, dispatcher))
