"""What goes into the core and what comes out of it: plain values, no behaviour.

::

    shell --- request, now ---> Store --- answer, or work to perform ---> shell

A `SealWork` is the only work that takes time: the shell formats segments, copies blocks, then
hands the ticket back.  Everything per block travels as columns (numpy arrays of equal length).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorstore.layout import Component
from anchorstore.server.core.store_config import NvmeShape as NvmeShape
from anchorstore.server.core.store_config import StoreConfig as StoreConfig
from anchorstore.transport.segment import Places

if TYPE_CHECKING:
    from anchorstore.server.core.work import Promotion

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]

DEEPEST_LINEAGE = 254


class Miss(enum.IntEnum):
    """Why a lookup found no boundary.  Numbers of the schema's MissReason.  COLD: there would be
    one, but its blocks are in nvme and were not brought in."""

    HIT = 0
    NOT_STORED = 1
    INCOMPLETE = 2
    LINEAGE = 3
    MARGIN = 4
    DISABLED = 5
    COLD = 6


class Event(enum.IntEnum):
    """What an engine says of a page in its own cache.  Numbers of the schema's EventKind."""

    STORED = 1
    REMOVED = 2
    TOUCHED = 3
    PINNED = 4
    UNPINNED = 5


class Verdict(enum.IntEnum):
    """Answer of reserve, per page and layout."""

    TAKE = 1
    KNOWN = 2
    DECLINED = 3


class Sealed(enum.IntEnum):
    """Answer of a seal, per block.  PENDING only between begin_seal and finish_seal."""

    PENDING = 0
    SEALED = 1
    KNOWN = 2
    DECLINED = 3
    MISMATCH = 4


class Declined(enum.StrEnum):
    """Why blocks were declined."""

    NOTHING = ""
    QUOTA = "quota"
    LINEAGE = "lineage"
    DISABLED = "disabled"
    CAPACITY = "capacity"
    LIMIT = "limit"


@dataclasses.dataclass(frozen=True, slots=True)
class NeedAll:
    """Every page from `first_page` up to the boundary (kv beyond what the engine holds)."""

    layout: int
    first_page: int


@dataclasses.dataclass(frozen=True, slots=True)
class NeedWindow:
    """The trailing pages that a replay needs (anchors).

    For n tokens at the resume point that is min(ceil(ratio n), max_rows, rows that exist) rows.
    Fewer are accepted, down to `min_rows`; 0 means exactly what is needed.
    """

    layout: int
    ratio: float
    max_rows: int
    rows_per_page: int
    min_rows: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class NeedLast:
    """The last page before the resume point alone (an exact state)."""

    layout: int


Need = NeedAll | NeedWindow | NeedLast


@dataclasses.dataclass(frozen=True, slots=True)
class SessionGrant:
    """What a session got.  `slot_bytes` has one entry a layout, in order; `blocks_max` of them all
    fill the pool."""

    root_digest: bytes
    slot_bytes: tuple[int, ...]
    max_lineage: int
    blocks_max: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReserveResult:
    """`reservation_id` is 0 where nothing is to be written; `verdicts` one byte a page and layout,
    page-major; `reason` says why blocks were declined ("" where none was)."""

    reservation_id: int
    verdicts: bytes
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class FormatSegment:
    """Work: write the header and the generations of pool region `index` before any copy.

    `fresh_memory` asks for a new memory object first: the old one was mapped by another domain, or
    a slot of it has run out of generations.
    """

    index: int
    segment_id: int
    slot_bytes: int
    slots: int
    first_generation: int
    fresh_memory: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Copies:
    """Work: one element a block to copy.  All arrays [n].

    The mover writes `generation` (odd) to the slot's record before it copies `block_bytes` to
    `offset` of the pool region `segment_index`, then the rest of the record (`path_hash` u64[n, 4],
    `layout_key`, `lineage`, the checksum), and `generation + 1` last.
    """

    request_index: U32
    segment_index: U32
    segment_id: U32
    slot: U32
    offset: U64
    block_bytes: U64
    generation: U32
    path_hash: U64
    layout_key: U64
    lineage: int

    def __len__(self) -> int:
        return len(self.slot)


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """Slots of one segment whose blocks no reader shall find any more."""

    domain: str
    segment_id: int
    slots: U32


@dataclasses.dataclass(frozen=True, slots=True)
class SealWork:
    """Work: `formats` at once, in order, before any other call of the store is acted upon; then
    `copies`; then finish_seal(ticket), exactly once, also where there was nothing to copy.

    `results` has one byte a requested block: PENDING where `copies` names it.
    """

    ticket: int
    domain: str
    results: bytearray
    formats: list[FormatSegment]
    copies: Copies


