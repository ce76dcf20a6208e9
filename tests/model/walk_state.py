"""What a walk knows: both stores, open sessions, tickets; how details are drawn; sessions."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Callable

from anchorstore.errors import CapacityFull, UnknownSession
from anchorstore.keys import Namespace
from anchorstore.layout import AnchorLayout, Component, KvLayout, Layout, StateLayout
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import (
    Need,
    StoreConfig,
)
from tests.model.naive import Block, Kind, NaiveStore, Space

Draw = Callable[[int], int]

LAYOUTS: list[Layout] = [
    KvLayout(1, 1, 16, "bfloat16", 0, 1),  # 4 KiB
    AnchorLayout(1, 4, 64, "bfloat16"),  # 512 bytes in a slot of 4 KiB
    StateLayout(8192, "exact"),
    KvLayout(2, 1, 16, "bfloat16", 0, 1),  # 8 KiB
]
SLOT_BYTES = [4096, 4096, 8192, 8192]
SPACES = [("acme", b""), ("acme", b"salt"), ("globex", b"")]
SEGMENT_BYTES = 5 * 4096  # a header page and 4 slots of 4 KiB, or 2 of 8 KiB
DEPTH = 7
QUOTA_BYTES = 9 * 4096

CONFIG = StoreConfig(
    segments=9,
    segment_bytes=SEGMENT_BYTES,
    component_share={Component.KV: 0.6, Component.ANCHOR: 0.4, Component.STATE: 0.3},
    high_watermark=0.9,
    low_watermark=0.6,
    read_ttl_seconds=10.0,
    write_ttl_seconds=8.0,
    session_ttl_seconds=30.0,
    max_sessions=4,
    max_sessions_per_domain=3,
    max_reservations=5,
    max_leases=3,
    quotas={("globex", "model"): QUOTA_BYTES},
    default_max_lineage=2,
)


@dataclasses.dataclass(eq=False)
class Reservation:
    """What the walk remembers of one; `units` as in reserving.Unit's names."""

    first: int
    hashes: list[bytes]  # parent first
    kinds: list[Kind]
    lineage: int
    units: dict[tuple[int, int], str]
    deadline: float


@dataclasses.dataclass(eq=False)
class Ticket:
    """A seal in flight: request index -> (page, layout position, place)."""

    session: Session
    reservation: Reservation
    copies: list[tuple[int, int, int, tuple[int, int, int]]]
    results: list[int]
    cancelled: bool = False


@dataclasses.dataclass(eq=False)
class Session:
    """An open session."""

    session_id: bytes
    space: Space
    layouts: list[int]
    kinds: list[Kind]
    connections: int = 0
    deadline: float = 0.0
    reservations: dict[int, Reservation] = dataclasses.field(default_factory=dict)
    leases: dict[int, tuple[list[list[Block]], float]] = dataclasses.field(default_factory=dict)
    asked: tuple[list[bytes], list[Need], int, int] | None = None
    alive: bool = True


