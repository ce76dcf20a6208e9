"""What operators ask: status, lists, checks, explanations, the kill switch, removal.

An operator (root, the daemon's own user, auth.admin_uids, or a token of an operator) sees every
domain.  Anybody else sees his own domain's namespaces and nothing that tells of others: a foreign
namespace answers as one that does not exist, and counts of the whole store are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anchorstore import __version__
from anchorstore.errors import Forbidden, InvalidRequest
from anchorstore.server import reports
from anchorstore.server.auth import Identity
from anchorstore.server.movement import Movement
from anchorstore.server.peer import Peer
from anchorstore.server.service import Service
from anchorstore.server.supervisor import Supervisor
from anchorstore.server.verify import NVME_BYTES_PER_SECOND, NvmeCheck, Verified, verify_dram
from anchorstore.wire import convert
from anchorstore.wire.v1 import admin_pb2 as pb

JOURNAL_SECONDS = 5.0  # that a removal waits for the journals of nvme


class Admin:
    """Operators' calls, over the same core as the store's.

    Args:
        list_pages_max: pages in one answer of list_pages.
        huge_pages: whether the tier lies on huge pages now.
    """

    def __init__(
        self,
        service: Service,
        supervisor: Supervisor,
        list_pages_max: int,
        huge_pages: Callable[[], bool],
    ) -> None:
        self._service, self._core = service, service.core
        self._supervisor = supervisor
        self._list_pages_max, self._huge_pages = list_pages_max, huge_pages
        self._started = service.clock.now()

    def _identity(self, token: str, peer: Peer) -> Identity:
        return peer.authenticate(self._service.auth, token)

    def _operator(self, token: str, peer: Peer) -> None:
        if not self._identity(token, peer).is_admin:
            raise Forbidden("for operators alone")

    def _check_root(self, root_digest: bytes, identity: Identity) -> bytes:
        """`root_digest` where it names a namespace that the caller may see."""
        convert.check_digest("root_digest", root_digest)
        for space in self._core.status(self._service.clock.now()).namespaces:
            if space.root_digest == root_digest and (
                identity.is_admin or space.domain == identity.domain
            ):
                return root_digest
        raise InvalidRequest(f"no namespace has the root digest {root_digest.hex()}")

    def status(self, request: pb.StatusRequest, peer: Peer) -> pb.StatusResponse:
        """The whole store to an operator, his own namespaces to anybody else."""
        identity = self._identity(request.token, peer)
        return self.status_for(None if identity.is_admin else identity.domain)

    def status_for(self, domain: str | None) -> pb.StatusResponse:
        """What `domain` may see; None = everything."""
        service = self._service
        now = service.clock.now()
        response = reports.status_response(
            self._core.status(now), domain, self._huge_pages(), service.nvme, service.devices
        )
        response.version = __version__
        response.boot_id = service.boot_id
        response.uptime_ms = round((now - self._started) * 1000)
        response.draining = service.is_draining
        if domain is None:
            response.counters["staging_used_bytes"] = service.stagings.used_bytes
            response.counters["hint_bytes"] = service.hints.nbytes
            response.counters["hints_lost"] = service.hints.lost
            response.counters["lookups_waiting"] = service.lookups.waiting
            if service.reads is not None:
                response.counters["nvme_reads_waiting"] = service.reads.waiting
        return response

    def list_pages(self, request: pb.ListRequest, peer: Peer) -> pb.ListResponse:
        """Namespaces, or the pages of one."""
        identity = self._identity(request.token, peer)
        if not request.root_digest:
            domain = None if identity.is_admin else identity.domain
            return pb.ListResponse(namespaces=self.status_for(domain).namespaces)
        root = self._check_root(request.root_digest, identity)
        limit = min(request.limit or self._list_pages_max, self._list_pages_max)
        found = self._core.list_pages(root, request.cursor, limit)
        return reports.list_response(found, self._service.devices)

    def explain(self, request: pb.ExplainRequest, peer: Peer) -> pb.ExplainResponse:
        """How far a prefix matches and why it ends there."""
        identity = self._identity(request.token, peer)
        convert.hash_count(request.path_hashes, self._service.limits.pages_per_call)
        root = self._check_root(request.root_digest, identity)
        found = self._core.explain(root, request.path_hashes)
        return reports.explain_response(found, self._service.devices)

    def check(
        self, request: pb.CheckRequest, peer: Peer
    ) -> pb.CheckResponse | asyncio.Task[pb.CheckResponse]:
        """Walks every invariant; re-reads every block where asked."""
        self._operator(request.token, peer)
        violations = self._core.check()
        status = self._core.status(self._service.clock.now())
        response = pb.CheckResponse(
            ok=not violations, violations=violations, pages=status.pages, blocks=status.blocks
        )
        if not request.checksums:
            return response
        rate = request.nvme_bytes_per_second
        return self._supervisor.watch("check", self._check_bytes(response, rate))

    async def _check_bytes(self, response: pb.CheckResponse, rate: int) -> pb.CheckResponse:
        service, found = self._service, Verified()
        await verify_dram(self._core, service.tier, found)
        if service.nvme is not None and service.reads is not None:
            nvme = NvmeCheck(self._core, service.nvme, service.reads, service.clock)
            await nvme.run(found, rate or NVME_BYTES_PER_SECOND)
        response.blocks_verified = found.right
        response.nvme_blocks_unread, response.nvme_blocks_outdated = found.unread, found.outdated
        response.violations.extend(found.wrong)
        response.ok = not response.violations
        return response

    def set_namespace(
        self, request: pb.SetNamespaceRequest, peer: Peer
    ) -> pb.SetNamespaceResponse | asyncio.Task[pb.SetNamespaceResponse]:
        """The kill switch of a namespace; where there is nvme, its journals are waited for, so that
        a restart finds it as it is."""
        self._operator(request.token, peer)
        identity = Identity("", is_admin=True)
        root = self._check_root(request.root_digest, identity)
        known = self._core.set_enabled(root, request.enabled)
        self._service.hints.turn_epoch(known.namespace.domain)
        movement = self._service.movement
        if movement is None:
            return pb.SetNamespaceResponse(until_restart=not request.enabled)
        movement.note_namespace(known)
        return self._supervisor.watch("set namespace", self._kept(movement))

    @staticmethod
    async def _kept(movement: Movement) -> pb.SetNamespaceResponse:
        is_kept = await movement.flushed(JOURNAL_SECONDS)
        return pb.SetNamespaceResponse(until_restart=not is_kept)

    def remove(
        self, request: pb.RemoveRequest, peer: Peer
    ) -> pb.RemoveResponse | asyncio.Task[pb.RemoveResponse]:
        """Removes a namespace's blocks, or those below one page; where there is nvme, its journals
        are waited for, so that no restart brings them back."""
        self._operator(request.token, peer)
        root = self._check_root(request.root_digest, Identity("", is_admin=True))
        path_hash = None
        if request.path_hash:
            path_hash = convert.check_digest("path_hash", request.path_hash)
        removed = self._core.remove(root, path_hash)
        self._service.seals.forget_gone()
        response = pb.RemoveResponse(
            blocks_removed=removed.blocks_removed, blocks_leased=removed.blocks_leased
        )
        movement = self._service.movement
        if movement is None:
            return response
        return self._supervisor.watch("remove", self._journalled(movement, response))

    @staticmethod
    async def _journalled(movement: Movement, response: pb.RemoveResponse) -> pb.RemoveResponse:
        response.may_come_back = not await movement.flushed(JOURNAL_SECONDS)
        return response
