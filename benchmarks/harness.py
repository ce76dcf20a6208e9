"""Timing that survives a shared machine: interleaved pairs, medians over rounds, their spread.

Each case runs beside its yardsticks (a memcpy of the same bytes, the floor) operation by
operation, so that a busy moment slows all of them alike.  A ratio is a ratio of speeds within one
round, 1.0 = as fast as the yardstick; what is reported is the median over the rounds with the
lowest and the highest.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Operation = Callable[[], Any]
Bytes = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How often each operation is repeated."""

    rounds: int
    per_round: int


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the report.  Ratios are speeds relative to the yardstick of the same run."""

    case: str
    block_bytes: int
    batch: int
    clients: int
    p50_us: float
    p99_us: float
    gb_per_s: float | None
    ratio_to_memcpy: float | None = None
    ratio_to_memcpy_spread: tuple[float, float] | None = None
    ratio_to_floor: float | None = None
    ratio_to_floor_spread: tuple[float, float] | None = None
    operations: int = 0


def percentile(samples: Sequence[int], fraction: float) -> float:
    """The `fraction` quantile of nanoseconds, in microseconds."""
    return float(np.quantile(np.asarray(samples), fraction)) / 1e3


def interleave(
    operations: Mapping[str, Operation],
    rounds: int,
    per_round: int,
    prepare: Mapping[str, Operation] | None = None,
) -> dict[str, list[list[int]]]:
    """Nanoseconds [round][operation] by name; the names take turns, in rotating order.

    `prepare[name]` runs untimed before each operation of that name.
    """
    prepare = prepare or {}
    names = list(operations)
    taken: dict[str, list[list[int]]] = {name: [] for name in names}
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in names:
            taken[name].append([])
        for _ in range(per_round):
            for name in order:
                if name in prepare:
                    prepare[name]()
                started = time.perf_counter_ns()
                operations[name]()
                taken[name][-1].append(time.perf_counter_ns() - started)
    return taken


def speed_ratio(
    ours: Sequence[Sequence[int]], yardstick: Sequence[Sequence[int]]
) -> tuple[float, tuple[float, float]]:
    """Median over rounds of (yardstick's median time / our median time), and its spread."""
    ratios = [
        statistics.median(theirs) / statistics.median(mine)
        for mine, theirs in zip(ours, yardstick, strict=True)
    ]
    return round(statistics.median(ratios), 3), (round(min(ratios), 3), round(max(ratios), 3))


def report(
    case: str,
    taken: Mapping[str, list[list[int]]],
    *,
    block_bytes: int = 0,
    batch: int = 1,
    clients: int = 1,
) -> Result:
    """Line for the operation named `case`; "memcpy" and "floor" are its yardsticks if present."""
    rounds = taken[case]
    flat = [sample for samples in rounds for sample in samples]
    p50 = percentile(flat, 0.5)
    moved = block_bytes * batch
    result: dict[str, Any] = {}
    for yardstick in ("memcpy", "floor"):
        if yardstick in taken and yardstick != case:
            ratio, spread = speed_ratio(rounds, taken[yardstick])
            result |= {f"ratio_to_{yardstick}": ratio, f"ratio_to_{yardstick}_spread": spread}
    return Result(
        case=case,
        block_bytes=block_bytes,
        batch=batch,
        clients=clients,
        p50_us=round(p50, 1),
        p99_us=round(percentile(flat, 0.99), 1),
        gb_per_s=round(moved / p50 / 1e3, 3) if moved else None,
        operations=len(flat),
        **result,
    )


def filled(size: int, seed: int) -> Bytes:
    """`size` bytes that no compressor or zero page helps with."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


BLOCK_MEMORY = ("memfd:anchorstore-pool", "memfd:anchorstore-staging")


def process_memory_bytes(pid: int) -> dict[str, int]:
    """Proportional set size of a process in bytes: all of it, and without the memory of blocks
    (pool and staging; the hints count as the daemon's own)."""
    whole = blocks = 0
    is_blocks = False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            size = int(value.split()[0]) * 1024
            whole += size
            blocks += size if is_blocks else 0
        elif "-" in name.split(" ")[0]:  # a mapping's first line starts with its addresses
            is_blocks = any(owner in line for owner in BLOCK_MEMORY)
    return {"pss": whole, "pss_without_pool": whole - blocks}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def table(results: Sequence[Result]) -> str:
    """The report for people."""
    head = ["case", "block", "batch", "clients", "p50 us", "p99 us", "GB/s", "x memcpy", "x floor"]
    rows = [head]
    for r in results:
        row = [r.case, f"{r.block_bytes >> 10} KiB" if r.block_bytes else "", str(r.batch)]
        row += [str(r.clients), f"{r.p50_us:.1f}", f"{r.p99_us:.1f}"]
        for value in (r.gb_per_s, r.ratio_to_memcpy, r.ratio_to_floor):
            row.append("" if value is None else f"{value:.2f}")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
