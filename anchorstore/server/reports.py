"""The core's reports as messages, cut down to what the asker's domain may see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anchorstore.server.core import types
from anchorstore.tiers.nvme.device import NvmeDevice
from anchorstore.tiers.nvme.tier import NvmeTier
from anchorstore.wire.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from anchorstore.server.devices import Devices
    from anchorstore.server.hot import HotStatus


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
        nvme_bytes=space.cold_bytes,
        nvme_quota_bytes=space.cold_quota_bytes,
        weights_digest=space.weights_digest,
        adapter=space.adapter,
        page_tokens=space.page_tokens,
        salted=space.salted,
        share_bytes=space.share_bytes,
        nvme_share_bytes=space.cold_share_bytes,
    )


def tier_status(tier: types.TierStatus) -> pb.TierStatus:
    """One tier with its components."""
    return pb.TierStatus(
        name=tier.name,
        capacity_bytes=tier.capacity_bytes,
        used_bytes=tier.used_bytes,
        segments=tier.segments,
        segments_free=tier.segments_free,
        components=[
            pb.ComponentStatus(
                component=int(part.component),  # type: ignore[arg-type]
                capacity_bytes=part.capacity_bytes,
                used_bytes=part.used_bytes,
                blocks=part.blocks,
            )
            for part in tier.components
        ],
        blocks=sum(part.blocks for part in tier.components),
    )


def device_status(device: NvmeDevice) -> pb.DeviceStatus:
    """One device of the nvme tier."""
    health, counters = device.health, device.counters
    return pb.DeviceStatus(
        path=device.name,
        state=health.state.name.lower().replace("_", "-"),
        reason=health.reason,
        engine=device.engine,
        capacity_bytes=device.segments * device.segment_bytes,
        blocks_read=counters["blocks_read"],
        bytes_read=counters["bytes_read"],
        blocks_written=counters["blocks_written"],
        bytes_written=counters["bytes_written"],
        read_errors=health.read_errors,
        write_errors=health.write_errors,
        late_blocks=device.queue.late_blocks,
        reads_waiting=device.queue.reads.blocks,
        writes_waiting=device.queue.writes.blocks,
        stalled=device.queue.is_stalled(),
    )


def hbm_status(devices: Sequence[HotStatus]) -> pb.TierStatus:
    """The hbm tier: copies alone, so it knows no components."""
    return pb.TierStatus(
        name="hbm",
        capacity_bytes=sum(device.capacity_bytes for device in devices),
        used_bytes=sum(device.used_bytes for device in devices),
        segments=sum(device.segments for device in devices),
        segments_free=sum(device.segments_free for device in devices),
        blocks=sum(device.blocks for device in devices),
        devices=[
            pb.DeviceStatus(
                path=device.device,
                state="offline" if device.offline_reason else "healthy",
                reason=device.offline_reason,
                engine="cuda",
                capacity_bytes=device.capacity_bytes,
                blocks_read=device.moved.blocks_read,
                bytes_read=device.moved.bytes_read,
                blocks_written=device.moved.blocks_written,
                bytes_written=device.moved.bytes_written,
                writes_waiting=device.writing,
                domain=device.domain,
            )
            for device in devices
        ],
    )


def status_response(
    status: types.StoreStatus,
    domain: str | None,
    huge_pages: bool,
    nvme: NvmeTier | None,
    devices: Devices | None,
) -> pb.StatusResponse:
    """Everything where `domain` is None, else that domain's namespaces alone."""
    if domain is not None:
        own = [space for space in status.namespaces if space.domain == domain]
        return pb.StatusResponse(
            sessions=sum(space.sessions for space in own),
            pages=sum(space.pages for space in own),
            namespaces=[namespace_status(space) for space in own],
        )
    tiers = [tier_status(tier) for tier in status.tiers]
    tiers[0].huge_pages = huge_pages
    if nvme is not None:
        tiers[1].devices.extend(device_status(device) for device in nvme.devices)
    if devices is not None:
        tiers.append(hbm_status(devices.status()))
    return pb.StatusResponse(
        sessions=status.sessions,
        leases=status.leases,
        reservations=status.reservations,
        pages=status.pages,
        index_bytes=status.index_bytes,
        tiers=tiers,
        namespaces=[namespace_status(space) for space in status.namespaces],
        counters={
            **status.counters,
            **({} if devices is None else devices.copies()),
            "blocks_to_demote": status.blocks_to_demote,
            "demotes_in_flight": status.demotes_in_flight,
            "promotes_in_flight": status.promotes_in_flight,
        },
    )


def explain_response(found: types.Explanation, devices: Devices | None) -> pb.ExplainResponse:
    """How far a prefix matches; what also lies in hbm is counted there, too."""
    return pb.ExplainResponse(
        pages_asked=found.pages_asked,
        pages_present=found.pages_present,
        layouts=[_layout_match(match, devices) for match in found.layouts],
        ends_because=found.ends_because,
    )


def _layout_match(match: types.LayoutMatch, devices: Devices | None) -> pb.LayoutMatch:
    tiers = match.tiers
    if devices is not None:
        tiers = [("hbm", int(devices.holds(match.place).sum())), *tiers]
    return pb.LayoutMatch(
        component=int(match.component),  # type: ignore[arg-type]
        layout_digest=match.layout_digest,
        shard=match.shard,
        pages=match.pages,
        leading_pages=match.leading_pages,
        lineage_least=match.lineage_least,
        lineage_most=match.lineage_most,
        tiers=[pb.TierPages(tier=tier, pages=pages) for tier, pages in tiers],
    )


def _tiers_of(block: types.BlockStatus, devices: Devices | None) -> tuple[str, ...]:
    """All that hold a block, the fastest first."""
    if devices is not None and devices.holds(block.place).any():
        return ("hbm", *block.tiers)
    return block.tiers


def list_response(found: types.PageList, devices: Devices | None) -> pb.ListResponse:
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
                        tier=_tiers_of(block, devices)[0],
                        tiers=_tiers_of(block, devices),
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
