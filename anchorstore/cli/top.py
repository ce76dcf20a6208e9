"""`anchorstore top`: what a running daemon does, live.

::

    status ... interval ... status --difference--> rates a second --> one screen, again and again

Counts are the daemon's own; the first screen comes after one interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time

from anchorstore.cli import connection
from anchorstore.cli.output import blocks_of, elapsed, number, plain, share, table
from anchorstore.errors import Forbidden
from anchorstore.transport.frames import Method
from anchorstore.units import format_bytes, parse_seconds
from anchorstore.wire.v1 import admin_pb2

CLEAR = "\x1b[H\x1b[2J"
INTERVAL_SECONDS_MIN = 0.1
LOOKUPS = ("hit", "not_stored", "incomplete", "cold", "lineage", "margin", "disabled")

MOVED = {
    "dram": (
        ("blocks_sealed", "blocks_promoted"),
        ("blocks_evicted", "blocks_thinned", "blocks_demoted"),
    ),
    "nvme": (("nvme_blocks_written",), ("blocks_evicted_nvme", "blocks_thinned_nvme")),
    "hbm": (("copies_made",), ("copies_evicted", "copies_dropped", "copies_lost")),
}
"""Counters of what comes to a tier, and of what goes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Two statuses of one daemon, and the seconds between them."""

    before: admin_pb2.StatusResponse
    after: admin_pb2.StatusResponse
    seconds: float

    def rate(self, *names: str) -> float:
        """Of these counters together, a second."""
        now, then = self.after.counters, self.before.counters
        return sum(now.get(name, 0) - then.get(name, 0) for name in names) / self.seconds

    def rates(self) -> dict[str, float]:
        """Of every counter, those that have not moved included."""
        return {name: round(self.rate(name), 3) for name in sorted(self.after.counters)}

    @property
    def pages_a_hit(self) -> float:
        """Pages up to the resume points, on average."""
        hits = self.rate("lookups_hit")
        return self.rate("pages_hit") / hits if hits else 0.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `top`."""
    parser = subparsers.add_parser(
        "top",
        help="what a running daemon does, live",
        description="Shows rates of a running daemon, anew every interval, until interrupted.",
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default="1s",
        metavar="TIME",
        help="from one screen to the next (default 1s)",
    )
    parser.add_argument(
        "--once", action="store_true", help="one screen, of one interval, then the end"
    )
    parser.add_argument("--json", action="store_true", help="a JSON document a line, no screens")
    connection.add_options(parser)


