"""A small store with short verbs, for tests that look at one behaviour."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorstore.keys import Namespace
from anchorstore.layout import AnchorLayout, Component, KvLayout, Layout, StateLayout
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import (
    Event,
    EventsResult,
    LookupResult,
    Need,
    NeedAll,
    ReserveResult,
    SealWork,
    StoreConfig,
)

KV = KvLayout(1, 1, 16, "bfloat16", 0, 1)  # 4 KiB a slot
ANCHOR = AnchorLayout(1, 4, 64, "bfloat16")  # 4 KiB a slot
STATE = StateLayout(8192, "exact")  # 8 KiB a slot
SLOT_BYTES = 4096
SEGMENT_BYTES = 5 * SLOT_BYTES  # a header page and 4 slots of 4 KiB

CONFIG = StoreConfig(
    segments=4,
    segment_bytes=SEGMENT_BYTES,
    component_share={Component.KV: 1.0, Component.ANCHOR: 1.0, Component.STATE: 1.0},
    high_watermark=1.0,
    low_watermark=0.5,
    read_ttl_seconds=10.0,
    write_ttl_seconds=10.0,
    session_ttl_seconds=60.0,
)


class Small:
    """A store and its clock."""

    def __init__(self, **changes: Any) -> None:
        self.store = Store(dataclasses.replace(CONFIG, **changes), b"b" * 16)
        self.now = 0.0
        self.sessions = 0

    def session(
        self,
        domain: str = "acme",
        layouts: Sequence[Layout] = (KV, ANCHOR),
        *,
        model: str = "model",
        max_lineage: int | None = None,
    ) -> Engine:
        self.sessions += 1
        session_id = self.sessions.to_bytes(16, "big")
        namespace = Namespace(domain, model, b"w" * 32)
        grant = self.store.open_session(
            session_id, namespace, layouts, max_lineage=max_lineage, now=self.now
        )
        return Engine(self, session_id, grant.root_digest)


class Engine:
    """One session's calls."""

    def __init__(self, small: Small, session_id: bytes, root: bytes) -> None:
        self.small = small
        self.store = small.store
        self.session_id = session_id
        self.root = root

    def path(self, pages: int, branch: str = "", shared: int = 0) -> bytes:
        """Hashes of a path; two branches agree on their first `shared` pages."""
        out, parent = b"", self.root
        for page in range(pages):
            name = branch if page >= shared else ""
            parent = hashlib.sha256(parent + f"{name}{page}".encode()).digest()
            out += parent
        return out

    def reserve(
        self, path: bytes, first: int = 0, layouts: Sequence[int] = (0,), lineage: int = 0
    ) -> ReserveResult:
        """Offers the path's pages from `first` on."""
        parent = path[32 * (first - 1) : 32 * first] if first else self.root
        return self.store.reserve(
            self.session_id, parent, first, path[32 * first :], layouts, lineage, self.small.now
        )

    def begin(
        self,
        reservation_id: int,
        units: Sequence[tuple[int, int]],
        keep_open: bool = False,
    ) -> SealWork:
        """Seals (page, layout) units."""
        pages = np.array([page for page, _ in units], np.uint32)
        layouts = np.array([layout for _, layout in units], np.uint8)
        return self.store.begin_seal(
            self.session_id, reservation_id, pages, layouts, keep_open, self.small.now
        )

    def finish(self, work: SealWork, ok: bool = True) -> list[int]:
        """Reports every copy as done; the checksum is the copy's request index."""
        checksums = work.copies.request_index.astype(np.uint64)
        copied = np.full(len(work.copies), ok)
        return list(self.store.finish_seal(work.ticket, copied, checksums, self.small.now))

    def put(
        self, path: bytes, first: int = 0, layouts: Sequence[int] = (0,), lineage: int = 0
    ) -> list[int]:
        """Reserve and seal in one go; results page-major."""
        reserved = self.reserve(path, first, layouts, lineage)
        pages = len(path) // 32 - first
        if not reserved.reservation_id:
            return list(reserved.verdicts)
        units = [(page, layout) for page in range(pages) for layout in range(len(layouts))]
        return self.finish(self.begin(reserved.reservation_id, units))

    def lookup(
        self,
        path: bytes,
        needs: Sequence[Need] = (NeedAll(0, 0),),
        max_lineage: int = 255,
        margin: int = 0,
    ) -> LookupResult:
        return self.store.lookup(
            self.session_id,
            path,
            needs,
            max_lineage=max_lineage,
            margin_pages=margin,
            now=self.small.now,
        )

    def stored(self, path: bytes, needs: Sequence[Need] = (NeedAll(0, 0),)) -> int:
        """Pages of the largest boundary; leaves no lease, but counts as use."""
        result = self.lookup(path, needs)
        self.release(result)
        return result.boundary_pages

    def present(self, path: bytes) -> list[bool]:
        """Per page, whether it has any block; counts as no use."""
        pages = self.store.list_pages(self.root, 0, 1000).pages
        held = {page.path_hash for page in pages if page.blocks}
        return [path[i : i + 32] in held for i in range(0, len(path), 32)]

    def tell(self, *said: tuple[Event, bytes], cleared: bool = False) -> EventsResult:
        """What the engine says of pages in its own cache: (event, hashes of pages)."""
        kinds = [int(event) for event, hashes in said for _ in range(len(hashes) // 32)]
        return self.store.note_events(
            self.session_id,
            np.array(kinds, np.uint8),
            b"".join(hashes for _, hashes in said),
            cleared,
            self.small.now,
        )

    def release(self, *results: LookupResult) -> None:
        ids = [result.lease_id for result in results]
        self.store.release(self.session_id, ids, self.small.now)
