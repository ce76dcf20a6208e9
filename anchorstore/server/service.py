"""Every call of the store, once for all carriers: decode, ask the core, act, encode.

::

    local.py (Unix) --\
    remote.py (TCP) ---> Dispatcher -> Service.<call>(request, peer) -> response
    rpc.py (gRPC) ----/                   |         |
                                     core.Store   mover, tier, staging

All of it runs on the event loop, so the core needs no lock, and a call that does not copy bytes
answers without a task switch.  Seal takes time (seals.py), and so does a lookup that waits for
blocks from nvme (lookups.py).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from structlog.typing import FilteringBoundLogger

from anchorstore.clock import Clock
from anchorstore.errors import (
    AnchorStoreError,
    Draining,
    Forbidden,
    InvalidRequest,
    UnknownSession,
)
from anchorstore.keys import Namespace
from anchorstore.server import codec
from anchorstore.server.attached import Attached
from anchorstore.server.auth import Authenticator
from anchorstore.server.background import Background
from anchorstore.server.core.store import Store
from anchorstore.server.eviction import Eviction
from anchorstore.server.handout import Handout
from anchorstore.server.hints import HintTables
from anchorstore.server.limits import ServiceLimits
from anchorstore.server.lookups import Lookups, Question
from anchorstore.server.movement import Movement
from anchorstore.server.mover import Mover
from anchorstore.server.peer import Carrier, Peer
from anchorstore.server.promotion import Promotions
from anchorstore.server.reads import Reads
from anchorstore.server.seals import Seals
from anchorstore.server.supervisor import Supervisor
from anchorstore.tiers.base import Tier
from anchorstore.tiers.dram import Staging, StagingPool
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.transport.device_memory import BUS_ID_CHARACTERS_MAX
from anchorstore.wire import convert
from anchorstore.wire.v1 import store_pb2 as pb

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices
    from anchorstore.server.hot import Hot

DECLINED = b"\3"
CLIENT_NAME_CHARACTERS = 128


def _device_of(request: pb.AttachRequest, peer: Peer) -> str:
    """Place on the bus of the session's device; "" for none, and for a peer on another host."""
    if len(request.device) > BUS_ID_CHARACTERS_MAX:
        raise InvalidRequest(
            f"attach: device has {len(request.device)} characters, limit {BUS_ID_CHARACTERS_MAX}"
        )
    return request.device if peer.carrier is Carrier.UNIX else ""


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class Service:
    """The store's calls.  Not for use from other threads than the event loop's."""

    def __init__(
        self,
        core: Store,
        tier: Tier,
        mover: Mover,
        stagings: StagingPool,
        auth: Authenticator,
        clock: Clock,
        limits: ServiceLimits,
        boot_id: bytes,
        supervisor: Supervisor,
        log: FilteringBoundLogger,
        hints: HintTables,
        nvme: NvmeTier | None = None,
        devices: Devices | None = None,
    ) -> None:
        self.core, self.tier, self.mover, self.stagings = core, tier, mover, stagings
        self.auth, self.clock, self.limits, self.boot_id = auth, clock, limits, boot_id
        self._log = log
        self._session_numbers = itertools.count(1)
        self._sessions: dict[bytes, Attached] = {}
        self.is_draining = False
        self.hints = hints
        self.nvme, self.devices = nvme, devices
        parts = (core, tier, clock, supervisor)
        self.movement = None if nvme is None else Movement(nvme, *parts)
        self.seals = Seals(mover, hints, self.movement, devices, *parts)
        gone = self.seals.forget_gone
        self.reads = None if nvme is None else Reads(nvme, tier, supervisor)
        background = Background(clock, supervisor)
        self.eviction = Eviction(core, clock, background, limits.evict_step_blocks, gone)
        promotions = None
        if self.reads is not None:
            used = (self.reads, core, tier, clock, background, hints)
            promotions = Promotions(*used, gone, self.eviction.wake)
        self._handout = Handout(core, tier, stagings, hints, clock)
        self.lookups = Lookups(
            core,
            promotions,
            clock,
            supervisor,
            _milliseconds(limits.read_ttl_seconds),
            limits.lookup_wait_seconds,
            limits.waiting_lookups,
        )

    # ---- sessions ----

    def attach(self, request: pb.AttachRequest, peer: Peer) -> pb.AttachResponse:
        """Opens a session for this connection."""
        convert.check_version(request.protocol_version)
        identity = peer.authenticate(self.auth, request.token)
        if identity.is_admin and peer.carrier is not Carrier.UNIX:
            raise Forbidden("an operator's token opens no session: use an engine's")
        if self.is_draining:
            raise Draining("attach: the daemon is going down")
        namespace = convert.namespace_of(request.namespace, identity.domain)
        layouts = convert.layouts_of(request.layouts, self.limits.layouts_per_session)
        device = _device_of(request, peer)
        session_id, now = os.urandom(convert.SESSION_ID_BYTES), self.clock.now()
        wanted_bytes = 0 if peer.carrier is Carrier.GRPC else request.staging_bytes  # out of reach
        staging_bytes = self.stagings.open(session_id, wanted_bytes)
        try:
            grant = self.core.open_session(
                session_id,
                namespace,
                layouts,
                max_lineage=self._max_lineage(request, namespace),
                name=request.client_name[:CLIENT_NAME_CHARACTERS],
                now=now,
            )
        except AnchorStoreError:
            self.stagings.drop(session_id)
            raise
        if peer.carrier is Carrier.UNIX:  # nobody else can map them
            self._expect_hints(identity.domain, grant.blocks_max)
        sizes = tuple(layout.block_bytes() for layout in layouts)
        hot = self._hot_of(device, identity.domain)
        session = Attached(next(self._session_numbers), identity.domain, sizes, device, hot)
        self._sessions[session_id] = session
        self._note_opened(session, request, peer, staging_bytes)
        self._bind(session_id, identity.domain, peer)
        return pb.AttachResponse(
            session_id=session_id,
            boot_id=self.boot_id,
            domain=identity.domain,
            root_digest=grant.root_digest,
            layouts=[
                pb.LayoutGrant(digest=layout.digest(), block_bytes=size, slot_bytes=slot_bytes)
                for layout, size, slot_bytes in zip(layouts, sizes, grant.slot_bytes, strict=True)
            ],
            staging_bytes=staging_bytes,
            max_pages=self.limits.pages_per_call,
            max_lineage=grant.max_lineage,
            read_ttl_ms=_milliseconds(self.limits.read_ttl_seconds),
            write_ttl_ms=_milliseconds(self.limits.write_ttl_seconds),
            session_ttl_ms=_milliseconds(self.limits.session_ttl_seconds),
            slab=None if hot is None else codec.slab_message(hot.hbm.export_for(identity.domain)),
        )

    def _hot_of(self, device: str, domain: str) -> Hot | None:
        """Where copies lie for a domain's engines on a device; None where none do."""
        if not device or self.devices is None:
            return None
        return self.devices.of(device, domain)

    def _expect_hints(self, domain: str, blocks: int) -> None:
        try:
            self.hints.expect(domain, blocks)
        except OSError as error:  # blocks without hints cost a call, no more
            self._log.warning("no memory for hints", domain=domain, error=str(error))

    def _note_opened(
        self, session: Attached, request: pb.AttachRequest, peer: Peer, staging_bytes: int
    ) -> None:
        self._log.info(
            "session opened",
            session=session.number,
            domain=session.domain,
            model=request.namespace.model,
            client=request.client_name[:CLIENT_NAME_CHARACTERS],
            peer=peer.name,
            layouts=len(session.block_bytes),
            device=session.device,
            staging_bytes=staging_bytes,
        )

    def _max_lineage(self, request: pb.AttachRequest, namespace: Namespace) -> int | None:
        asked = request.max_lineage if request.HasField("max_lineage") else None
        if asked is not None:
            convert.check_lineage(asked)
        rule = self.limits.max_lineages.get((namespace.domain, namespace.model))
        if asked is None or rule is None:
            return rule if asked is None else asked
        return min(asked, rule)

    def _bind(self, session_id: bytes, domain: str, peer: Peer) -> None:
        """A gRPC call is no connection: its sessions live by their TTL alone."""
        if peer.carrier is not Carrier.GRPC and session_id not in peer.sessions:
            self.core.connection_opened(session_id, domain)
            peer.sessions.add(session_id)

    def join(self, request: pb.JoinRequest, peer: Peer) -> pb.JoinResponse:
        """Binds this connection to a session of its own domain."""
        convert.check_version(request.protocol_version)
        domain = peer.authenticate(self.auth, request.token).domain
        session = self._sessions.get(request.session_id)
        if session is None or session.domain != domain:
            raise _unknown(request.session_id)
        self._bind(request.session_id, domain, peer)
        return pb.JoinResponse(boot_id=self.boot_id)

    def detach(self, request: pb.DetachRequest, peer: Peer) -> pb.DetachResponse:
        """Ends a session for all its connections."""
        session_id = self.session_of(request, peer)
        self.core.end_session(session_id, self.clock.now())
        peer.sessions.discard(session_id)
        self.forget_ended()
        return pb.DetachResponse()

    def disconnected(self, peer: Peer) -> None:
        """The connection is gone; what hung on it alone ends."""
        now = self.clock.now()
        for session_id in peer.sessions:
            if session_id in self._sessions:
                self.core.connection_closed(session_id, now)
        peer.sessions.clear()
        self.forget_ended()

    def forget_ended(self) -> None:
        """Takes back the staging memory of sessions that the core has ended."""
        ended = [known for known in self._sessions if not self.core.is_open(known)]
        for session_id in ended:
            self._log.info("session ended", session=self._sessions.pop(session_id).number)
            self.stagings.drop(session_id)
            if self.devices is not None:
                self.devices.session_ended(session_id)

    def session_of(self, request: codec.WithSession, peer: Peer) -> bytes:
        """The request's session id; UnknownSession unless the peer is in that session."""
        session_id = request.session_id
        session = self._sessions.get(session_id)
        if session is None:
            raise _unknown(session_id)
        if peer.carrier is Carrier.GRPC:
            if peer.identity is None or peer.identity.domain != session.domain:
                raise _unknown(session_id)
        elif session_id not in peer.sessions:
            raise _unknown(session_id)
        return session_id

    # ---- put ----

    def reserve(self, request: pb.ReserveRequest, peer: Peer) -> pb.ReserveResponse:
        """Says which blocks are worth writing."""
        session_id = self.session_of(request, peer)
        path_hashes = request.path_hashes
        pages = convert.hash_count(path_hashes, self.limits.pages_per_call)
        convert.check_digest("parent_hash", request.parent_hash)
        layouts = convert.counted("layouts", request.layouts, self.limits.layouts_per_session)
        if self.stagings.of(session_id) is None:
            raise InvalidRequest(
                "reserve: the session has no staging memory to write blocks in (staging_bytes was "
                "0, or it was opened over gRPC, which carries no blocks)"
            )
        if self.is_draining:
            return pb.ReserveResponse(verdicts=DECLINED * (pages * len(layouts)), reason="draining")
        result = self.core.reserve(
            session_id,
            request.parent_hash,
            request.first_page,
            path_hashes,
            layouts,
            convert.check_lineage(request.lineage),
            self.clock.now(),
            request.priority,
        )
        return pb.ReserveResponse(
            reservation_id=result.reservation_id,
            verdicts=result.verdicts,
            reason=result.reason,
            ttl_ms=_milliseconds(self.limits.write_ttl_seconds),
        )

    def seal(
        self, request: pb.SealRequest, peer: Peer
    ) -> pb.SealResponse | asyncio.Future[pb.SealResponse]:
        """Copies staged blocks into the pool; see seals.py."""
        session_id = self.session_of(request, peer)
        blocks_max = self.limits.pages_per_call * self.limits.layouts_per_session
        columns = convert.seal_columns(request, blocks_max)
        answer = self.seals.seal(request, columns, self.stagings.of(session_id))
        self.eviction.wake()
        return answer

    def abort(self, request: pb.AbortRequest, peer: Peer) -> pb.AbortResponse:
        """Gives a reservation back."""
        session_id = self.session_of(request, peer)
        self.core.abort(session_id, request.reservation_id, self.clock.now())
        return pb.AbortResponse()

    # ---- get ----

    def lookup(
        self, request: pb.LookupRequest, peer: Peer
    ) -> pb.LookupResponse | asyncio.Future[pb.LookupResponse]:
        """The largest boundary that satisfies every need, under a lease; see lookups.py."""
        session_id = self.session_of(request, peer)
        path_hashes = request.path_hashes  # each access copies them
        convert.hash_count(path_hashes, self.limits.pages_per_call)
        needs = codec.needs_of(request.needs)
        lineage = convert.check_lineage(request.max_lineage)
        if request.release_leases:
            leases = convert.lease_ids(request.release_leases)
            self.core.release(session_id, leases, self.clock.now())
        session = self._sessions[session_id]
        question = Question(
            session_id,
            path_hashes,
            needs,
            lineage,
            request.margin_pages,
            None if session.hot is None else session.on_device,
        )
        return self.lookups.lookup(question, request.wait_ms / 1000, request.prefetch)

    def renew(self, request: pb.RenewRequest, peer: Peer) -> pb.RenewResponse:
        """Extends leases; names those that had ended."""
        session_id = self.session_of(request, peer)
        lost = self.core.renew(session_id, convert.lease_ids(request.lease_ids), self.clock.now())
        return pb.RenewResponse(lost=lost)

    def release(self, request: pb.ReleaseRequest, peer: Peer) -> pb.ReleaseResponse:
        """Ends leases; one that has ended already is no error."""
        session_id = self.session_of(request, peer)
        self.core.release(session_id, convert.lease_ids(request.lease_ids), self.clock.now())
        return pb.ReleaseResponse()

    def touch(self, request: pb.TouchRequest, peer: Peer) -> pb.TouchResponse:
        """Pages that were read by way of the hints."""
        session_id = self.session_of(request, peer)
        path_hashes = request.path_hashes
        convert.hash_count(path_hashes, self.limits.pages_per_call)
        self.core.touch(session_id, path_hashes, self.clock.now())
        return pb.TouchResponse()

    # ---- bytes beside the messages ----

    def map(self, request: pb.MapRequest, peer: Peer) -> tuple[pb.MapResponse, list[int]]:
        """Descriptors of segments of the session's domain, then of its staging memory and of the
        domain's hints."""
        session = self._sessions[self.session_of(request, peer)]
        return self._handout.map(request, session.domain, session.hot)

    def lend(self, request: pb.LendRequest, peer: Peer) -> asyncio.Future[pb.LendResponse]:
        """An engine's memory on its device, to be filled with copies."""
        session = self._sessions[self.session_of(request, peer)]
        if self.devices is None:
            raise InvalidRequest("lend: the daemon has no hbm tier (tiers.hbm.lent_slabs)")
        return self.devices.lend(request, session)

    def staging_of(self, request: pb.WriteRequest, peer: Peer) -> Staging:
        """The staging memory that a remote Write fills."""
        staging = self.stagings.of(self.session_of(request, peer))
        if staging is None:
            raise InvalidRequest("write: the session has no staging memory (staging_bytes was 0)")
        return staging

    def read(
        self, request: pb.ReadRequest, peer: Peer
    ) -> tuple[pb.ReadResponse, list[npt.NDArray[np.uint8]]]:
        """Leased blocks of one need, as views of the pool, for a remote reader."""
        return self._handout.read(request, self.session_of(request, peer))


def _unknown(session_id: bytes) -> UnknownSession:
    """The same words for a foreign session and for none: which of the two is nobody's business."""
    return UnknownSession(f"session {session_id.hex() or '(empty)':.32} is not open here")