def _interval(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < INTERVAL_SECONDS_MIN:
        raise argparse.ArgumentTypeError(f"{text} is too short, at least {INTERVAL_SECONDS_MIN}s")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Asks, waits, asks again and prints, until told otherwise."""
    with connection.connect(args) as daemon:
        before, asked_at = _ask(daemon)
        if not before.tiers:
            raise Forbidden("top is for operators alone")
        while True:
            time.sleep(args.interval)
            after, now = _ask(daemon)
            interval = Interval(before, after, now - asked_at)
            _show(interval, as_json=args.json, clear=not args.once and sys.stdout.isatty())
            if args.once:
                return 0
            before, asked_at = after, now


def _ask(daemon: connection.Connection) -> tuple[admin_pb2.StatusResponse, float]:
    status = daemon.call(Method.STATUS, admin_pb2.StatusRequest(), admin_pb2.StatusResponse)
    return status, time.monotonic()


def _show(interval: Interval, *, as_json: bool, clear: bool) -> None:
    if as_json:
        document = {
            "seconds": round(interval.seconds, 3),
            "rates": interval.rates(),
            "pages_a_hit": round(interval.pages_a_hit, 1),
            "devices": device_rates(interval),
            "status": plain(interval.after),
        }
        print(json.dumps(document, ensure_ascii=False), flush=True)
        return
    print((CLEAR if clear else "") + screen(interval), flush=True)


def screen(interval: Interval) -> str:
    """One screen: head, calls, tiers, devices, what goes."""
    status = interval.after
    state = "draining" if status.draining else "serving"
    head = (
        f"anchorstore {status.version}, {state} for {elapsed(status.uptime_ms / 1000)}, sessions "
        f"{status.sessions}, leases {status.leases}, pages {number(status.pages)}\n"
    )
    parts = [head, _calls_text(interval), _tiers_text(interval)]
    if any(tier.devices for tier in status.tiers):
        parts.append(_devices_text(interval))
    return "\n".join([*parts, _gone_text(interval)])


def _calls_text(interval: Interval) -> str:
    lookups = interval.rate(*(f"lookups_{outcome}" for outcome in LOOKUPS))
    hits = 100 * interval.rate("lookups_hit") / lookups if lookups else 0.0
    missed = [
        f"{outcome} {interval.rate(f'lookups_{outcome}'):.1f}"
        for outcome in LOOKUPS[1:]
        if interval.rate(f"lookups_{outcome}")
    ]
    waiting = status_count(interval, "lookups_waiting")
    misses = f"; misses/s: {', '.join(missed)}" if missed else ""
    asked = (
        f"lookups {lookups:.1f}/s, {hits:.0f}% hits of {interval.pages_a_hit:.0f} pages, "
        f"{waiting} waiting{misses}\n"
    )
    put = (
        f"blocks sealed {interval.rate('blocks_sealed'):.1f}/s, known "
        f"{interval.rate('blocks_offered_known'):.1f}/s, declined {_declined(interval):.1f}/s\n"
    )
    return asked + put + _engines_text(interval)


def _engines_text(interval: Interval) -> str:
    """What engines tell of their own caches, where any does."""
    if not interval.after.counters.get("engines", 0):
        return ""
    return (
        f"engines that tell {status_count(interval, 'engines')}: used "
        f"{interval.rate('events_touched'):.1f} pages/s, let go "
        f"{interval.rate('pages_let_go'):.1f}/s, pinned {status_count(interval, 'pinned_pages')}\n"
    )


def status_count(interval: Interval, name: str) -> str:
    """A count of the later status."""
    return number(interval.after.counters.get(name, 0))


def _declined(interval: Interval) -> float:
    names = [name for name in interval.after.counters if name.startswith("blocks_declined_")]
    return interval.rate(*names)


def _tiers_text(interval: Interval) -> str:
    rows = []
    for tier in interval.after.tiers:
        come, gone = MOVED.get(tier.name, ((), ()))
        cells = [tier.name, format_bytes(tier.capacity_bytes)]
        cells += [share(tier.used_bytes, tier.capacity_bytes)]
        cells += [number(blocks_of(tier))]
        rows.append([*cells, f"{interval.rate(*come):.1f}", f"{interval.rate(*gone):.1f}"])
    return table(["TIER", "CAPACITY", "USED", "BLOCKS", "IN/S", "OUT/S"], rows, "lrrrrr")


def device_rates(interval: Interval) -> dict[str, dict[str, float]]:
    """By path of a device: bytes and blocks a second, both ways."""
    then = {device.path: device for tier in interval.before.tiers for device in tier.devices}
    found = {}
    for device in (device for tier in interval.after.tiers for device in tier.devices):
        earlier = then.get(device.path, admin_pb2.DeviceStatus())
        found[device.path] = {
            name: (getattr(device, name) - getattr(earlier, name)) / interval.seconds
            for name in ("bytes_read", "bytes_written", "blocks_read", "blocks_written")
        }
    return found


def _devices_text(interval: Interval) -> str:
    rates, rows = device_rates(interval), []
    for device in (device for tier in interval.after.tiers for device in tier.devices):
        mine = rates[device.path]
        state = f"{device.state}: {device.reason}" if device.reason else device.state
        cells = [device.path, f"{format_bytes(int(mine['bytes_read']))}/s"]
        cells += [f"{format_bytes(int(mine['bytes_written']))}/s"]
        cells += [number(device.reads_waiting), number(device.writes_waiting)]
        rows.append([*cells, "stalled" if device.stalled else state])
    return table(["DEVICE", "READ", "WRITTEN", "READS", "WRITES", "STATE"], rows, "lrrrrl")


def _ages_text(interval: Interval) -> str:
    """How long ago pages that left a tier had been used, where any did."""
    lines = []
    for tier in interval.after.tiers:
        prefix = f"pages_left_{tier.name}_age_"
        names = [name for name in interval.after.counters if name.startswith(prefix)]
        rates = {name.removeprefix(prefix): interval.rate(name) for name in names}
        ages = sorted((float(age), rate) for age, rate in rates.items() if rate)
        if ages:
            shown = ", ".join(f"{_within(age)} {rate:.1f}" for age, rate in ages)
            lines.append(f"left {tier.name}/s, last used: {shown}\n")
    return "".join(lines)


def _within(seconds: float) -> str:
    return "longer ago" if seconds == float("inf") else f"within {elapsed(seconds)}"


def _gone_text(interval: Interval) -> str:
    """Why blocks and pages went, where any did."""
    reasons = (
        ("pages demoted", "pages_demoted"),
        ("pages evicted", "pages_evicted"),
        ("pages evicted from nvme", "pages_evicted_nvme"),
        ("blocks thinned", "blocks_thinned"),
        ("blocks removed", "blocks_removed"),
        ("blocks corrupt", "blocks_corrupt"),
        ("not written in time", "nvme_blocks_passed_over"),
        ("copies evicted from hbm", "copies_evicted"),
        ("copies dropped with their blocks", "copies_dropped"),
    )
    found = [f"{text} {interval.rate(name):.1f}" for text, name in reasons if interval.rate(name)]
    waiting = f"waiting for nvme {status_count(interval, 'blocks_to_demote')}"
    return "gone/s: " + (", ".join(found) or "nothing") + f"; {waiting}\n" + _ages_text(interval)
