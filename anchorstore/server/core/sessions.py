"""Who is attached to what: sessions, namespaces and the kinds of block they deal in.

::

    session --1--> namespace (domain, model, weights, ...)      pages, quota, kill switch
       |                  |
       | layouts          | domain
       v                  v
     kind = (domain, component, layout digest, shard) ----> slot class (domain, component, bytes)

A session belongs to one namespace, a namespace to one domain, and kinds are made per domain:
whatever a session can name lies within its domain.  Records live as long as something needs them:
a kind while sessions or blocks use it, a namespace while it has sessions, pages, slots or its
kill switch on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anchorstore.errors import CapacityFull, InvalidRequest, SpecMismatch, UnknownSession
from anchorstore.keys import LINEAGE_ANY, Namespace
from anchorstore.layout import Component, Layout
from anchorstore.server.core.engines import Engine
from anchorstore.server.core.leases import Deadlines
from anchorstore.server.core.pool import SlotClass
from anchorstore.server.core.store_config import cold_slot_bytes_of
from anchorstore.server.core.types import U8, U64, StoreConfig
from anchorstore.server.core.work import KnownNamespace
from anchorstore.transport.segment import layout_key, slot_bytes_of

if TYPE_CHECKING:
    from anchorstore.server.core.tier import Tier

KINDS_MAX = 4096
"""Kinds alive at once; their ids are 16 bits wide."""


@dataclasses.dataclass(eq=False)
class Kind:
    """One kind of block.  `blocks` counts sealed ones and those being written.  `slot_class` is
    dram's, `cold_class` nvme's: None where there is no such tier, or no room in it for such blocks.
    """

    kind_id: int
    key: tuple[str, Component, bytes, int]
    block_bytes: int
    first_slot_offset: int
    slot_class: SlotClass
    layout: Layout
    cold_class: SlotClass | None = None
    sessions: int = 0
    blocks: int = 0

    @property
    def component(self) -> Component:
        return self.key[1]

    @property
    def slot_bytes(self) -> int:
        return self.slot_class.slot_bytes

    def offset(self, slot: int) -> int:
        """Where a slot of this kind starts in its segment."""
        return self.first_slot_offset + slot * self.slot_bytes

    def layout_key(self, root_digest: bytes) -> int:
        """What slots' records show for blocks of this kind in a namespace."""
        _, _, digest, shard = self.key
        return layout_key(root_digest, digest, shard)


@dataclasses.dataclass(eq=False)
class NamespaceRecord:
    """One namespace.  Bytes are bytes of slots, in dram but for the `cold` ones."""

    namespace_id: int
    namespace: Namespace
    root_digest: bytes
    quota_bytes: int
    max_lineage: int
    enabled: bool = True
    used_bytes: int = 0  # sealed, and removed ones that a lease still keeps
    reserved_bytes: int = 0  # reserved or being written
    cold_bytes: int = 0  # in nvme
    cold_reserved_bytes: int = 0  # being written there
    cold_quota_bytes: int = 0
    kept_bytes: int = 0  # that others never evict
    cold_kept_bytes: int = 0
    pages: int = 0
    engines: int = 0  # bits of the engines whose holdings are known: engines.py
    sessions: set[bytes] = dataclasses.field(default_factory=set)

    @property
    def known(self) -> KnownNamespace:
        """What is kept over a restart."""
        return KnownNamespace(self.namespace, self.max_lineage, self.enabled)

    def stores(self, lineage: int) -> bool:
        """Whether blocks of this lineage are taken."""
        return self.max_lineage == LINEAGE_ANY or lineage <= self.max_lineage


@dataclasses.dataclass(eq=False)
class Reservation:
    """A run of pages that a writer may seal.

    `path` is u64[n + 1, 4]: the parent's hash, then the pages'.  `units` is u8[n, layouts], one
    `Unit` a page and layout; `slot_bytes` u64[layouts].
    """

    reservation_id: int
    session: Session
    first_page: int
    path: U64
    kinds: tuple[Kind, ...]
    lineage: int
    units: U8
    slot_bytes: U64
    priority: int = 0

    @property
    def pages(self) -> int:
        """Pages of the run."""
        return len(self.units)


@dataclasses.dataclass(eq=False)
class Session:
    """One engine's attachment.  `engine` once it has told of its own cache."""

    session_id: bytes
    name: str
    record: NamespaceRecord
    kinds: tuple[Kind, ...]
    kind_ids: tuple[int, ...]
    connections: int = 0
    reservations: dict[int, Reservation] = dataclasses.field(default_factory=dict)
    leases: set[int] = dataclasses.field(default_factory=set)
    engine: Engine | None = None
    alive: bool = True


