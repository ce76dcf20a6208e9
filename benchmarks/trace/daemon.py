"""A real daemon as a cache of a trace: every block is written, every hit is leased and looked at.

Requests follow one another without their pauses.  The tiers, capacity and policy of a daemon that
runs are its own affair; one that the lab starts has those of a simulated store.  Blocks have the
model's real sizes and hold nothing.

What is lost is not told apart by component: to ask for kv alone would be a use of it.
"""

from __future__ import annotations

import collections
import os
import pathlib

from anchorstore.client import Client, ClientOptions, NamespaceSpec, NeedAll, NeedWindow
from anchorstore.keys import DIGEST_BYTES
from anchorstore.layout import Component
from anchorstore.server.core.types import NvmeShape, StoreConfig
from anchorstore.units import MIB
from benchmarks.trace.caches import Loss, Served
from benchmarks.trace.core import ANCHOR, KV, page_hashes, store_config
from benchmarks.trace.memory import Memory
from benchmarks.trace.sizes import ROWS_PER_PAGE, Sizes
from benchmarks.trace.trace import Trace
from benchmarks.trace.variants import Variant
from engine_adapter.budget import MAX_ROWS_DEFAULT, RATIO_DEFAULT

NEEDS = (
    NeedAll(KV, first_page=0),
    NeedWindow(ANCHOR, ratio=RATIO_DEFAULT, max_rows=MAX_ROWS_DEFAULT, rows_per_page=ROWS_PER_PAGE),
)
DEADLINE_SECONDS = 30.0
STAGING_BYTES = 256 * MIB
DEVICE_OVERHEAD_BYTES = 64 * MIB
"""Of a device, for its journals."""
UNANSWERED = ("unreachable", "deadline", "refused", "boot")
"""Misses that say nothing about what is stored."""


class DaemonError(Exception):
    """The daemon did not answer, or did not take what was written: figures would be of no use."""


def settings_of(
    memory: Memory, sizes: Sizes, variant: Variant, folder: pathlib.Path
) -> dict[str, str]:
    """The configuration of a daemon like a simulated store, with its device in `folder`."""
    config = store_config(memory, sizes, variant)
    found = {
        "tiers.dram.capacity": f"{config.segments * config.segment_bytes}B",
        "tiers.dram.prefault": "false",
    }
    tiers: list[tuple[str, StoreConfig | NvmeShape]] = [("dram", config)]
    if config.nvme:
        tiers.append(("nvme", config.nvme))
    for name, shape in tiers:
        found |= {
            f"tiers.{name}.segment": f"{shape.segment_bytes}B",
            f"tiers.{name}.anchor_share": str(shape.component_share[Component.ANCHOR]),
            f"tiers.{name}.kv_share": str(shape.component_share[Component.KV]),
            f"tiers.{name}.policy": variant.policy,
            f"tiers.{name}.ttl": f"{variant.ttl_seconds}s",
        }
    if config.nvme:
        size_bytes = config.nvme.segments * config.nvme.segment_bytes + DEVICE_OVERHEAD_BYTES
        found |= {
            "tiers.nvme.devices": f"{folder / 'device'}:{size_bytes}B",
            "tiers.nvme.write": "behind" if variant.is_ahead else "demote",
            "tiers.nvme.admission": variant.admission,
        }
    return found


class DaemonCache:
    """The daemon at an address, in a namespace that nobody else has."""

    def __init__(
        self, trace: Trace, sizes: Sizes, address: str, margin_pages: int, name: str = "daemon"
    ) -> None:
        self.name = name
        self.trace = trace
        self.sizes = sizes
        self.margin_pages = margin_pages
        self._client = self._attached(address)
        self._hashes = page_hashes(trace.distinct)
        self._rows = {
            KV: bytes(self._client.block_bytes(KV)),
            ANCHOR: bytes(self._client.block_bytes(ANCHOR)),
        }
        self._moved: collections.Counter[str] = collections.Counter()

    def close(self) -> None:
        """Ends the session."""
        self._client.close()

    def serve(self, request: int, seen: int) -> Served:
        """Looks up and looks at every block; then stores the rest."""
        hashes = self._hashes[self.trace.path(request)].tobytes()
        served, resume = Served(0, {}), 0
        if usable := int(self.trace.usable[request]):
            asked = hashes[: DIGEST_BYTES * usable]
            boundary, resume, miss = self._look_up(asked)
            if miss == "margin":
                boundary = min(self.margin_pages, seen)
            lost = {Loss.MARGIN: boundary - resume, Loss.EVICTED: seen - boundary}
            served = Served(resume, lost)
        self._keep(hashes, resume, int(self.trace.priorities[request]))
        return served

    def moved(self) -> dict[str, int]:
        """Bytes of blocks leased for reading."""
        return dict(self._moved)

    def _attached(self, address: str) -> Client:
        client = Client.connect(
            address,
            namespace=NamespaceSpec(
                model=self.sizes.model,
                weights_digest=os.urandom(DIGEST_BYTES),
                page_tokens=self.trace.page_tokens,
            ),
            layouts=[self.sizes.kv, self.sizes.anchor],
            options=ClientOptions(
                name="trace lab", deadline_seconds=DEADLINE_SECONDS, staging_bytes=STAGING_BYTES
            ),
        )
        if not client.attached:
            raise DaemonError(f"no daemon at {address}")
        return client

    def _look_up(self, asked: bytes) -> tuple[int, int, str]:
        """Boundary and resume point in pages, and why there is none."""
        with self._client.lookup(asked, NEEDS, margin_pages=self.margin_pages) as window:
            if window.miss in UNANSWERED:
                raise DaemonError(f"a lookup of {len(asked) // DIGEST_BYTES} pages: {window.miss}")
            if window.hit:
                window.verify()
                for need, size in ((KV, self.sizes.kv_bytes), (ANCHOR, self.sizes.anchor_bytes)):
                    self._moved["daemon read"] += len(window.blocks(need)) * size
            found = window.boundary_pages, window.resume_pages, window.miss
        self._client.flush()  # what is leased would not make room for what comes next
        return found

    def _keep(self, hashes: bytes, first: int, priority: int) -> None:
        count = len(hashes) // DIGEST_BYTES - first
        if not count:
            return
        start = DIGEST_BYTES * first
        parent = hashes[start - DIGEST_BYTES : start] if first else self._client.root_digest
        blocks = {layout: [row] * count for layout, row in self._rows.items()}
        outcome = self._client.put(parent, first, hashes[start:], blocks, priority=priority)
        if outcome.mismatched or outcome.reason in UNANSWERED:
            raise DaemonError(f"a put of {count} pages: {outcome}")
