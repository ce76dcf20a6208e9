"""`anchorstore status`: what a running daemon holds."""

from __future__ import annotations

import argparse

from anchorstore.cli import connection
from anchorstore.cli.namespace_table import namespaces_text
from anchorstore.cli.output import (
    add_json_option,
    blocks_of,
    component_word,
    digest,
    elapsed,
    number,
    plain,
    print_json,
    share,
    table,
)
from anchorstore.transport.frames import Method
from anchorstore.units import format_bytes
from anchorstore.wire.v1 import admin_pb2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `status`."""
    text = "Prints what a running daemon holds: tiers, components, namespaces, counters."
    parser = subparsers.add_parser("status", help="what a running daemon holds", description=text)
    connection.add_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Asks and prints."""
    with connection.connect(args) as daemon:
        status = daemon.call(Method.STATUS, admin_pb2.StatusRequest(), admin_pb2.StatusResponse)
    if args.json:
        print_json(plain(status))
    else:
        print(status_text(status), end="")
    return 0


def status_text(status: admin_pb2.StatusResponse) -> str:
    """The status as people read it."""
    state = "draining" if status.draining else "serving"
    head = (
        f"anchorstore {status.version}, boot {digest(status.boot_id)}, {state} for "
        f"{elapsed(status.uptime_ms / 1000)}\n"
    )
    pages = f"pages {number(status.pages)}"
    if status.tiers:
        sight = (
            f"sessions {status.sessions}, leases {status.leases}, reservations "
            f"{status.reservations}, {pages}, index {format_bytes(status.index_bytes)}\n"
        )
        parts = [head + sight, tiers_text(status)]
        if any(tier.devices for tier in status.tiers):
            parts.append(devices_text(status))
    else:  # the rest of the counts are an operator's alone
        sight = f"sessions {status.sessions}, {pages}\nnot an operator: own domain only\n"
        parts = [head + sight]
    if status.namespaces:
        parts.append(namespaces_text(status.namespaces))
    counted = sorted((name, count) for name, count in status.counters.items() if count)
    if counted:
        rows = [[name, number(count)] for name, count in counted]
        parts.append(table(["COUNTER", "VALUE"], rows, "lr"))
    return "\n".join(parts)


def tiers_text(status: admin_pb2.StatusResponse) -> str:
    """A line a tier, and one for each of its components."""
    headers = ["TIER", "COMPONENT", "CAPACITY", "USED", "BLOCKS", "SEGMENTS", "FREE", "HUGE PAGES"]
    rows = []
    for tier in status.tiers:
        whole = [tier.name, "all", format_bytes(tier.capacity_bytes)]
        whole += [share(tier.used_bytes, tier.capacity_bytes)]
        whole += [number(blocks_of(tier))]
        whole += [number(tier.segments), number(tier.segments_free)]
        rows.append([*whole, "yes" if tier.huge_pages else "no"])
        for part in tier.components:
            limit = f"up to {format_bytes(part.capacity_bytes)}"  # they share what there is
            cells = [tier.name, component_word(part.component), limit]
            cells += [share(part.used_bytes, part.capacity_bytes), number(part.blocks)]
            rows.append([*cells, "", "", ""])
    return table(headers, rows, "llrrrrr")


def devices_text(status: admin_pb2.StatusResponse) -> str:
    """A line a device of nvme and of hbm."""
    headers = ["DEVICE", "STATE", "ENGINE", "CAPACITY", "READ", "WRITTEN", "ERRORS", "LATE"]
    rows = []
    for device in (device for tier in status.tiers for device in tier.devices):
        state = f"{device.state}: {device.reason}" if device.reason else device.state
        cells = [device.path, "stalled" if device.stalled else state, device.engine]
        cells += [format_bytes(device.capacity_bytes)]
        cells += [format_bytes(device.bytes_read), format_bytes(device.bytes_written)]
        errors = number(device.read_errors + device.write_errors)
        rows.append([*cells, errors, number(device.late_blocks)])
    return table(headers, rows, "lllrrrrr")
