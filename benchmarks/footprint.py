"""What a page costs the daemon: its memory without the pool, before and after N pages.

    python -m benchmarks.footprint [--pages N]

Every page carries a kv and an anchor block, smaller than a slot so that the pool stays small
(8 KiB a page all the same: 1M pages want 8 GiB of free memory).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile

import numpy as np

from anchorstore.client import Client, ClientOptions, NamespaceSpec
from anchorstore.layout import AnchorLayout, KvLayout
from anchorstore.testing.daemon import Daemon
from anchorstore.units import MIB
from benchmarks.harness import process_memory_bytes

PAGES_PER_PUT = 4096
SLOT_BYTES = 4096


def measure(pages: int) -> dict[str, float]:
    """Daemon memory without the pool (proportional set size), and bytes a page."""
    capacity = 2 * pages * SLOT_BYTES * 11 // 10 + 64 * MIB
    settings = {
        "tiers.dram.capacity": f"{-(-capacity // MIB)}MiB",
        "tiers.dram.prefault": "false",
        "tiers.dram.segment": "64MiB",
        "tiers.dram.anchor_share": "0.5",
        "tiers.dram.kv_share": "0.5",
        "tiers.dram.high_watermark": "1.0",
        "tiers.dram.low_watermark": "0.99",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Daemon(pathlib.Path(folder), settings=settings, ready_seconds=120) as daemon,
    ):
        before = process_memory_bytes(daemon.pid)["pss_without_pool"]
        stored = _fill(daemon.address, pages)
        after = process_memory_bytes(daemon.pid)["pss_without_pool"]
    return {
        "pages": stored,
        "daemon_bytes_before": before,
        "daemon_bytes_after": after,
        "bytes_per_page": round((after - before) / stored, 1),
    }


def _fill(address: str, pages: int) -> int:
    """Stores `pages` pages as long paths; returns how many are sealed with both blocks."""
    layouts = [KvLayout(1, 1, 1, "bfloat16", 0, 1), AnchorLayout(1, 4, 16, "bfloat16")]
    client = Client.connect(
        address,
        namespace=NamespaceSpec(model="footprint", weights_digest=bytes(32)),
        layouts=layouts,
        options=ClientOptions(name="footprint", deadline_seconds=60, staging_bytes=64 * MIB),
    )
    stored = 0
    blocks = {
        index: np.zeros((PAGES_PER_PUT, layout.block_bytes()), np.uint8)
        for index, layout in enumerate(layouts)
    }
    root = client.root_digest
    assert root is not None
    while stored < pages:
        count = min(PAGES_PER_PUT, pages - stored)
        part = {index: rows[:count] for index, rows in blocks.items()}
        outcome = client.put(root, 0, os.urandom(32 * count), part)
        assert outcome.sealed == 2 * count, outcome
        stored += count
    client.close()
    return stored


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint")
    parser.add_argument("--pages", type=int, default=1_000_000)
    print(json.dumps(measure(parser.parse_args().pages), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
