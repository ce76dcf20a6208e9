"""What a memory of so many bytes keeps of a workload's shared prefixes.

    python -m benchmarks.trace [--trace KIND] [--requests N] [--capacity 1/8]

Every cache serves the same requests from the same bytes: anchorstore's own core in simulated time,
Belady's optimum (what it is the optimum of: belady.py), caches of exact states (checkpoints.py) and
a memory without end.  A capacity is a part of the working set, which is every different page of the
trace, keys, values and anchors; 1/8+1/2 is dram and nvme, and rivals have the sum in one piece.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from anchorstore.errors import AnchorStoreError
from anchorstore.keys import PAGE_TOKENS_DEFAULT
from anchorstore.server.core.policies import POLICIES
from benchmarks.trace.core import CapacityError
from benchmarks.trace.daemon import DaemonError
from benchmarks.trace.jsonl import TraceError, read_trace
from benchmarks.trace.kinds import KINDS, generate
from benchmarks.trace.lab import OWN_DAEMON, Plan, run_trace
from benchmarks.trace.memory import Capacity, parse_capacity
from benchmarks.trace.plot import PlotError, check_plot, draw
from benchmarks.trace.report import render
from benchmarks.trace.sizes import DEFAULT_MODEL, sizes_of_model
from benchmarks.trace.trace import Trace
from benchmarks.trace.variants import Variant, parse_variant
from engine_adapter.budget import MARGIN_TOKENS_DEFAULT

REQUESTS_DEFAULT = 500
CAPACITIES = ("1/8", "1/2", "1", "1/8+1/2", "1/8+9/8")
VARIANTS = (
    *POLICIES,
    "ttl=600",
    *("lru+demote", "segment-length+demote", "lru+second-sight", "lru+size"),
)

QUICK_REQUESTS = 300
QUICK_CAPACITIES = ("1/8", "1/8+1/2")
QUICK_VARIANTS = ("lru", "lfu", "lru+demote")

JOBS_MAX = 64
FAILURES = (AnchorStoreError, CapacityError, DaemonError, PlotError, TraceError)


def capacity(text: str) -> Capacity:
    """A part of the working set, or two."""
    try:
        return parse_capacity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def variant(text: str) -> Variant:
    """A policy, and what of it goes to nvme."""
    try:
        return parse_variant(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isdecimal() or not 1 <= int(text) <= 10**8:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 100000000")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_REQUESTS} requests, {len(QUICK_VARIANTS)} policies, two capacities",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        choices=range(1, JOBS_MAX + 1),
        metavar="N",
        help="caches served at a time, each in a process of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="FILE.png",
        help="also draw it, as .png or .svg; needs matplotlib",
    )
    what = parser.add_argument_group("what is asked")
    kinds = what.add_mutually_exclusive_group()
    kinds.add_argument(
        "--trace", choices=KINDS, action="append", help="may be given again (default: all)"
    )
    kinds.add_argument(
        "--jsonl",
        type=pathlib.Path,
        action="append",
        metavar="FILE",
        help="a trace of token ids or page hashes; its formats: benchmarks/trace/jsonl.py",
    )
    what.add_argument(
        "--page-tokens", type=count, default=PAGE_TOKENS_DEFAULT, metavar="N", help="(%(default)s)"
    )
    what.add_argument(
        "--requests", type=count, default=REQUESTS_DEFAULT, metavar="N", help="(%(default)s)"
    )
    what.add_argument("--seed", type=int, default=0, metavar="N")
    _add_caches(parser.add_argument_group("what serves"))
    return parser


def _add_caches(who: argparse._ArgumentGroup) -> None:
    who.add_argument(
        "--capacity",
        type=capacity,
        action="append",
        metavar="PART[+PART]",
        help="of the working set, in dram, or in dram and nvme; may be given again (default: "
        f"{', '.join(CAPACITIES)})",
    )
    who.add_argument(
        "--policy",
        type=variant,
        action="append",
        metavar="NAME[+demote][+ADMISSION]",
        help="of the store: how it evicts, +demote to write to nvme only what dram gives up, "
        "+second-sight only what was used twice; may be given again (default: all policies, and "
        "both for lru)",
    )
    who.add_argument(
        "--daemon",
        metavar="ADDRESS",
        nargs="?",
        const=OWN_DAEMON,
        help="a daemon that runs, unix:///path or tcp://host:port, instead of all other caches; "
        "it is sent every page of the trace, in full size; without an address one is started for "
        "each capacity and policy",
    )
    who.add_argument(
        "--model",
        type=pathlib.Path,
        default=DEFAULT_MODEL,
        metavar="CONFIG",
        help="a config.json, for the sizes of pages (default: Qwen3.5-4B)",
    )
    who.add_argument(
        "--margin-pages",
        type=int,
        choices=range(65),
        metavar="N",
        help=f"of every replayed hit, computed again (default: {MARGIN_TOKENS_DEFAULT} tokens, as "
        "in the adapters)",
    )


def traces_of(arguments: argparse.Namespace) -> Iterator[Trace]:
    """What the command line asks for, one after the other."""
    requests = QUICK_REQUESTS if arguments.quick else arguments.requests
    for path in arguments.jsonl or ():
        yield read_trace(path, arguments.page_tokens)
    for kind in () if arguments.jsonl else arguments.trace or KINDS:
        yield generate(kind, requests, arguments.seed, arguments.page_tokens)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document; progress goes to standard error."""
    if arguments.plot:
        if arguments.daemon is not None:
            raise PlotError("--plot: a daemon has one capacity, there is nothing to draw")
        check_plot(arguments.plot)
    sizes = sizes_of_model(arguments.model, arguments.page_tokens)
    capacities = arguments.capacity or [
        parse_capacity(text) for text in (QUICK_CAPACITIES if arguments.quick else CAPACITIES)
    ]
    variants = arguments.policy or [
        parse_variant(text) for text in (QUICK_VARIANTS if arguments.quick else VARIANTS)
    ]
    margin_pages = arguments.margin_pages
    if margin_pages is None:
        margin_pages = -(-MARGIN_TOKENS_DEFAULT // arguments.page_tokens)
    plan = Plan(
        capacities=tuple(capacities),
        variants=tuple(variants),
        margin_pages=margin_pages,
        daemon=arguments.daemon,
        jobs=arguments.jobs,
    )
    traces = [run_trace(trace, sizes, plan, say) for trace in traces_of(arguments)]
    about = {
        "model": sizes.model,
        "kv_bytes": sizes.kv_bytes,
        "anchor_bytes": sizes.anchor_bytes,
        "state_bytes": sizes.state_bytes,
    }
    document = {"sizes": about, "seed": arguments.seed, "traces": traces}
    if arguments.plot:
        draw(document, arguments.plot)
    return document


def say(message: str) -> None:
    """A line of progress."""
    print(message, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 with the reason on standard error."""
    arguments = make_parser().parse_args(words)
    try:
        document = run(arguments)
    except FAILURES as error:
        say(f"benchmarks.trace: {error}")
        return 1
    print(json.dumps(document, indent=1) if arguments.json else render(document))
    return 0
