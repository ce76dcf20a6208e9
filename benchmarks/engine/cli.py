"""A serving engine with and without the store, or any OpenAI endpoint, under one trace.

    python -m benchmarks.engine [--model DIR | --random-model | --endpoint URL] [--trace KIND]

What runs:

    without --endpoint   stock vLLM (prefix caching, mode align, 64-token matches) and vLLM with
                         anchorstore, same flags, each with a daemon of its own where it needs one
    --endpoint URL       servers that run already; given twice, the first is the yardstick
    --quality            a trained tiny model's answers instead of times

A time is that of a request beside the same request to the first variant, sent one right after the
other in turning order; a ratio below 1 is faster, with the bootstrap's 95 % interval over the
pairs.  "ideal" is the longest prefix that the variant has met before, in whole pages, minus W.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from anchorstore.units import parse_bytes
from benchmarks.engine import session
from benchmarks.engine.events import EndpointError
from benchmarks.engine.report import render
from benchmarks.engine.servers import Variant
from benchmarks.engine.traces import KINDS
from engine_adapter.budget import MARGIN_TOKENS_DEFAULT

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT_MODEL = ROOT / "engine_adapter" / "models" / "text"
QUICK_PAIRS = 2
MIXED_FACTOR = 4
"""Requests a pair in traces whose depths fall out as they may."""
STOCK = "stock"
COMPARED = (Variant(STOCK, None), Variant("anchorstore", {}))
EXAMINED = (
    Variant(STOCK, None),  # finds nothing: the exact answers
    Variant("every-row", {"rows_per_page": 64, "ratio": 1.0, "max_rows": 4096, "margin_tokens": 0}),
    Variant("anchorstore", {}),
    Variant("kv-only", {"strategy": "kv_only"}),
    Variant("zero-state", {"strategy": "kv_only", "margin_tokens": 0}),
)
"""Variants by default: of a trace, and of exams with the controls beside them."""

TOKEN_IDS_HELP = "ids that prompts are made of (default: the model's; of an endpoint 3:250)"
PAIRS_BY_DEPTH = ("branches", "fresh")


def variant_of(text: str) -> Variant:
    """NAME, NAME=JSON or NAME=stock; "stock" is vLLM without the connector."""
    name, _, rest = text.partition("=")
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{name!r} is no name of a variant")
    if name == STOCK and rest:
        raise argparse.ArgumentTypeError("stock vLLM has no connector to configure")
    if STOCK in (name, rest):
        return Variant(name, None)
    try:
        extra = json.loads(rest or "{}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{rest!r} is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise argparse.ArgumentTypeError(f"{rest!r} is no JSON object")
    return Variant(name, extra)


def endpoint_of(text: str) -> tuple[str, str]:
    """NAME=URL, or a URL that is its own name."""
    name, separator, url = text.partition("=")
    if separator and "/" not in name:
        return name, url
    return text, text


def token_range(text: str) -> tuple[int, int]:
    """FIRST:STOP, the ids that prompts are made of."""
    first, _, stop = text.partition(":")
    if not (first.isdecimal() and stop.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no FIRST:STOP")
    return int(first), int(stop)


def byte_count(text: str) -> int:
    """A size such as 512MiB."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def default_python() -> pathlib.Path:
    """This interpreter, or that of .venv-vllm where only that one has vLLM."""
    made = ROOT / ".venv-vllm" / "bin" / "python"
    if importlib.util.find_spec("vllm") is None and made.is_file():
        return made
    return pathlib.Path(sys.executable)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PAIRS} pairs, short exams")
    _add_questions(parser)
    _add_servers(parser)
    _add_setup(parser)
    return parser


