"""Lookups of what lies in memory, while the nvme device is saturated.

    python -m benchmarks.nvme.latency [--json] [--path DIRECTORY] [--rounds N]

One client asks for paths of 512 pages that memory holds.  Beside it, in turns:

    idle   nothing
    io     a client that has the daemon bring cold paths into memory, one after another, from a
           device that holds a multiple of it: its reads, checksums and evictions in the same daemon
    cpu    processes that burn as much CPU as the daemon and that client took, without any I/O

What I/O costs a lookup is io beside cpu, each round for itself.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np

from anchorstore.client import NeedAll
from anchorstore.testing.daemon import Daemon
from anchorstore.units import KIB
from benchmarks import harness
from benchmarks.attached import connect, random_hashes
from benchmarks.lookups import PATH_PAGES, Paths
from benchmarks.store import block_layout

COLD_PAGES, COLD_BLOCK_BYTES = 64, 64 * KIB
COLD_PATHS = 192  # 768 MiB, three times the pool
SETTLE_SECONDS = 0.5
STEP_SECONDS = 0.002
BURN_SECONDS = 0.004  # of burning or sleeping at a time
SETTINGS = {
    "tiers.dram.capacity": "256MiB",
    "tiers.dram.segment": "4MiB",
    "tiers.dram.kv_share": "0.9",
    "limits.staging_per_session": "512MiB",
    "limits.staging_total": "2GiB",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Lookups of one phase, in nanoseconds, and the CPU that the load took, in cores."""

    samples: list[int]
    load_cores: float

    def us(self, fraction: float) -> float:
        """A quantile in microseconds."""
        return round(harness.percentile(self.samples, fraction), 1)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_cold(address: str, go: Iterator[object]) -> None:
    """Puts cold paths, says so, and has them brought into memory for as long as `go` lasts."""
    client = connect(address, [block_layout(COLD_BLOCK_BYTES)], "cold")
    root = client.root_digest
    assert root is not None
    blocks = np.random.default_rng(1).integers(0, 256, (COLD_PAGES, COLD_BLOCK_BYTES), np.uint8)
    paths = [random_hashes(COLD_PAGES) for _ in range(COLD_PATHS)]
    for path in paths:
        while client.put(root, 0, path, {0: blocks}).sealed < COLD_PAGES:
            time.sleep(0.05)  # nvme takes them no faster
    print("ready", flush=True)
    served = 0
    for path, _ in zip(itertools.cycle(paths), go, strict=False):
        with client.lookup(path, [NeedAll(0, 0)], margin_pages=0, wait_seconds=5.0) as window:
            served += window.resume_pages
    print(served, flush=True)
    client.close()


def until_line() -> Iterator[object]:
    """Turns between two lines on standard input: begin, end; for ever."""
    os.set_blocking(0, False)
    is_on = False
    while True:
        with contextlib.suppress(BlockingIOError):
            said = os.read(0, 100)
            if not said:
                return
            is_on = said.rstrip().endswith(b"on")
        if is_on:
            yield None
        else:
            time.sleep(0.01)


def burn(cores: float) -> None:
    """Takes that part of a core until it is ended."""
    while True:
        begun = time.process_time()
        while time.process_time() - begun < BURN_SECONDS * cores:
            sum(range(100))
        time.sleep(BURN_SECONDS * (1 - cores))


@contextlib.contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This module as another process."""
    command = [sys.executable, "-m", "benchmarks.nvme.latency", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def _ask_once(known: Paths) -> int:
    """Nanoseconds of a lookup; then an engine's step passes."""
    known.ask(known.hits, 1)
    started = time.perf_counter_ns()
    known.lookup(PATH_PAGES)
    taken = time.perf_counter_ns() - started
    time.sleep(STEP_SECONDS)
    return taken


def ask(known: Paths, lookups: int, pids: Sequence[int]) -> Phase:
    """Times lookups; `pids` are those that make the load."""
    settled = time.perf_counter() + SETTLE_SECONDS
    while time.perf_counter() < settled:
        _ask_once(known)  # what nobody asks for would make way for what is brought in
    begun, busy = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
    samples = [_ask_once(known) for _ in range(lookups)]
    spent = sum(cpu_seconds(pid) for pid in pids) - sum(busy)
    return Phase(samples, spent / (time.perf_counter() - begun))


def one_round(known: Paths, cold: subprocess.Popen[bytes], pid: int, lookups: int) -> list[Phase]:
    """idle, io, cpu."""
    assert cold.stdin is not None
    idle = ask(known, lookups, [pid])
    cold.stdin.write(b"on\n")
    cold.stdin.flush()
    loaded = ask(known, lookups, [pid, cold.pid])
    cold.stdin.write(b"off\n")
    cold.stdin.flush()
    time.sleep(SETTLE_SECONDS)
    cores = max(0.01, loaded.load_cores - idle.load_cores)
    with contextlib.ExitStack() as stack:
        parts = int(cores) + 1
        burners = [stack.enter_context(child("--burn", str(cores / parts))) for _ in range(parts)]
        burned = ask(known, lookups, [burner.pid for burner in burners])
    return [idle, loaded, burned]


def measure(path: pathlib.Path | None, rounds: int, lookups: int) -> dict[str, object]:
    """The document."""
    with tempfile.TemporaryDirectory(dir=path, prefix="anchorstore-bench-") as name:
        folder = pathlib.Path(name)
        (folder / "nvme").mkdir()
        settings = SETTINGS | {"tiers.nvme.devices": f"{folder / 'nvme'}:2GiB"}
        with (
            Daemon(folder / "daemon", settings=settings, ready_seconds=120) as daemon,
            child("--cold", daemon.address) as cold,
        ):
            assert cold.stdout is not None and cold.stdout.readline() == b"ready\n"
            known = Paths(daemon.address, count=4)
            taken = [one_round(known, cold, daemon.pid, lookups) for _ in range(rounds)]
            known.client.close()
            cold_pages, _ = cold.communicate(timeout=60)
    document: dict[str, object] = {"machine": harness.machine(), "lookups": lookups}
    document["cold_bytes_served"] = int(cold_pages) * COLD_BLOCK_BYTES
    for at, word in enumerate(("idle", "io", "cpu")):
        phases = [phases[at] for phases in taken]
        document[word] = {
            "p50_us": statistics.median(phase.us(0.5) for phase in phases),
            "p90_us": statistics.median(phase.us(0.9) for phase in phases),
            "load_cores": round(statistics.median(phase.load_cores for phase in phases), 2),
        }
    for word, fraction in (("p50", 0.5), ("p90", 0.9)):
        ratios = [io.us(fraction) / cpu.us(fraction) for _, io, cpu in taken]
        document[f"{word}_io_to_cpu"] = round(statistics.median(ratios), 2)
        document[f"{word}_io_to_cpu_spread"] = (round(min(ratios), 2), round(max(ratios), 2))
    return document


def main() -> int:
    """Measures and prints; with --cold or --burn, is one of the loads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvme.latency", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document (as always)")
    parser.add_argument("--path", type=pathlib.Path, help="directory to measure (default: /tmp)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each phase")
    parser.add_argument("--lookups", type=int, default=200, help="in each turn")
    parser.add_argument("--cold", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--burn", type=float, metavar="CORES", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cold is not None:
        read_cold(arguments.cold, until_line())
    elif arguments.burn is not None:
        burn(arguments.burn)
    else:
        document = measure(arguments.path, arguments.rounds, arguments.lookups)
        print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
