"""`anchorstore ls`: namespaces, or the pages of one."""

from __future__ import annotations

import argparse
from typing import Any

from anchorstore.cli import connection, names
from anchorstore.cli.connection import Connection
from anchorstore.cli.namespace_table import namespaces_text
from anchorstore.cli.options import integer
from anchorstore.cli.output import (
    add_json_option,
    component_word,
    digest,
    heads_of,
    number,
    plain,
    print_json,
    shard_words,
    table,
)
from anchorstore.transport.frames import Method
from anchorstore.units import format_bytes
from anchorstore.wire.v1 import admin_pb2

PAGES_PER_CALL = 1000
LIMIT_DEFAULT = 1000
LIMIT_MAX = 2**31 - 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `ls`."""
    parser = subparsers.add_parser(
        "ls",
        help="list namespaces, or the pages of one",
        description="Lists the namespaces of a running daemon, or the pages of one of them, a "
        "line a block.",
    )
    names.add_argument(parser, optional=True)
    parser.add_argument(
        "--limit",
        type=integer(0, LIMIT_MAX),
        metavar="N",
        help="most pages, or namespaces, listed; 0 = all "
        f"(default: {LIMIT_DEFAULT} pages, all namespaces)",
    )
    connection.add_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    with connection.connect(args) as daemon:
        spaces = names.namespaces(daemon)
        if args.namespace is None:
            return _print_namespaces(spaces, args.limit, args.json)
        root = names.resolve(spaces, args.namespace).root_digest
        limit = LIMIT_DEFAULT if args.limit is None else args.limit
        pages, is_cut = list_pages(daemon, root, limit)
    if args.json:
        print_json({"pages": [_page_plain(page) for page in pages], "more": is_cut})
        return 0
    print(pages_text(pages), end="")
    if is_cut:
        print(_more(limit, "pages"))
    return 0


def _print_namespaces(
    spaces: list[admin_pb2.NamespaceStatus], limit: int | None, as_json: bool
) -> int:
    """All of them, or up to `limit` (0 = all); JSON says whether there are more where asked."""
    shown = spaces[: limit or len(spaces)]
    is_cut = len(shown) < len(spaces)
    if as_json:
        more = {} if limit is None else {"more": is_cut}
        print_json({"namespaces": [plain(space) for space in shown], **more})
        return 0
    print(namespaces_text(shown), end="")
    if is_cut:
        print(_more(len(shown), "namespaces"))
    return 0


def _more(limit: int, what: str) -> str:
    return f"... more than {number(limit)} {what}; --limit 0 lists all"


def _page_plain(page: admin_pb2.PageStatus) -> dict[str, Any]:
    """A page as JSON has it; each block's shard also as its range of heads, the last excluded."""
    found = plain(page)
    for block in found["blocks"]:
        block["head_start"], block["head_stop"] = heads_of(block["shard"])
    return found


def list_pages(
    daemon: Connection, root: bytes, limit: int
) -> tuple[list[admin_pb2.PageStatus], bool]:
    """Up to `limit` pages (0 = all), and whether there are more."""
    pages: list[admin_pb2.PageStatus] = []
    cursor = 0
    while True:
        left = limit - len(pages) if limit else PAGES_PER_CALL
        request = admin_pb2.ListRequest(
            root_digest=root, cursor=cursor, limit=min(left, PAGES_PER_CALL)
        )
        answer = daemon.call(Method.LIST, request, admin_pb2.ListResponse)
        pages += answer.pages
        cursor = answer.next_cursor
        if not cursor:
            return pages, False
        if limit and len(pages) >= limit:
            return pages, True


def pages_text(pages: list[admin_pb2.PageStatus]) -> str:
    """A line a block; a page's later blocks leave the page's columns empty."""
    headers = ["PATH HASH", "PAGE", "CHILDREN", "COMPONENT", "LAYOUT", "SHARD", "TIER"]
    rows = []
    for page in pages:
        first = [digest(page.path_hash), number(page.page), number(page.children)]
        for block in page.blocks:
            cells = [component_word(block.component), digest(block.layout_digest)]
            cells += [
                shard_words(block.shard),
                "+".join(block.tiers) or block.tier,
                format_bytes(block.bytes),
            ]
            rows.append([*first, *cells, str(block.lineage), str(block.leases)])
            first = ["", "", ""]
        if not page.blocks:
            rows.append([*first, "none", "", "", "", "", "", ""])
    return table([*headers, "SIZE", "LINEAGE", "LEASES"], rows, "lrrllllrrr")
