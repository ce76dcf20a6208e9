"""What operators ask for: status, pages, why a prefix ends, and removal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstore.errors import InvalidRequest
from anchorstore.layout import Component
from anchorstore.server.core import requests
from anchorstore.server.core.sessions import Kind, NamespaceRecord
from anchorstore.server.core.state import State
from anchorstore.server.core.tier import Tier
from anchorstore.server.core.types import (
    U32,
    BlockStatus,
    ComponentStatus,
    Explanation,
    LayoutMatch,
    NamespaceStatus,
    PageList,
    PageStatus,
    Removed,
    StoreStatus,
    TierStatus,
)

LIST_LIMIT = 10_000


def status(state: State) -> StoreStatus:
    """The whole store at a glance; cost grows with segments and namespaces, not with pages."""
    tiers = [_tier_status(state, tier) for tier in state.tiers]
    dram = tiers[0]
    return StoreStatus(
        sessions=len(state.registry.sessions),
        leases=len(state.leases),
        reservations=len(state.reservation_by_id),
        seals_in_flight=len(state.tickets),
        pages=len(state.index),
        blocks=len(state.blocks),
        index_bytes=state.index.nbytes + state.blocks.nbytes + _slab_bytes(state),
        capacity_bytes=dram.capacity_bytes,
        used_bytes=dram.used_bytes,
        segments=dram.segments,
        segments_free=dram.segments_free,
        components=dram.components,
        namespaces=[_namespace_status(r) for r in state.registry.namespaces.values()],
        counters={
            **state.counters,
            "reserved_pages": state.reserved_pages,
            "leased_blocks": state.leases.blocks_named,
            "engines": len(state.engines.deadlines),
            "pinned_pages": state.engines.pinned_pages,
            "pinned_bytes": state.engines.pinned_bytes,
        },
        tiers=tiers,
        demotes_in_flight=len(state.movement.demotes),
        promotes_in_flight=len(state.movement.promotes),
        blocks_to_demote=len(state.movement.waiting),
    )


def _slab_bytes(state: State) -> int:
    segments = (segment for tier in state.tiers for segment in tier.pool.by_id.values())
    return 8 * sum(segment.slab.slots for segment in segments)


def _tier_status(state: State, tier: Tier) -> TierStatus:
    pool = tier.pool
    return TierStatus(
        tier.name,
        pool.segments * pool.segment_bytes,
        sum(pool.used_bytes(component) for component in Component),
        pool.segments,
        pool.unused_segments,
        [_component_status(state, tier, component) for component in Component],
    )


def _component_status(state: State, tier: Tier, component: Component) -> ComponentStatus:
    pool = tier.pool
    return ComponentStatus(
        component,
        pool.capacity_bytes(component),
        pool.used_bytes(component),
        sum(segment.slab.used for segment in pool.segments_of(component)),
        pool.held_segments(component),
    )


def _namespace_status(record: NamespaceRecord) -> NamespaceStatus:
    return NamespaceStatus(
        domain=record.namespace.domain,
        model=record.namespace.model,
        root_digest=record.root_digest,
        weights_digest=record.namespace.weights_digest,
        adapter=record.namespace.adapter,
        page_tokens=record.namespace.page_tokens,
        salted=bool(record.namespace.salt),
        pages=record.pages,
        bytes=record.used_bytes + record.reserved_bytes,
        quota_bytes=record.quota_bytes,
        max_lineage=record.max_lineage,
        enabled=record.enabled,
        sessions=len(record.sessions),
        cold_bytes=record.cold_bytes + record.cold_reserved_bytes,
        cold_quota_bytes=record.cold_quota_bytes,
        share_bytes=record.kept_bytes,
        cold_share_bytes=record.cold_kept_bytes,
    )


def list_pages(state: State, root: bytes, cursor: int, limit: int) -> PageList:
    """Pages of one namespace by row; a page that comes or goes meanwhile may be missed."""
    record = state.registry.namespace_of_root(root)
    if not 1 <= limit <= LIST_LIMIT or cursor < 0:
        raise InvalidRequest(f"cursor {cursor}, limit {limit}: limit must be 1 to {LIST_LIMIT}")
    owned = state.index.namespace[: state.index.rows.top] == record.namespace_id
    owned[: cursor + 1] = False
    rows = np.flatnonzero(owned)[: limit + 1].tolist()
    children = _children_of(state, rows[:limit])
    pages = [_page_status(state, row, count) for row, count in children.items()]
    return PageList(pages, rows[limit - 1] if len(rows) > limit else 0)


def _children_of(state: State, rows: list[int]) -> dict[int, int]:
    """Page row -> how many pages continue it, in whatever tier."""
    index = state.index
    if state.nvme is None:
        return {row: int(index.children[row]) for row in rows}
    counted = np.bincount(index.parent[index.live_rows()], minlength=index.rows.top)
    return {row: int(counted[row]) for row in rows}


def _page_status(state: State, row: int, children: int) -> PageStatus:
    index = state.index
    blocks = []
    for block in state.blocks.of_pages(index, np.array([row], np.uint32)).tolist():
        kind = state.registry.by_kind_id[int(state.blocks.kind[block])]
        tiers = [tier for tier in state.tiers if tier.holds_one(block)]
        blocks.append(
            BlockStatus(
                component=kind.component,
                layout_digest=kind.key[2],
                shard=kind.key[3],
                lineage=int(state.blocks.lineage[block]),
                leases=int(state.blocks.leases[block]),
                bytes=int(tiers[0].slot_bytes_of_kind[kind.kind_id]),
                place=state.blocks.place[block : block + 1].copy(),
                tiers=tuple(tier.name for tier in tiers),
            )
        )
    return PageStatus(index.hash_of(row), int(index.page[row]), children, blocks)


def explain(state: State, root: bytes, hashes: bytes) -> Explanation:
    """How far a prefix matches, layout by layout; changes nothing, not even the heat."""
    record = state.registry.namespace_of_root(root)
    keys = requests.hash_columns(state.config, hashes)
    pages = state.index.find(record.namespace_id, keys)
    held = state.index.first_block.take(pages) != 0
    present = int(held.argmin()) if not held.all() else len(held)
    kinds = [
        kind for kind in state.registry.kinds.values() if kind.key[0] == record.namespace.domain
    ]
    found = state.blocks.find(state.index, pages, [kind.kind_id for kind in kinds])
    shown = [(kind, rows) for kind, rows in zip(kinds, found, strict=True) if rows.any()]
    layouts = [_layout_match(state, kind, rows) for kind, rows in shown]
    ending = _ending(record, pages, held, present, len(layouts)) + _holes(layouts, present)
    return Explanation(len(keys), present, layouts, ending)


def _layout_match(state: State, kind: Kind, rows: U32) -> LayoutMatch:
    there = rows != 0
    blocks = rows[there]
    depths = state.blocks.lineage.take(blocks)
    _, component, digest, shard = kind.key
    return LayoutMatch(
        component=component,
        layout_digest=digest,
        shard=shard,
        pages=len(blocks),
        leading_pages=int(there.argmin()) if not there.all() else len(there),
        lineage_least=int(depths.min()),
        lineage_most=int(depths.max()),
        tiers=[(tier.name, int(tier.holds(blocks).sum())) for tier in state.tiers],
        place=state.blocks.place.take(blocks),
    )


def _ending(
    record: NamespaceRecord, pages: U32, held: Sequence[bool], present: int, layouts: int
) -> str:
    if not record.enabled:
        return "the namespace's kill switch is on: every lookup misses"
    if present == len(pages):
        return f"all {present} pages are stored, in {layouts} layouts"
    if pages[present]:
        return f"page {present} lost its blocks (evicted or removed); later pages still know it"
    later = int(np.count_nonzero(held[present:]))
    if later:
        return f"page {present} is not stored, though {later} later pages are"
    if not present:
        size = record.namespace.page_tokens
        return (
            f"no page is stored: other tokens, another namespace, evicted, or hashed by pages "
            f"of another size than this namespace's {size} tokens"
        )
    return f"page {present} is not stored: tokens differ from there on, or it was evicted"


def _holes(layouts: Sequence[LayoutMatch], present: int) -> str:
    """Where layouts end before the pages do: kv has to be whole, the others near the end."""
    firsts = [
        f"{match.component.name.lower()} lacks page {match.leading_pages}"
        for match in sorted(layouts, key=lambda match: match.component != Component.KV)
        if match.leading_pages < present
    ]
    return f"; of these {', '.join(firsts)}" if firsts else ""


def remove(state: State, root: bytes, path_hash: bytes | None) -> Removed:
    """Removes a namespace's blocks, or those of one page and of every page that continues it.
    What is being written at the moment is thrown away."""
    record = state.registry.namespace_of_root(root)
    for ticket in state.tickets.values():
        if ticket.session.record is record:
            ticket.cancelled = True
    owned = np.flatnonzero(state.index.namespace[: state.index.rows.top] == record.namespace_id)
    pages = owned.astype(np.uint32)
    if path_hash is not None:
        key = np.frombuffer(path_hash, np.uint64).reshape(1, 4)
        [top] = state.index.find(record.namespace_id, key).tolist()
        pages = _subtree(state, pages, top) if top else pages[:0]
    gone, kept = state.forget_pages(pages) if len(pages) else (0, 0)
    state.counters["blocks_removed"] += gone
    state.note("remove", root.hex(), len(pages), "pages", gone, "blocks")
    state.registry.forget_namespace_if_idle(record)
    return Removed(gone, kept)


def _subtree(state: State, owned: U32, top: int) -> U32:
    """`top` and all pages below it: parents have lower page indexes, so one pass by index."""
    index = state.index
    inside = np.zeros(index.rows.top, np.bool_)
    inside[top] = True
    order = owned[np.argsort(index.page.take(owned), kind="stable")]
    depths = index.page.take(order)
    starts = np.flatnonzero(np.r_[True, depths[1:] != depths[:-1]])
    for level in np.split(order, starts[1:]):
        inside[level] |= inside.take(index.parent.take(level))
        inside[0] = False
    return np.flatnonzero(inside).astype(np.uint32)
