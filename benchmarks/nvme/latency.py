"""Lookups of what lies in memory, while the nvme device is saturated.

    python -m benchmarks.nvme.latency [--json] [--path DIRECTORY] [--rounds N] [--blocks SIZE ...]

One client asks for paths of 512 pages that memory holds.  Beside it, in turns:

    idle   nothing
    io     clients that have the daemon bring cold paths into memory, one after another, from a
           device that holds a multiple of it: its reads, checksums and evictions in the same daemon
    cpu    the same CPU load without any I/O: for each thread of the daemon and of those clients a
           process that takes as much of a core as the thread took, in slices as long as its own

What I/O costs a lookup is io beside cpu, each round for itself: whatever holds up the daemon's
event loop counts, that others use the cores does not.  How busy the device is shows
beside fio, which reads blocks of that size from the same file system in the same run: with blocks
of 1 MiB, a page of keys and values, cold clients wait for the device; with blocks of 64 KiB, as
anchors are, for the daemon's interpreter, which the lookups stand behind.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anchorstore.client import NeedAll
from anchorstore.testing.daemon import Daemon
from anchorstore.units import KIB, MIB, parse_bytes
from benchmarks import harness
from benchmarks.attached import connect, random_hashes
from benchmarks.lookups import PATH_PAGES, Paths
from benchmarks.nvme.cli import lay_out
from benchmarks.nvme.fio import Fio, ensure_fio
from benchmarks.store import block_layout

BLOCK_BYTES = (MIB, 64 * KIB)
COLD_BYTES = 2048 * MIB  # of each client: together twice the pool
COLD_PATH_BYTES = {MIB: 16 * MIB, 64 * KIB: 4 * MIB}
COLD_CLIENTS = 2  # so that the device has work while one of them is answered
FIO_SECONDS, FIO_DEPTH = 2.0, 8
SETTLE_SECONDS = 0.5
STEP_SECONDS = 0.002
CORES_MIN = 0.003  # a thread that takes less is no load
SETTINGS = {
    "tiers.dram.capacity": "2GiB",
    "tiers.dram.segment": "16MiB",
    "tiers.dram.kv_share": "0.9",
    "limits.staging_per_session": "512MiB",
    "limits.staging_total": "2GiB",
}


class Use(NamedTuple):
    """What a thread took of the cores: nanoseconds, in so many slices."""

    nanoseconds: int
    slices: int

    def since(self, before: Use) -> Use:
        """The difference."""
        return Use(self.nanoseconds - before.nanoseconds, self.slices - before.slices)


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Lookups of one phase, in nanoseconds.

    Attributes:
        seconds: that the load lasted.
        measured_seconds: of these, those of the samples.
        load: of each thread that makes it, in those.
    """

    samples: list[int]
    seconds: float
    measured_seconds: float
    load: Mapping[str, Use]

    def us(self, fraction: float) -> float:
        """A quantile in microseconds."""
        return round(harness.percentile(self.samples, fraction), 1)

    def cores(self, thread: str) -> float:
        """What a thread took; 0 where it was not there."""
        return self.load.get(thread, Use(0, 0)).nanoseconds / 1e9 / self.measured_seconds

    @property
    def load_cores(self) -> float:
        """What all of them took."""
        return sum(map(self.cores, self.load))

    def beyond(self, other: Phase) -> list[tuple[float, float]]:
        """(cores beyond those that the thread takes in `other`, seconds of a slice), by thread."""
        found = []
        for thread, use in self.load.items():
            cores = self.cores(thread) - other.cores(thread)
            if cores >= CORES_MIN:
                found.append((cores, use.nanoseconds / 1e9 / max(1, use.slices)))
        return found


def uses(pids: Sequence[int]) -> dict[str, Use]:
    """What each thread of these processes has taken so far (the kernel's schedstat)."""
    found = {}
    for pid in pids:
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                taken, _, slices = (thread / "schedstat").read_text().split()
                found[thread.name] = Use(int(taken), int(slices))
    return found


