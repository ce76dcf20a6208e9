"""The nvme tier beside fio.

    python -m benchmarks.nvme [--json] [--path DIRECTORY] [--stored SIZE] [--rounds N] [--seconds S]

Random blocks, direct I/O, in turns with fio on the same file system, with the same engine and
depth: `threads` beside psync with as many threads, `io_uring` beside io_uring.  Ours makes footers
and verifies checksums; a 64 KiB block takes 68 KiB of the device, a 1 MiB block 1028 KiB, and so
most slots do not begin where the device would like them to.  Ratios are of blocks a second, 1.0 =
as fast as fio; "x fio slots" is to fio moving 68 or 1028 KiB at a time, "x fio checked" to fio
verifying what it reads, too, as we always do (our writes have their checksums already).

fio moves `depth` blocks of memory over and over, which stay in the processor's caches.  Where the
device is a virtual machine's, its host copies there, and twice as fast from caches as from memory;
hence we too move little memory over and over, in two plans of `depth` blocks, or of 2 MiB where
that is more.  The rows "wide" are of plans of 16 MiB, fio's side as before: what that is worth.

A block's memory on pages of 4 KiB is scattered, more or less from run to run, and so a call has up
to 16 pieces for 64 KiB.  On huge pages (--huge-pages, both sides) it is one piece.

The rows "adjoining" are of plans whose slots lie side by side, as those of a path's pages mostly
do, and which go out in larger calls; fio's side is random there too.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import tempfile
from typing import NamedTuple

from anchorstore.tiers.nvme.format import slot_bytes_of
from anchorstore.tiers.nvme.jobs import RUN_BYTES_MAX
from anchorstore.units import KIB, MIB, format_bytes, parse_bytes
from benchmarks import harness
from benchmarks.nvme.figures import Line, Turn, line, table
from benchmarks.nvme.fio import Fio, ensure_fio
from benchmarks.nvme.ours import Order, Ours, opened

BLOCK_BYTES = (MIB, 64 * KIB)
ENGINES = ("io_uring", "aio", "threads")
HUGE_HELP = "memory on 2 MiB pages, as the pool's is where the host has reserved some"
ORDERS: tuple[Order, ...] = ("random", "wide", "adjoining")


def file_system_of(path: pathlib.Path) -> str:
    """Type of the file system, as the kernel lists it."""
    best, kind = "", "unknown"
    for row in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, found, *_ = row.split()
        if str(path.resolve()).startswith(mount) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


class Yardsticks(NamedTuple):
    """fio in its three ways: moving blocks, moving slots, moving blocks and checking them."""

    blocks: Fio
    slots: Fio
    checked: Fio

    @classmethod
    def made(
        cls, path: pathlib.Path, block_bytes: int, engine: str, arguments: argparse.Namespace
    ) -> Yardsticks:
        """On two files; the one that is checked is written here."""
        how, is_huge = (engine, arguments.depth), arguments.huge_pages
        blocks, slots = (
            Fio(path / "fio", arguments.stored, size, *how, is_huge=is_huge)
            for size in (block_bytes, slot_bytes_of(block_bytes))
        )
        checked = Fio(
            path / "checked", arguments.stored, block_bytes, *how, is_huge=is_huge, checks=True
        )
        checked.fill()
        return cls(blocks, slots, checked)


def measure(
    subject: Ours, path: pathlib.Path, block_bytes: int, engine: str, arguments: argparse.Namespace
) -> list[Line]:
    """Reads and writes of one block size and engine."""
    lines = []
    fio = Yardsticks.made(path, block_bytes, engine, arguments) if arguments.fio else None
    orders = ORDERS if block_bytes < RUN_BYTES_MAX else ORDERS[:2]  # others are a call each
    for case, order in itertools.product(("read", "write"), orders):
        is_write = case == "write"
        rounds: list[Turn] = []
        name = case if order == "random" else f"{case} {order}"
        for turn in range(arguments.rounds):
            print(f"{name} {format_bytes(block_bytes)} {engine} round {turn}", file=sys.stderr)
            ours = subject.run(is_write, order, arguments.seconds)
            rounds.append(
                Turn(ours)
                if fio is None
                else Turn(
                    ours,
                    fio.blocks.run(is_write, arguments.seconds),
                    fio.slots.run(is_write, arguments.seconds),
                    None if is_write else fio.checked.run(is_write, arguments.seconds),
                )
            )
        lines.append(line(name, block_bytes, engine, arguments.depth, rounds))
    return lines


def lay_out(path: pathlib.Path, size: int) -> None:
    """fio's file, every byte written, so that no run meets an extent that is not."""
    chunk = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(-(-size // MIB)):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """All cases; progress goes to standard error."""
    lines: list[Line] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(dir=arguments.path, prefix="anchorstore-bench-") as name:
        path = pathlib.Path(name)
        if arguments.fio:
            lay_out(path / "fio", arguments.stored)
        for block_bytes in arguments.blocks:
            for engine in arguments.engines:
                shape = (block_bytes, arguments.stored, engine, arguments.depth)
                with opened(path, *shape, is_huge=arguments.huge_pages) as subject:
                    if subject is None:
                        skipped.append(f"{engine}: the kernel does not allow it")
                        continue
                    lines += measure(subject, path, block_bytes, engine, arguments)
        system = file_system_of(path)
    return {
        "machine": harness.machine(),
        "file_system": system,
        "stored_bytes": arguments.stored,
        "huge_pages": arguments.huge_pages,
        "seconds": arguments.seconds,
        "skipped": sorted(set(skipped)),
        "results": [dataclasses.asdict(item) for item in lines],
    }


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nvme", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--path", type=pathlib.Path, help="directory to measure (default: /tmp)")
    parser.add_argument("--stored", type=parse_bytes, default=512 * MIB, help="bytes of blocks")
    parser.add_argument("--depth", type=int, default=8, help="calls at the same time")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--blocks", nargs="+", type=parse_bytes, default=BLOCK_BYTES)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--huge-pages", action="store_true", help=HUGE_HELP)
    parser.add_argument("--no-fio", dest="fio", action="store_false", help="our side alone")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measures and prints."""
    arguments = parsed(argv)
    if arguments.fio:
        arguments.fio = ensure_fio()
    document = run(arguments)
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        results = document.pop("results")
        print(table([Line(**item) for item in results]))  # type: ignore[attr-defined]
        print(json.dumps(document, indent=1))
    return 0
