"""How long a device with a million live blocks takes to be opened again.

    python -m benchmarks.nvme.restart [--json] [--path DIRECTORY] [--blocks N]

Blocks of 3968 bytes, one unit a slot, named by a journal in random order: opening reads it, decides
what lives, and writes that into the other region.  Slots themselves are not read at a start, so
none is written here.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np

from anchorstore.layout import KvLayout
from anchorstore.tiers.nvme.device import NvmeDevice
from anchorstore.tiers.nvme.format import ENTRY, UNIT_BYTES
from anchorstore.units import MIB
from benchmarks import harness
from benchmarks.nvme.ours import NOTE

SEGMENT_BYTES = 64 * MIB
BATCH = 50_000


def opened(path: pathlib.Path, blocks: int) -> tuple[NvmeDevice, float]:
    """The device, and the seconds that it took."""
    capacity = blocks * UNIT_BYTES * 5 // 4 + 8 * SEGMENT_BYTES
    started = time.perf_counter()
    device = NvmeDevice.open(path, capacity, SEGMENT_BYTES, log=lambda text: None)
    return device, time.perf_counter() - started


def fill(device: NvmeDevice, blocks: int) -> None:
    """Notes so many blocks."""
    random = np.random.default_rng(1)
    entries = np.zeros(blocks, ENTRY)
    entries["path_hash"] = random.integers(0, 2**63, (blocks, 4), np.uint64)
    entries["unit"] = random.permutation(blocks)
    entries["namespace"] = device.namespace_number(NOTE)
    entries["kind"] = device.kind_number(KvLayout(1, 1, 31, "uint8", 0, 1))
    for at in range(0, blocks, BATCH):
        device.note_blocks(entries[at : at + BATCH])
        device.flush().result()


def measure(path: pathlib.Path | None, blocks: int) -> dict[str, object]:
    """The document."""
    with tempfile.TemporaryDirectory(dir=path, prefix="anchorstore-bench-") as name:
        device, fresh_seconds = opened(pathlib.Path(name), blocks)
        print(f"noting {blocks} blocks", file=sys.stderr)
        fill(device, blocks)
        device.close()
        taken = []
        for _ in range(3):
            busy = time.process_time()
            device, seconds = opened(pathlib.Path(name), blocks)
            found = device.recover()
            assert len(found.entries) == blocks and not found.dropped, found.dropped
            taken.append((round(seconds, 3), round(time.process_time() - busy, 3)))
            device.close()
    return {
        "machine": harness.machine(),
        "blocks": blocks,
        "new_seconds": round(fresh_seconds, 3),
        "seconds": [seconds for seconds, _ in taken],
        "cpu_seconds": [busy for _, busy in taken],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvme.restart", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document (as always)")
    parser.add_argument("--path", type=pathlib.Path, help="directory to measure (default: /tmp)")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="live blocks")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.path, arguments.blocks), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