def _add_questions(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is asked")
    what.add_argument("--trace", choices=KINDS, default="branches", help="default: %(default)s")
    what.add_argument("--quality", action="store_true", help="answers of a trained tiny model")
    what.add_argument(
        "--pairs",
        type=int,
        default=30,
        metavar="N",
        help="of each depth (default: %(default)s); mixed traces send four times as many in all",
    )
    what.add_argument("--seed", type=int, default=0, metavar="N")
    what.add_argument(
        "--context", type=int, metavar="TOKENS", help="default: 4800 or the model's; at least 1024"
    )
    what.add_argument("--answer-tokens", type=int, default=16, metavar="N")
    what.add_argument("--token-ids", type=token_range, metavar="FIRST:STOP", help=TOKEN_IDS_HELP)
    what.add_argument(
        "--margin",
        type=int,
        default=MARGIN_TOKENS_DEFAULT,
        metavar="W",
        help="tokens left out of the ideal (default: %(default)s)",
    )
    what.add_argument("--pause", type=float, default=0.05, metavar="S", help="between requests")


def _add_servers(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("who is asked")
    model = who.add_mutually_exclusive_group()
    model.add_argument("--model", type=pathlib.Path, metavar="DIR", help="default: the text model")
    model.add_argument(
        "--random-model",
        action="store_true",
        help="random weights, sized so that 1024 new tokens take over a second on this machine",
    )
    model.add_argument(
        "--endpoint",
        type=endpoint_of,
        action="append",
        metavar="[NAME=]URL",
        help="a server that runs; its key, if any, in OPENAI_API_KEY",
    )
    who.add_argument(
        "--variant",
        type=variant_of,
        action="append",
        metavar="NAME[=JSON]",
        help="stock, a name and the connector's extra configuration, or NAME=stock: a second stock "
        "server, whose ratio shows the noise; the first is the yardstick (default: stock, "
        "anchorstore; for --quality also every row kept and the controls)",
    )
    who.add_argument("--replicas", type=int, default=1, metavar="N", help="servers of each variant")


def _add_setup(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how servers run")
    how.add_argument(
        "--python",
        type=pathlib.Path,
        default=default_python(),
        metavar="FILE",
        help="interpreter of the environment that has vLLM (default: this one, or the one that "
        "`make test-vllm` has made)",
    )
    how.add_argument(
        "--cache", type=pathlib.Path, default=ROOT / ".cache" / "engine", help="models"
    )
    how.add_argument("--eager", action="store_true", help="no torch.compile, for every variant")
    how.add_argument("--kv-cache", type=byte_count, default="1GiB", metavar="SIZE", help="a server")
    how.add_argument("--dram", default="4GiB", metavar="SIZE", help="pool of a variant's daemon")
    how.add_argument(
        "--server-flag", action="append", default=[], metavar="FLAG", help="passed to every vLLM"
    )
    how.add_argument("--logs", type=pathlib.Path, metavar="DIR", help="keep the servers' logs")


def plan_of(arguments: argparse.Namespace) -> session.Plan:
    """The command line's wishes, checked; EndpointError for those that contradict each other."""
    if arguments.endpoint and (arguments.quality or arguments.variant):
        raise EndpointError("--endpoint takes neither --quality nor --variant")
    if arguments.replicas < 1 or arguments.margin < 0 or arguments.pause < 0:
        raise EndpointError("--replicas is at least 1, --margin and --pause are at least 0")
    variants = arguments.variant or (EXAMINED if arguments.quality else COMPARED)
    endpoints = arguments.endpoint or []
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names) or len(dict(endpoints)) < len(endpoints):
        raise EndpointError("two of a name cannot be told apart")
    pairs = QUICK_PAIRS if arguments.quick else arguments.pairs
    flags = [*arguments.server_flag, *(["--enforce-eager"] if arguments.eager else [])]
    return session.Plan(
        kind=arguments.trace,
        pairs=pairs if arguments.trace in PAIRS_BY_DEPTH else MIXED_FACTOR * pairs,
        quick=arguments.quick,
        seed=arguments.seed,
        context_tokens=arguments.context,
        answer_tokens=arguments.answer_tokens,
        token_ids=arguments.token_ids,
        margin_tokens=arguments.margin,
        pause_seconds=arguments.pause,
        model=None if arguments.random_model else arguments.model or TEXT_MODEL,
        variants=tuple(variants),
        replicas=arguments.replicas,
        python=arguments.python,
        cache=arguments.cache,
        kv_cache_bytes=arguments.kv_cache,
        dram=arguments.dram,
        flags=tuple(flags),
        logs=arguments.logs,
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document; progress goes to standard error."""
    plan = plan_of(arguments)
    if arguments.endpoint:
        return session.bench_endpoints(
            plan, arguments.endpoint, os.environ.get("OPENAI_API_KEY"), say
        )
    if arguments.quality:
        return session.bench_quality(plan, say)
    return session.bench_servers(plan, say)


def say(message: str) -> None:
    """A line of progress."""
    print(message, file=sys.stderr, flush=True)


def _leave(number: int, frame: object) -> None:
    """Ends the run as an interrupt does: what it started is stopped on the way out."""
    raise SystemExit(128 + number)


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 with the reason on standard error."""
    parser = make_parser()
    arguments = parser.parse_args(words)
    earlier = signal.signal(signal.SIGTERM, _leave)
    try:
        document = run(arguments)
    except EndpointError as error:
        say(f"benchmarks.engine: {error}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        print(render(document))
    return 0