@dataclasses.dataclass(frozen=True, slots=True)
class BlockColumns:
    """Where the blocks of one need lie: `places` has one element a page, from `first_page` on,
    and is read-only; `layout` is a position among the session's layouts."""

    layout: int
    first_page: int
    places: Places

    def __len__(self) -> int:
        return len(self.places)


@dataclasses.dataclass(frozen=True, slots=True)
class LookupResult:
    """Answer of a lookup: a miss has boundary 0, lease 0 and no columns; a hit one column set a
    need.  `lineage` is the deepest among the leased blocks.  Where `promotion` is set, this is no
    answer yet: blocks must come from nvme first."""

    boundary_pages: int
    resume_pages: int
    lease_id: int
    lineage: int
    miss: Miss
    columns: list[BlockColumns]
    promotion: Promotion | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EventsResult:
    """What became of a batch of an engine's events.

    Attributes:
        unknown: events of pages that are not here; they change nothing.
        refused: pins beyond a limit.
        is_new: nothing was known of this engine before, or no more: it has been silent.
    """

    unknown: int
    refused: int
    is_new: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component's part of the pool."""

    component: Component
    capacity_bytes: int
    used_bytes: int
    blocks: int
    segments: int


@dataclasses.dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier."""

    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    segments_free: int
    components: list[ComponentStatus]


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """One namespace, for operators.  `bytes` counts slots in dram, sealed and reserved,
    `cold_bytes` those in nvme.  `salted`: it has a salt, which is nobody else's to see."""

    domain: str
    model: str
    root_digest: bytes
    weights_digest: bytes
    adapter: str
    page_tokens: int
    salted: bool
    pages: int
    bytes: int
    quota_bytes: int
    max_lineage: int
    enabled: bool
    sessions: int
    cold_bytes: int = 0
    cold_quota_bytes: int = 0
    share_bytes: int = 0
    cold_share_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StoreStatus:
    """The whole store, for operators and metrics.  `tiers` are dram and, where there is one, nvme;
    what is said beside them of bytes, segments and components is dram's."""

    sessions: int
    leases: int
    reservations: int
    seals_in_flight: int
    pages: int
    blocks: int
    index_bytes: int
    capacity_bytes: int
    used_bytes: int
    segments: int
    segments_free: int
    components: list[ComponentStatus]
    namespaces: list[NamespaceStatus]
    counters: dict[str, int]
    tiers: list[TierStatus]
    demotes_in_flight: int = 0
    promotes_in_flight: int = 0
    blocks_to_demote: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BlockStatus:
    """One sealed block, for operators.  `bytes` are those of its slot in the fastest of its
    `tiers`; `place` [1] is the one in dram, segment 0 where it has none."""

    component: Component
    layout_digest: bytes
    shard: int
    lineage: int
    leases: int
    bytes: int
    place: Places
    tiers: tuple[str, ...] = ("dram",)


@dataclasses.dataclass(frozen=True, slots=True)
class PageStatus:
    """One page, for operators.  `page` is its index in its prefix."""

    path_hash: bytes
    page: int
    children: int
    blocks: list[BlockStatus]


@dataclasses.dataclass(frozen=True, slots=True)
class PageList:
    """Pages in index order; `next_cursor` is 0 at the end."""

    pages: list[PageStatus]
    next_cursor: int


@dataclasses.dataclass(frozen=True, slots=True)
class LayoutMatch:
    """What of a prefix is stored of one layout.

    Attributes:
        leading_pages: up to the first hole.
        tiers: (name, pages) of each tier there is, the fastest first; a page may lie in several.
        place: where its blocks lie in dram [pages]; segment 0 where one does not.
    """

    component: Component
    layout_digest: bytes
    shard: int
    pages: int
    leading_pages: int
    lineage_least: int
    lineage_most: int
    tiers: list[tuple[str, int]]
    place: Places


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """How far a prefix matches and why it ends there."""

    pages_asked: int
    pages_present: int
    layouts: list[LayoutMatch]
    ends_because: str


@dataclasses.dataclass(frozen=True, slots=True)
class Removed:
    """`blocks_leased` of the removed blocks keep their slots until their leases end."""

    blocks_removed: int
    blocks_leased: int


def column(values: Any, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """`values` as a contiguous array of `dtype`."""
    return np.ascontiguousarray(values, dtype=dtype)