def read_cold(address: str, block_bytes: int, go: Iterator[object]) -> None:
    """Puts cold paths, says so, and has them brought into memory for as long as `go` lasts; says
    how many bytes that were."""
    client = connect(address, [block_layout(block_bytes)], "cold")
    root = client.root_digest
    assert root is not None
    pages = COLD_PATH_BYTES[block_bytes] // block_bytes
    blocks = np.random.default_rng(1).integers(0, 256, (pages, block_bytes), np.uint8)
    paths = [random_hashes(pages) for _ in range(COLD_BYTES // COLD_PATH_BYTES[block_bytes])]
    for path in paths:
        while client.put(root, 0, path, {0: blocks}).sealed < pages:
            time.sleep(0.05)  # nvme takes them no faster
    print("ready", flush=True)
    served = 0
    for path, _ in zip(itertools.cycle(paths), go, strict=False):
        with client.lookup(path, [NeedAll(0, 0)], margin_pages=0, wait_seconds=5.0) as window:
            served += window.resume_pages * block_bytes
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


def burn(cores: float, slice_seconds: float) -> None:
    """Takes that part of a core until it is ended, in such slices."""
    begun, busy = time.perf_counter(), time.process_time()
    print("ready", flush=True)
    while True:
        until = time.process_time() + slice_seconds
        while time.process_time() < until:
            sum(range(100))
        due = (time.process_time() - busy) / cores
        time.sleep(max(0.0, due - (time.perf_counter() - begun)))


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
    came = time.perf_counter()
    while time.perf_counter() < came + SETTLE_SECONDS:
        _ask_once(known)  # what nobody asks for would make way for what is brought in
    begun, before = time.perf_counter(), uses(pids)
    samples = [_ask_once(known) for _ in range(lookups)]
    after, ended = uses(pids), time.perf_counter()
    load = {name: use.since(before.get(name, Use(0, 0))) for name, use in after.items()}
    return Phase(samples, ended - came, ended - begun, load)


def until_ready(process: subprocess.Popen[bytes]) -> None:
    """Waits for its word."""
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"


def say(children: Sequence[subprocess.Popen[bytes]], word: str) -> None:
    """A line to each of them."""
    for process in children:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n".encode())
        process.stdin.flush()


def one_round(
    known: Paths, cold: Sequence[subprocess.Popen[bytes]], pid: int, lookups: int
) -> list[Phase]:
    """idle, io, cpu."""
    idle = ask(known, lookups, [pid])
    say(cold, "on")
    loaded = ask(known, lookups, [pid, *(process.pid for process in cold)])
    say(cold, "off")
    time.sleep(SETTLE_SECONDS)
    with contextlib.ExitStack() as stack:
        burners = [
            stack.enter_context(child("--burn", str(cores), str(seconds)))
            for cores, seconds in loaded.beyond(idle)
        ]
        for burner in burners:
            until_ready(burner)
        burned = ask(known, lookups, [burner.pid for burner in burners])
    return [idle, loaded, burned]


def measure(folder: pathlib.Path, block_bytes: int, rounds: int, lookups: int) -> dict[str, object]:
    """The figures of one size of cold blocks."""
    (folder / "nvme").mkdir(parents=True)
    settings = SETTINGS | {"tiers.nvme.devices": f"{folder / 'nvme'}:6GiB"}
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(
            Daemon(folder / "daemon", settings=settings, ready_seconds=120)
        )
        load = ("--cold", daemon.address, "--blocks", str(block_bytes))
        cold = [stack.enter_context(child(*load)) for _ in range(COLD_CLIENTS)]
        for process in cold:
            until_ready(process)
        known = Paths(daemon.address, count=4)
        taken = [one_round(known, cold, daemon.pid, lookups) for _ in range(rounds)]
        known.client.close()
        cold_bytes = sum(int(process.communicate(timeout=60)[0]) for process in cold)
    found: dict[str, object] = {"cold_block_bytes": block_bytes, "lookups": lookups}
    rate = cold_bytes / sum(io.seconds for _, io, _ in taken)
    found["cold_mb_per_s"] = round(rate / 1e6)
    if ensure_fio():
        lay_out(folder / "fio", COLD_BYTES)
        fio = Fio(folder / "fio", COLD_BYTES, block_bytes, "io_uring", FIO_DEPTH)
        found["of_fio"] = round(rate / 1e9 / fio.run(False, FIO_SECONDS).gb_per_s, 2)
    for at, word in enumerate(("idle", "io", "cpu")):
        phases = [phases[at] for phases in taken]
        found[word] = {
            "p50_us": statistics.median(phase.us(0.5) for phase in phases),
            "p90_us": statistics.median(phase.us(0.9) for phase in phases),
            "load_cores": round(statistics.median(phase.load_cores for phase in phases), 2),
        }
    for word, fraction in (("p50", 0.5), ("p90", 0.9)):
        ratios = [io.us(fraction) / cpu.us(fraction) for _, io, cpu in taken]
        found[f"{word}_io_to_cpu"] = round(statistics.median(ratios), 2)
        found[f"{word}_io_to_cpu_spread"] = (round(min(ratios), 2), round(max(ratios), 2))
    return found


def main() -> int:
    """Measures and prints; with --cold or --burn, is one of the loads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvme.latency", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document (as always)")
    parser.add_argument("--path", type=pathlib.Path, help="directory to measure (default: /tmp)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each phase")
    parser.add_argument("--lookups", type=int, default=200, help="in each turn")
    parser.add_argument(
        "--blocks",
        nargs="+",
        type=parse_bytes,
        choices=BLOCK_BYTES,
        default=BLOCK_BYTES,
        metavar="SIZE",
        help="of the cold paths: 1MiB, 64KiB",
    )
    parser.add_argument("--cold", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--burn", type=float, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cold is not None:
        read_cold(arguments.cold, arguments.blocks[0], until_line())
    elif arguments.burn is not None:
        burn(*arguments.burn)
    else:
        with tempfile.TemporaryDirectory(dir=arguments.path, prefix="anchorstore-bench-") as name:
            results = [
                measure(pathlib.Path(name, str(size)), size, arguments.rounds, arguments.lookups)
                for size in arguments.blocks
            ]
        print(json.dumps({"machine": harness.machine(), "results": results}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
