"""`anchorstore check`: walks every invariant of a running daemon."""

from __future__ import annotations

import argparse

from anchorstore.cli import connection
from anchorstore.cli.output import add_json_option, number, plain, print_json
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2

FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `check`."""
    parser = subparsers.add_parser(
        "check",
        help="walk every invariant of a running daemon",
        description="Walks every invariant of a running daemon's index, slots and leases, which "
        "holds other calls up for a moment.  Exits with 1 where one is broken.",
    )
    parser.add_argument(
        "--checksums", action="store_true", help="read every block again and compare its checksum"
    )
    connection.add_options(parser, deadline="60s")
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    request = admin_pb2.CheckRequest(checksums=args.checksums)
    with connection.connect(args) as daemon:
        answer = daemon.call(Method.CHECK, request, admin_pb2.CheckResponse)
    if args.json:
        print_json(plain(answer))
    else:
        print(check_text(answer), end="")
    return 0 if answer.ok else FAILED


def check_text(answer: admin_pb2.CheckResponse) -> str:
    """The verdict, then a line a violation."""
    verified = f", {number(answer.blocks_verified)} checksums" if answer.blocks_verified else ""
    counted = f"{number(answer.pages)} pages, {number(answer.blocks)} blocks{verified}"
    if answer.ok:
        return f"ok: {counted}\n"
    lines = "".join(f"  {violation}\n" for violation in answer.violations)
    return f"FAILED: {len(answer.violations)} violations in {counted}\n{lines}"
