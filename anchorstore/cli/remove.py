"""`anchorstore remove`: removes a namespace's blocks, or those of one subtree."""

from __future__ import annotations

import argparse
import sys

from anchorstore.cli import connection, names
from anchorstore.cli.output import add_json_option, digest, number, plain, print_json
from anchorstore.errors import UsageError
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2

ABANDONED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `remove`."""
    parser = subparsers.add_parser(
        "remove",
        help="remove a namespace's blocks, or a subtree's",
        description="Removes every block of a namespace, or of the pages from one path hash "
        "onwards.  Leased blocks can no longer be found; their slots come back with the leases.",
    )
    names.add_argument(parser)
    parser.add_argument(
        "--below", metavar="PATH_HASH", help="only this page (64 hex letters) and what follows it"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    connection.add_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks for consent, then removes; 1 where it was not given.  UsageError for a page that is
    not stored."""
    below = b"" if args.below is None else names.parse_hash(args.below)
    with connection.connect(args) as daemon:
        space = names.resolve(names.namespaces(daemon), args.namespace)
        if not args.yes and not _consented(space, below):
            return ABANDONED
        request = admin_pb2.RemoveRequest(root_digest=space.root_digest, path_hash=below)
        answer = daemon.call(Method.REMOVE, request, admin_pb2.RemoveResponse)
    if args.json:
        print_json(plain(answer))
    if below and not answer.blocks_removed + answer.blocks_leased:
        raise UsageError(f"no such page is stored in {space.model}: {below.hex()}")
    if not args.json:
        leased = number(answer.blocks_leased)
        print(f"removed {number(answer.blocks_removed)} blocks; {leased} of them are still leased")
    if answer.may_come_back:
        warning = "nvme has not taken note of it: after a restart blocks may be found again"
        print(f"anchorstore remove: {warning}", file=sys.stderr)
    return 0


def _consented(space: admin_pb2.NamespaceStatus, below: bytes) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("no terminal to ask on, say --yes")
    what = f"what follows {digest(below)}" if below else f"all {number(space.pages)} pages"
    print(f"Remove {what} of {space.domain}/{space.model}? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