class WalkState:
    """Both stores, and the sessions on them."""

    def __init__(self, draw: Draw, config: StoreConfig = CONFIG) -> None:
        self.draw = draw
        self.config = config
        self.store = Store(config, b"boot" * 4, b"secret")
        self.naive = NaiveStore(config)
        self.now = 0.0
        self.sessions: dict[bytes, Session] = {}
        self.tickets: dict[int, Ticket] = {}
        self.kinds: dict[tuple[str, int], Kind] = {}
        self.lately: collections.deque[list[bytes]] = collections.deque(maxlen=8)
        self.made = 0
        self.findable: set[tuple[int, int]] = set()
        """(segment id, slot) of what was sealed and has not been reported gone."""

    # ---- drawing ----

    def pick_session(self) -> Session | None:
        """Any open session; counts as use, as every call of a session does."""
        if not self.sessions:
            return None
        session = list(self.sessions.values())[self.draw(len(self.sessions))]
        if not session.connections:
            session.deadline = self.now + self.config.session_ttl_seconds
        return session

    def path(self, space: Space) -> list[bytes]:
        """Hashes of a path: often one offered lately, else one of a small tree."""
        lately = [hashes for hashes in self.lately if space.root == hashes[0]]
        if lately and self.draw(3):
            hashes = lately[self.draw(len(lately))][1:]
            return hashes[: 1 + self.draw(len(hashes))] if self.draw(2) else hashes
        hashes, parent = [], space.root
        for _ in range(1 + self.draw(DEPTH)):
            branch = max(0, self.draw(5) - 3)
            parent = hashlib.sha256(parent + bytes([branch])).digest()
            hashes.append(parent)
        self.lately.append([space.root, *hashes])
        return hashes

    # ---- sessions ----

    def open_session(self) -> None:
        domain, salt = SPACES[self.draw(len(SPACES))]
        namespace = Namespace(domain, "model", b"w" * 32, salt=salt)
        chosen = [i for i in range(len(LAYOUTS)) if self.draw(4)] or [0]
        self.made += 1
        session_id = self.made.to_bytes(16, "big")
        layouts = [LAYOUTS[i] for i in chosen]
        mine = sum(session.space.domain == domain for session in self.sessions.values())
        if (
            len(self.sessions) >= self.config.max_sessions
            or mine >= self.config.max_sessions_per_domain
        ):
            refused = False
            try:
                self.store.open_session(session_id, namespace, layouts, now=self.now)
            except CapacityFull:
                refused = True
            assert refused
            return
        grant = self.store.open_session(session_id, namespace, layouts, now=self.now)
        assert grant.slot_bytes == tuple(SLOT_BYTES[i] for i in chosen)
        root = grant.root_digest
        space = self.naive.spaces.get(root)
        if space is None:
            quota = self.config.quota_bytes(domain, "model")
            space = Space(root, domain, quota, self.config.default_max_lineage, 64)
            self.naive.spaces[root] = space
        kinds = [self.kind(domain, i) for i in chosen]
        session = Session(session_id, space, chosen, kinds)
        session.deadline = self.now + self.config.session_ttl_seconds
        self.sessions[session_id] = session

    def kind(self, domain: str, layout: int) -> Kind:
        key = (domain, layout)
        if key not in self.kinds:
            component = LAYOUTS[layout].component
            self.kinds[key] = Kind(domain, component, SLOT_BYTES[layout], f"{domain} {layout}")
        return self.kinds[key]

    def connect(self) -> None:
        if (session := self.pick_session()) is not None:
            foreign = "globex" if session.space.domain == "acme" else "acme"
            refused = False
            try:
                self.store.connection_opened(session.session_id, foreign)
            except UnknownSession:
                refused = True
            assert refused
            self.store.connection_opened(session.session_id, session.space.domain)
            session.connections += 1

    def disconnect(self) -> None:
        session = self.pick_session()
        if session is not None and session.connections:
            self.store.connection_closed(session.session_id, self.now)
            session.connections -= 1
            if not session.connections:
                self.ended(session)

    def end_session(self) -> None:
        if (session := self.pick_session()) is not None and self.draw(3) == 0:
            self.store.end_session(session.session_id, self.now)
            self.ended(session)

    def ended(self, session: Session) -> None:
        del self.sessions[session.session_id]
        session.alive = False
        for lease_id in list(session.leases):
            self.lease_ended(session, lease_id)
        for reservation in session.reservations.values():
            self.cancel(reservation)
            self.uncharge(session, reservation)
        for segment in self.naive.pool.segments.values():
            segment.holders.discard(session.session_id)

    def lease_ended(self, session: Session, lease_id: int) -> None:
        blocks, _ = session.leases.pop(lease_id)
        for block in {block for part in blocks for block in part}:
            block.leases -= 1
            if block in self.naive.detached and not block.leases:
                self.naive.free(block, self.naive.detached.pop(block))

    def cancel(self, reservation: Reservation) -> None:
        for ticket in self.tickets.values():
            ticket.cancelled |= ticket.reservation is reservation

    def uncharge(self, session: Session, reservation: Reservation) -> None:
        for (_, position), unit in reservation.units.items():
            if unit == "open":
                session.space.reserved -= reservation.kinds[position].slot_bytes