class Registry:
    """All sessions, namespaces and kinds."""

    def __init__(self, config: StoreConfig, tiers: Sequence[Tier]) -> None:
        self.config = config
        self.tiers = tiers
        self.pool = tiers[0].pool
        self.sessions: dict[bytes, Session] = {}
        self.idle: Deadlines[bytes] = Deadlines(config.session_ttl_seconds)
        self.namespaces: dict[bytes, NamespaceRecord] = {}
        self.by_namespace_id: dict[int, NamespaceRecord] = {}
        self.kinds: dict[tuple[str, Component, bytes, int], Kind] = {}
        self.by_kind_id: dict[int, Kind] = {}
        self.component_of_kind: U8 = np.zeros(KINDS_MAX + 1, np.uint8)
        self._free_kind_ids = list(range(KINDS_MAX, 0, -1))
        self._next_namespace_id = 1

    # ---- sessions ----

    def session(self, session_id: bytes, now: float) -> Session:
        """The open session; UnknownSession for any other id.  Counts as use."""
        session = self.sessions.get(session_id)
        if session is None:
            raise UnknownSession("session is not open here: it ended, or belongs to another boot")
        if not session.connections:
            self.idle.use(session_id, now)
        return session

    def attach(
        self,
        session_id: bytes,
        namespace: Namespace,
        layouts: Sequence[Layout],
        max_lineage: int | None,
        name: str,
        now: float,
    ) -> Session:
        """Opens a session, or raises without a trace."""
        if not session_id or session_id in self.sessions:
            raise InvalidRequest("session id is empty or in use")
        if len(self.sessions) >= self.config.max_sessions:
            raise CapacityFull(f"{len(self.sessions)} sessions, limit {self.config.max_sessions}")
        self._check_share(namespace.domain)
        self._check_layouts(namespace, layouts)
        record = self._namespace(namespace, max_lineage)
        kinds = self._kinds(namespace.domain, layouts)
        session = Session(session_id, name, record, kinds, tuple(kind.kind_id for kind in kinds))
        record.sessions.add(session_id)
        self.sessions[session_id] = session
        self.idle.use(session_id, now)
        return session

    def _check_share(self, domain: str) -> None:
        """CapacityFull where the domain has its share of the sessions."""
        records = (r for r in self.namespaces.values() if r.namespace.domain == domain)
        count, limit = sum(len(record.sessions) for record in records), self.config
        if count >= limit.max_sessions_per_domain:
            raise CapacityFull(
                f"domain {domain!r} has {count} sessions, limit {limit.max_sessions_per_domain} a "
                "domain (limits.sessions_per_domain)"
            )

    def detach(self, session: Session) -> None:
        """Takes out a session whose leases and reservations have ended."""
        assert not session.leases and not session.reservations, session.name
        assert session.engine is None, session.name
        session.alive = False
        del self.sessions[session.session_id]
        self.idle.drop(session.session_id)
        session.record.sessions.remove(session.session_id)
        for kind in session.kinds:
            kind.sessions -= 1
            self.forget_kind_if_idle(kind)
        for segment in self.pool.by_id.values():
            segment.holders.discard(session.session_id)
        self.forget_namespace_if_idle(session.record)

    # ---- namespaces ----

    def _namespace(self, namespace: Namespace, max_lineage: int | None) -> NamespaceRecord:
        root = namespace.root_digest()
        record = self.namespaces.get(root)
        if max_lineage is not None and not 0 <= max_lineage <= LINEAGE_ANY:
            raise InvalidRequest(f"max_lineage is {max_lineage}, must be 0 to {LINEAGE_ANY}")
        if record is not None:
            if max_lineage is not None and max_lineage != record.max_lineage:
                if record.sessions:
                    raise SpecMismatch(
                        f"namespace of model {namespace.model!r} is in use with max_lineage "
                        f"{record.max_lineage}, not {max_lineage}"
                    )
                record.max_lineage = max_lineage
            return record
        if len(self.namespaces) >= self.config.max_namespaces:
            raise CapacityFull(
                f"{len(self.namespaces)} namespaces, limit {self.config.max_namespaces}"
            )
        if max_lineage is None:
            max_lineage = self.config.default_max_lineage
        return self.new_namespace(namespace, root, max_lineage)

    def new_namespace(self, namespace: Namespace, root: bytes, max_lineage: int) -> NamespaceRecord:
        """The record of a namespace that has none."""
        names, nvme = (namespace.domain, namespace.model), self.config.nvme
        record = NamespaceRecord(
            self._next_namespace_id, namespace, root, self.config.quota_bytes(*names), max_lineage
        )
        record.kept_bytes = self.config.reserves.get(names, 0)
        if nvme:
            record.cold_quota_bytes = nvme.quota_bytes(*names)
            record.cold_kept_bytes = nvme.reserves.get(names, 0)
        self._next_namespace_id += 1
        self.namespaces[root] = self.by_namespace_id[record.namespace_id] = record
        return record

    def namespace_of_root(self, root_digest: bytes) -> NamespaceRecord:
        """For operators; InvalidRequest where no such namespace is known."""
        record = self.namespaces.get(root_digest)
        if record is None:
            raise InvalidRequest(f"no namespace with root digest {root_digest.hex()}")
        return record

    def forget_namespace_if_idle(self, record: NamespaceRecord) -> None:
        """Drops a namespace that nothing needs any more."""
        needed = record.sessions or record.pages or record.used_bytes or record.reserved_bytes
        needed = needed or record.cold_bytes or record.cold_reserved_bytes
        if record.enabled and not needed and self.namespaces.get(record.root_digest) is record:
            del self.namespaces[record.root_digest]
            del self.by_namespace_id[record.namespace_id]

    # ---- kinds ----

    def _check_layouts(self, namespace: Namespace, layouts: Sequence[Layout]) -> None:
        if not 1 <= len(layouts) <= self.config.max_layouts:
            raise InvalidRequest(f"{len(layouts)} layouts, must be 1 to {self.config.max_layouts}")
        seen = set()
        for position, layout in enumerate(layouts):
            key = (layout.component, layout.digest(), layout.shard())
            if key in seen:
                raise SpecMismatch(f"layout {position} repeats an earlier one")
            seen.add(key)
            if layout.page_tokens != namespace.page_tokens:
                raise SpecMismatch(
                    f"layout {position} has pages of {layout.page_tokens} tokens, "
                    f"the namespace of {namespace.page_tokens}"
                )
            if not self.pool.shape(slot_bytes_of(layout.block_bytes())).slots:
                raise SpecMismatch(
                    f"layout {position}: a block of {layout.block_bytes()} bytes does not fit "
                    f"a segment of {self.config.segment_bytes}"
                )
        if len(self.kinds) + len(layouts) > KINDS_MAX:
            raise CapacityFull(f"{len(self.kinds)} kinds of block are in use, limit {KINDS_MAX}")

    def _kinds(self, domain: str, layouts: Sequence[Layout]) -> tuple[Kind, ...]:
        found = []
        for layout in layouts:
            key = (domain, layout.component, layout.digest(), layout.shard())
            kind = self.kinds.get(key) or self.new_kind(domain, layout)
            assert kind.block_bytes == layout.block_bytes(), "one layout digest, two block sizes"
            kind.sessions += 1
            found.append(kind)
        return tuple(found)

    def new_kind(self, domain: str, layout: Layout) -> Kind:
        """The record of a kind that has none."""
        component, block_bytes = layout.component, layout.block_bytes()
        key = (domain, component, layout.digest(), layout.shard())
        slot_class = self.pool.class_of(domain, component, slot_bytes_of(block_bytes))
        first = self.pool.shape(slot_class.slot_bytes).first_slot_offset
        kind = Kind(self._free_kind_ids.pop(), key, block_bytes, first, slot_class, layout)
        for tier in self.tiers[1:]:
            size = cold_slot_bytes_of(block_bytes)
            if tier.pool.shape(size).slots and tier.pool.allowed_segments(component):
                kind.cold_class = tier.pool.class_of(domain, component, size)
        self.kinds[key] = self.by_kind_id[kind.kind_id] = kind
        self.component_of_kind[kind.kind_id] = int(component)
        for tier in self.tiers:
            tier.know(kind)
        return kind

    def forget_kind_if_idle(self, kind: Kind) -> None:
        """Drops a kind that neither sessions nor blocks use; its id may be used again."""
        if kind.sessions or kind.blocks:
            return
        del self.kinds[kind.key]
        del self.by_kind_id[kind.kind_id]
        self.component_of_kind[kind.kind_id] = 0
        for tier in self.tiers:
            tier.forget(kind)
        self._free_kind_ids.append(kind.kind_id)
