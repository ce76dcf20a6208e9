"""Limits and sizes of one store, checked when it is made.

::

    StoreConfig   dram: segments, shares, watermarks        sessions, leases, quotas
         |
         nvme --> NvmeShape: the same of the second tier; None where there is none
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anchorstore.keys import LINEAGE_ANY
from anchorstore.layout import Component
from anchorstore.transport.segment import align

if TYPE_CHECKING:
    from anchorstore.server.core.admission import Admission
    from anchorstore.server.core.policies import Policy

UNIT_BYTES = 4096
"""The nvme tier is addressed in these steps."""
UNITS_MAX = 2**32
FOOTER_BYTES = 128
"""At the end of each nvme slot: what proves the slot without the journal."""


def cold_slot_bytes_of(block_bytes: int) -> int:
    """Bytes of the nvme slot that holds a block and its footer."""
    return align(block_bytes + FOOTER_BYTES)


def _check_marks(low: float, high: float) -> None:
    assert 0 < low <= high <= 1, f"watermarks {low} and {high} must rise within (0, 1]"


def _check_shares(shares: Mapping[Component, float]) -> None:
    for component, share in shares.items():
        assert 0 < share <= 1, f"share of {component.name} is {share}, must be in (0, 1]"


@dataclasses.dataclass(frozen=True)
class NvmeShape:
    """Sizes of the nvme tier: all devices, one address space.

    Its segments are numbered from 1, so that unit 0 means "no place": segment s covers the units
    from s * segment_units on.

    Attributes:
        segments: segments of all devices together.
        segment_bytes: size of each, a multiple of 4 KiB.
        devices: how many of them each device has, in order; () for one device.
        component_share, high_watermark, low_watermark: as StoreConfig's.
        ahead: whether every sealed block is written, soon ("behind"); else only what eviction
            would drop next ("demote").
        queue_blocks: sealed blocks that wait to be written; more are passed over.
        default_quota_bytes, quotas, reserves: as StoreConfig's, of this tier's slots.
        policy: the order of eviction; None for lru.
        admission: what is worth a place; None for everything.
    """

    segments: int
    segment_bytes: int
    component_share: Mapping[Component, float]
    high_watermark: float = 0.98
    low_watermark: float = 0.95
    ahead: bool = True
    queue_blocks: int = 65_536
    default_quota_bytes: int = 0
    quotas: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    reserves: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    policy: Policy | None = None
    admission: Admission | None = None
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.devices:
            assert min(self.devices) > 0 and sum(self.devices) == self.segments, self.devices
        assert self.segments > 0 and self.segment_bytes > 0 and self.queue_blocks > 0, self
        assert self.segment_bytes % UNIT_BYTES == 0, f"segments of {self.segment_bytes} bytes"
        units = (self.segments + 1) * self.segment_units
        assert units <= UNITS_MAX, f"nvme tier of {units} units of 4 KiB, limit {UNITS_MAX}"
        _check_marks(self.low_watermark, self.high_watermark)
        _check_shares(self.component_share)

    @property
    def segment_units(self) -> int:
        """Units of one segment."""
        return self.segment_bytes // UNIT_BYTES

    def quota_bytes(self, domain: str, model: str) -> int:
        """Bytes of slots that namespaces of this domain and model may take each; 0 = no bound."""
        return self.quotas.get((domain, model), self.default_quota_bytes)


@dataclasses.dataclass(frozen=True)
class StoreConfig:
    """Limits and sizes of one store.  Every bound is checked when the store is made.

    Attributes:
        segments: regions in the dram pool.
        segment_bytes: size of each.
        component_share: fraction of `segments` that a component may take, each in (0, 1]; at
            least one segment where the share is not 0.  A component without a share stores
            nothing.  The shares may sum to more than 1.
        high_watermark: fraction of a component's capacity above which `evict_step` works.
        low_watermark: fraction down to which it works.
        read_ttl_seconds: life of a read lease.
        write_ttl_seconds: life of a reservation after its last use.
        session_ttl_seconds: life of a session without a connection.
        max_pages: pages in one lookup or reserve.
        max_sessions_per_domain: of max_sessions, for any one domain.
        max_layouts, max_reservations, max_leases: each per session.
        max_reserved_pages: pages in open reservations, all sessions together.
        max_leased_blocks: blocks that read leases name, need by need, all sessions together.
        default_quota_bytes: of a namespace without its own entry; 0 = none.
        quotas: (domain, model) -> bytes of slots, 0 = none.
        reserves: (domain, model) -> bytes of slots that others never evict from its namespaces,
            each.
        default_max_lineage: deepest lineage that a namespace stores; 255 = any.
        policy: the order of eviction from dram; None for lru.
        mirrors_sglang: whether that order shall be SGLang's to the page: only a writer's offer
            counts as a use, and runs of pages are known (runs.py), for 4 bytes a page.
        mirrors_engines: whether pages that no engine holds any more leave dram first, once nvme
            has them (events.py); 9 bytes a page, where there is nvme.
        engine_ttl_seconds: life of what an engine has said, after its last batch of events.
        max_pins: pages that one session's engine pins.
        pin_share: part of the pool's bytes that pins of all engines may take together.
        nvme: the second tier, if there is one.
    """

    segments: int
    segment_bytes: int
    component_share: Mapping[Component, float]
    high_watermark: float = 0.95
    low_watermark: float = 0.90
    read_ttl_seconds: float = 30.0
    write_ttl_seconds: float = 30.0
    session_ttl_seconds: float = 60.0
    max_sessions: int = 256
    max_sessions_per_domain: int = 256
    max_namespaces: int = 1024
    max_layouts: int = 16
    max_pages: int = 16_384
    max_reservations: int = 256
    max_leases: int = 4096
    max_reserved_pages: int = 2**20
    max_leased_blocks: int = 2**22
    default_quota_bytes: int = 0
    quotas: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    reserves: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    default_max_lineage: int = 16
    policy: Policy | None = None
    mirrors_sglang: bool = False
    mirrors_engines: bool = False
    engine_ttl_seconds: float = 60.0
    max_pins: int = 4096
    pin_share: float = 0.25
    nvme: NvmeShape | None = None

    def __post_init__(self) -> None:
        for name in (
            *("segments", "segment_bytes", "read_ttl_seconds", "write_ttl_seconds"),
            *("session_ttl_seconds", "max_sessions", "max_namespaces", "max_layouts"),
            *("max_pages", "max_reservations", "max_leases", "max_sessions_per_domain"),
            *("max_reserved_pages", "max_leased_blocks", "engine_ttl_seconds", "max_pins"),
        ):
            assert getattr(self, name) > 0, f"{name} is {getattr(self, name)}, must be above 0"
        assert self.max_layouts <= 255, f"max_layouts is {self.max_layouts}, limit 255"
        _check_marks(self.low_watermark, self.high_watermark)
        _check_shares(self.component_share)
        assert 0 <= self.default_max_lineage <= LINEAGE_ANY, self.default_max_lineage
        assert 0 <= self.pin_share <= 1, f"pin_share is {self.pin_share}, must be in [0, 1]"
        assert self.default_quota_bytes >= 0 and all(q >= 0 for q in self.quotas.values())

    def quota_bytes(self, domain: str, model: str) -> int:
        """Bytes of slots that namespaces of this domain and model may take each; 0 = no bound."""
        return self.quotas.get((domain, model), self.default_quota_bytes)

    def page_columns(self) -> set[str]:
        """Columns of pages that policies, the admission, runs and engines' events need."""
        readers = [self.policy, *((self.nvme.policy, self.nvme.admission) if self.nvme else ())]
        names = {name for reader in readers if reader is not None for name in reader.columns}
        names |= {"onward"} if self.mirrors_sglang else set()
        return names | ({"holders", "let_go"} if self.mirrors_engines and self.nvme else set())
