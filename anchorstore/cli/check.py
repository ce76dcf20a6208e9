"""`anchorstore check`: walks every invariant of a running daemon, or an nvme device at rest."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys

from anchorstore.cli import connection
from anchorstore.cli.options import non_empty, size
from anchorstore.cli.output import add_json_option, number, plain, print_json
from anchorstore.tiers.nvme.offline import Report, check_device
from anchorstore.transport.frames import Method
from anchorstore.units import format_bytes
from anchorstore.wire.v1 import admin_pb2

FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `check`."""
    parser = subparsers.add_parser(
        "check",
        help="walk every invariant of a running daemon, or an nvme device at rest",
        description="Walks every invariant of a running daemon's index, slots and leases, which "
        "holds other calls up for a moment; or, with --offline, an nvme device that no daemon "
        "owns.  Exits with 1 where something is broken.",
    )
    parser.add_argument(
        "--checksums",
        action="store_true",
        help="read every block again, in memory and in nvme, and compare its checksum",
    )
    parser.add_argument(
        "--rate",
        type=size,
        default=0,
        metavar="SIZE",
        help="with --checksums, read at most so much from nvme a second (256MiB); a large tier "
        "needs a longer --deadline",
    )
    parser.add_argument(
        "--offline",
        type=non_empty,
        metavar="PATH",
        help="walk the nvme device on this directory, file or block device instead, which no "
        "daemon may own: superblocks, journal, and what every live slot says of itself",
    )
    connection.add_options(parser, deadline="60s")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    if args.offline is not None:
        return run_offline(args)
    request = admin_pb2.CheckRequest(checksums=args.checksums, nvme_bytes_per_second=args.rate)
    with connection.connect(args) as daemon:
        answer = daemon.call(Method.CHECK, request, admin_pb2.CheckResponse)
    if args.json:
        print_json(plain(answer))
    else:
        print(check_text(answer), end="")
    return 0 if answer.ok else FAILED


def check_text(answer: admin_pb2.CheckResponse) -> str:
    """The verdict, then a line a violation."""
    counted = f"{number(answer.pages)} pages, {number(answer.blocks)} blocks"
    if answer.blocks_verified:
        counted += f", {number(answer.blocks_verified)} checksums"
    if answer.nvme_blocks_unread:
        counted += f", {number(answer.nvme_blocks_unread)} blocks in nvme not read in time"
    if answer.nvme_blocks_outdated:
        counted += f", {number(answer.nvme_blocks_outdated)} blocks in nvme outdated"
    if answer.ok:
        return f"ok: {counted}\n"
    lines = "".join(f"  {violation}\n" for violation in answer.violations)
    return f"FAILED: {len(answer.violations)} violations in {counted}\n{lines}"


def run_offline(args: argparse.Namespace) -> int:
    """Walks a device at rest and prints."""

    def warn(text: str) -> None:
        print(f"anchorstore check: {text}", file=sys.stderr)

    report = check_device(pathlib.Path(args.offline), checksums=args.checksums, log=warn)
    if args.json:
        print_json({"ok": report.is_ok, **dataclasses.asdict(report)})
    else:
        print(offline_text(report), end="")
    return 0 if report.is_ok else FAILED


def offline_text(report: Report) -> str:
    """The verdict, what there is, then a line a violation."""
    shown = [f"{number(count)} {word}" for word, count in report.slots.items()]
    size = f"{format_bytes(report.capacity_bytes)} in {number(report.segments)} segments"
    lines = [
        f"device {report.device_id}, {size}, started {number(report.starts)} times",
        f"{number(report.blocks)} live blocks, {format_bytes(report.bytes)}",
        f"slots: {', '.join(shown) or 'none'}",
    ]
    dropped = [f"{number(count)} {word}" for word, count in report.dropped.items()]
    if dropped:
        lines.append(f"not kept of the journal: {', '.join(dropped)}")
    lines += report.violations
    head = "ok" if report.is_ok else f"FAILED: {number(report.violations_total)} violations"
    return f"{head}: {report.path}\n" + "".join(f"  {line}\n" for line in lines)
