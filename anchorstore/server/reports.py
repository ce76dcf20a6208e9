"""The core's reports as messages, cut down to what the asker's domain may see."""

from __future__ import annotations

from anchorstore.server.core import types
from anchorstore.wire.v1 import admin_pb2 as pb


def namespace_status(space: types.NamespaceStatus) -> pb.NamespaceStatus:
    """One namespace."""
    return pb.NamespaceStatus(
        domain=space.domain,
        model=space.model,
        root_digest=space.root_digest,
        pages=space.pages,
        bytes=space.bytes,
        quota_bytes=space.quota_bytes,
        max_lineage=space.max_lineage,
        enabled=space.enabled,
        sessions=space.sessions,
    )


def tier_status(status: types.StoreStatus, name: str, huge_pages: bool) -> pb.TierStatus:
    """One tier with its components."""
    return pb.TierStatus(
        name=name,
        capacity_bytes=status.capacity_bytes,
        used_bytes=status.used_bytes,
        segments=status.segments,
        segments_free=status.segments_free,
        huge_pages=huge_pages,
        components=[
            pb.ComponentStatus(
                component=int(part.component),  # type: ignore[arg-type]
                capacity_bytes=part.capacity_bytes,
                used_bytes=part.used_bytes,
                blocks=part.blocks,
            )
            for part in status.components
        ],
    )


def status_response(
    status: types.StoreStatus, domain: str | None, tier_name: str, huge_pages: bool
) -> pb.StatusResponse:
    """Everything where `domain` is None, else that domain's namespaces alone."""
    if domain is not None:
        own = [space for space in status.namespaces if space.domain == domain]
        return pb.StatusResponse(
            sessions=sum(space.sessions for space in own),
            pages=sum(space.pages for space in own),
            namespaces=[namespace_status(space) for space in own],
        )
    return pb.StatusResponse(
        sessions=status.sessions,
        leases=status.leases,
        reservations=status.reservations,
        pages=status.pages,
        index_bytes=status.index_bytes,
        tiers=[tier_status(status, tier_name, huge_pages)],
        namespaces=[namespace_status(space) for space in status.namespaces],
        counters=status.counters,
    )


def list_response(found: types.PageList, tier_name: str) -> pb.ListResponse:
    """Pages of one namespace."""
    return pb.ListResponse(
        pages=[
            pb.PageStatus(
                path_hash=page.path_hash,
                page=page.page,
                children=page.children,
                blocks=[
                    pb.BlockStatus(
                        component=int(block.component),  # type: ignore[arg-type]
                        layout_digest=block.layout_digest,
                        shard=block.shard,
                        tier=tier_name,
                        lineage=block.lineage,
                        leases=block.leases,
                        bytes=block.bytes,
                    )
                    for block in page.blocks
                ],
            )
            for page in found.pages
        ],
        next_cursor=found.next_cursor,
    )
