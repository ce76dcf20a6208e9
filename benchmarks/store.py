"""The store against its limits: memcpy, the floor (Unix socket + shared memory), and its peers.

    python -m benchmarks.store [--json] [--peers] [--quick] [--pages N]

A real daemon is started on a temporary socket.  Ratios are speeds relative to the yardstick of the
same run, measured operation by operation in turn: 1.0 = as fast.  What the cases do:

    get_copied_out   get(): find the blocks by the hints, copy into the caller's memory, verify
    get_in_place     look up, lease, take a view of every block, release: no byte is copied
    get_leased       the same, then copy into the caller's memory and verify the generations
    put              reserve, copy into staging, seal
    seal             the daemon's part of a put: staging to pool, checksum of the pool's bytes
    lookup_*         look up and lease a path of 512 pages (kv of all, anchors of the window)
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import pathlib
import queue
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anchorstore.client import (
    NeedAll,
)
from anchorstore.client.client import Reservation
from anchorstore.layout import KvLayout
from anchorstore.testing.daemon import Daemon
from anchorstore.units import MIB
from benchmarks import footprint, harness
from benchmarks.attached import connect, random_hashes
from benchmarks.floor import Floor, floor
from benchmarks.harness import Bytes, Effort, Result
from benchmarks.lookups import PATH_PAGES, Paths, bench_lookups

SIZES = (64 * 1024, MIB, 4 * MIB)
WORKING_SET_BYTES = 512 * MIB
STRIDE = 7919  # a prime: neighbours in time are no neighbours in memory
PARTS = ("lookups", "blocks", "clients")


def block_layout(block_bytes: int) -> KvLayout:
    """A kv layout whose block has exactly `block_bytes`."""
    return KvLayout(1, 1, block_bytes // (2 * 64 * 2), "bfloat16", 0, 1)


class Blocks:
    """One client, `count` sealed blocks of one size, and the operations on batches of them."""

    def __init__(
        self, address: str, block_bytes: int, batch: int, stored_bytes: int = WORKING_SET_BYTES
    ) -> None:
        self.client = connect(address, [block_layout(block_bytes)])
        self.block_bytes, self.batch = block_bytes, batch
        count = max(batch, stored_bytes // block_bytes)
        self.source = harness.filled(block_bytes * count, 1)
        self.target = np.empty(max(128 * MIB, batch * block_bytes), np.uint8)
        self.target[::4096] = 1
        self.paths = [self._stored() for _ in range(count // batch)]
        self._turn = 0
        for _ in self.paths:  # the kernel maps each page at its first touch, as the floor's were
            self.get_copied_out()

    def _slice(self, memory: Bytes) -> Bytes:
        """The next batch's worth of `memory`, so that no cache keeps it warm."""
        size = self.batch * self.block_bytes
        start = (self._turn % (len(memory) // size)) * size
        self._turn += 1
        return memory[start : start + size]

    def _path(self) -> bytes:
        return self.paths[(self._turn * STRIDE) % len(self.paths)]

    def _stored(self) -> bytes:
        hashes = random_hashes(self.batch)
        self._turn = 0
        blocks = self._slice(self.source).reshape(self.batch, self.block_bytes)
        outcome = self.client.put(self.client.root_digest, 0, hashes, {0: blocks})
        assert outcome.sealed == self.batch, outcome
        return hashes

    def memcpy(self) -> None:
        np.copyto(self._slice(self.target), self._slice(self.source))

    def get_in_place(self) -> None:
        with self.client.lookup(self._path(), [NeedAll(0, 0)]) as window:
            assert window.resume_pages == self.batch, window.miss
            blocks = window.blocks(0)
            for index in range(len(blocks)):
                blocks[index]

    def get_copied_out(self) -> None:
        copied = self.client.get(self._path(), 0, self._slice(self.target))
        assert copied == self.batch, copied

    def get_leased(self) -> None:
        with self.client.lookup(self._path(), [NeedAll(0, 0)]) as window:
            assert window.resume_pages == self.batch, window.miss
            window.blocks(0).copy_into(self._slice(self.target))

    def floor_get(self, base: Floor) -> None:
        """As many bytes, one round trip."""
        out = self._slice(self.target)
        base.get(self._turn * len(out) % (len(base.memory) - len(out) + 1), out)

    def put(self) -> None:
        root = self.client.root_digest
        assert root is not None
        with self.client.reserve(root, 0, random_hashes(self.batch), layouts=[0]) as reservation:
            source = self._slice(self.source).reshape(self.batch, self.block_bytes)
            for page, layout in reservation.wanted():
                np.copyto(np.frombuffer(reservation.buffer(page, layout), np.uint8), source[page])
            outcome = reservation.seal()
        assert outcome.sealed == self.batch, outcome


class Sealing:
    """The daemon's part of a put: staged blocks become visible."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self._stack = contextlib.ExitStack()
        self._open: Reservation | None = None

    def stage(self) -> None:
        """Untimed: the next reservation, its blocks in staging."""
        self._stack.close()
        blocks, root = self.blocks, self.blocks.client.root_digest
        assert root is not None
        hashes = random_hashes(blocks.batch)
        reservation = blocks.client.reserve(root, 0, hashes, layouts=[0])
        self._open = self._stack.enter_context(reservation)
        for page, layout in self._open.wanted():
            np.frombuffer(self._open.buffer(page, layout), np.uint8)[:] = page

    def seal(self) -> None:
        assert self._open is not None, "nothing is staged"
        outcome = self._open.seal()
        assert outcome.sealed == self.blocks.batch, outcome

    def close(self) -> None:
        self._stack.close()


def bench_blocks(address: str, base: Floor, size: int, batch: int, effort: Effort) -> list[Result]:
    """Gets and puts of one block size and batch."""
    blocks = Blocks(address, size, batch)
    per_round = max(4, min(effort.per_round, WORKING_SET_BYTES // (size * batch)))
    shape = {"block_bytes": size, "batch": batch}
    gets = harness.interleave(
        {
            "memcpy": blocks.memcpy,
            "floor": lambda: blocks.floor_get(base),
            "get_in_place": blocks.get_in_place,
            "get_leased": blocks.get_leased,
            "get_copied_out": blocks.get_copied_out,
        },
        effort.rounds,
        per_round,
    )
    names = ("memcpy", "floor", "get_in_place", "get_leased", "get_copied_out")
    results = [harness.report(name, gets, **shape) for name in names]
    sealing = Sealing(blocks)
    puts = harness.interleave(
        {"memcpy": blocks.memcpy, "put": blocks.put, "seal": sealing.seal},
        effort.rounds,
        per_round,
        prepare={"seal": sealing.stage},
    )
    sealing.close()
    results += [harness.report(name, puts, **shape) for name in ("put", "seal")]
    blocks.client.close()
    return results


def _many(
    address: str, stored_bytes: int, barrier: object, case: str, operations: int, out: object
) -> None:
    """One of several client processes."""
    action: harness.Operation
    prepare: dict[str, harness.Operation] = {}
    if case == "get_copied_out":
        action = Blocks(address, MIB, 1, stored_bytes).get_copied_out
    else:
        known = Paths(address, count=4)
        action = functools.partial(known.lookup, PATH_PAGES)
        prepare = {case: functools.partial(known.ask, known.hits, 1)}
    barrier.wait()  # type: ignore[attr-defined]
    taken = harness.interleave({case: action}, 1, operations, prepare)
    out.put(taken[case][0])  # type: ignore[attr-defined]


def _collected(out: Any, processes: Sequence[Any]) -> list[list[int]]:
    """One list of samples a process; RuntimeError as soon as one has failed."""
    samples: list[list[int]] = []
    while len(samples) < len(processes):
        try:
            samples.append(out.get(timeout=1))
        except queue.Empty:
            if failed := [process.exitcode for process in processes if process.exitcode]:
                for process in processes:
                    process.terminate()
                raise RuntimeError(f"a client process ended with {failed[0]}") from None
    return samples


def bench_clients(address: str, clients: int, effort: Effort) -> list[Result]:
    """Several client processes at once; latency over all, throughput as the sum."""
    context = multiprocessing.get_context("spawn")
    results = []
    for case, size in (("get_copied_out", MIB), ("lookup_hit_at_end", 0)):
        barrier, out = context.Barrier(clients), context.Queue()
        operations = effort.rounds * effort.per_round
        stored_bytes = WORKING_SET_BYTES // clients
        arguments = (address, stored_bytes, barrier, case, operations, out)
        processes = [context.Process(target=_many, args=arguments) for _ in range(clients)]
        for process in processes:
            process.start()
        samples = _collected(out, processes)
        for process in processes:
            process.join()
        batch = 1 if size else PATH_PAGES
        line = harness.report(case, {case: samples}, block_bytes=size, batch=batch, clients=clients)
        if size:
            total = sum(size * len(taken) / sum(taken) for taken in samples)
            line = dataclasses.replace(line, gb_per_s=round(total, 3))
        results.append(line)
    return results


@contextlib.contextmanager
def started_daemon(folder: pathlib.Path) -> Iterator[Daemon]:
    """A daemon with room for every case."""
    settings = {
        "tiers.dram.capacity": "4GiB",
        "tiers.dram.segment": "64MiB",
        "limits.staging_per_session": "512MiB",
        "limits.staging_total": "8GiB",
    }
    with Daemon(folder, settings=settings, ready_seconds=120) as daemon:
        yield daemon


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """All cases; progress goes to standard error."""
    effort = Effort(rounds=3, per_round=32) if arguments.quick else Effort(rounds=7, per_round=128)
    results: list[Result] = []
    document: dict[str, object] = {"machine": harness.machine()}
    with tempfile.TemporaryDirectory() as name, started_daemon(pathlib.Path(name)) as daemon:
        document["daemon_idle"] = harness.process_memory_bytes(daemon.pid)
        with floor(WORKING_SET_BYTES) as base:
            if "lookups" in arguments.only:
                print("lookups of 512 pages", file=sys.stderr)
                results += bench_lookups(daemon.address, base, effort)
            if "blocks" in arguments.only:
                for size, batch in itertools.product(SIZES, (1, 64)):
                    print(f"blocks of {size >> 10} KiB, batches of {batch}", file=sys.stderr)
                    results += bench_blocks(daemon.address, base, size, batch, effort)
        if "clients" in arguments.only:
            for clients in (1, 8):
                print(f"{clients} client processes", file=sys.stderr)
                results += bench_clients(daemon.address, clients, effort)
        if arguments.peers:
            from benchmarks import peers

            results += peers.run(effort, document)
    if arguments.pages:
        print(f"index of {arguments.pages} pages", file=sys.stderr)
        document["index"] = footprint.measure(arguments.pages)
    document["results"] = [dataclasses.asdict(result) for result in results]
    return document


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--peers", action="store_true", help="add Redis, Mooncake and LMCache")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument(
        "--pages", type=int, default=1_000_000, metavar="N", help="index size, 0 = skip"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (default: all)"
    )
    arguments = parser.parse_args()
    document = run(arguments)
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        results = document.pop("results")
        print(harness.table([Result(**line) for line in results]))  # type: ignore[attr-defined]
        print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
