"""`anchorstore demo`: two engine processes share prefixes through a daemon, measured.

The work is in engine_adapter/transformers/demo.py; this is its options and its table.
"""

from __future__ import annotations

import argparse
import importlib.resources
import importlib.util
import pathlib
import tempfile
from typing import Any

from anchorstore.cli.options import integer
from anchorstore.cli.output import add_json_option, print_json, table
from anchorstore.errors import ModelError, UsageError
from anchorstore.units import format_bytes, parse_bytes

NO_GAIN_KL = 1e-3
NUMBER_MAX = 2**31 - 1
PACKAGES = ("structlog", "prometheus_client", "torch", "transformers", "safetensors")
EXTRAS = "server,transformers"  # what brings them: the demo serves as well


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="two engines share prefixes, measured",
        description="Starts a daemon and two engine processes.  Engine A reads a text and goes on "
        "with it; engine B resumes from A's pages at arbitrary points.  Prints what was reused, "
        "the time to the first token cold and warm, and the agreement with a full prefill "
        "beside its controls.",
    )
    parser.add_argument(
        "--model",
        metavar="DIR_OR_ID",
        help="model directory, or a hub id to download (default: the tiny trained text model)",
    )
    parser.add_argument(
        "--text", metavar="FILE", help="UTF-8 text to read (default: the tiny model's sample)"
    )
    for option, default, meaning in (
        ("--prompt-tokens", 6000, "tokens A reads first"),
        ("--turns", 3, "turns of A's conversation"),
        ("--turn-tokens", 300, "tokens of a later turn"),
        ("--requests", 6, "branches for B"),
        ("--rows", 4, "rows kept of a 64-token page"),
        ("--k-max", 512, "the most rows replayed"),
        ("--threads", 1, "torch threads of an engine"),
    ):
        text = f"{meaning} (default {default})"
        parser.add_argument(
            option, type=integer(1, NUMBER_MAX), default=default, metavar="N", help=text
        )
    parser.add_argument(
        "--margin",
        default=128,
        type=int,
        metavar="N",
        help="resume margin W in tokens, a multiple of 64 (default 128)",
    )
    parser.add_argument(
        "--dram", default="512MiB", metavar="SIZE", help="the daemon's pool (default 512MiB)"
    )
    parser.add_argument(
        "--seed", default=7, type=int, metavar="N", help="where branches leave (default 7)"
    )
    add_json_option(parser)


def _bundled(name: str) -> pathlib.Path:
    root = importlib.resources.files("engine_adapter") / "models" / "text" / name
    return pathlib.Path(str(root))


def model_directory(named: str | None) -> pathlib.Path:
    """The directory meant by --model; downloads a hub id; ModelError where there is none."""
    if named is None:
        return _bundled("")
    path = pathlib.Path(named)
    if path.is_dir():
        return path
    if path.is_absolute() or named.startswith(".") or named.count("/") != 1:
        raise ModelError(f"--model {named}: no such directory, and no hub id (owner/name)")
    import huggingface_hub

    try:
        return pathlib.Path(huggingface_hub.snapshot_download(named))
    except (OSError, ValueError) as error:
        raise ModelError(f"--model {named}: cannot be downloaded: {error}") from error


def require_packages() -> None:
    """UsageError with all that is missing, before anything is started or loaded."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"needs {', '.join(missing)}: pip install 'anchorstore[{EXTRAS}]'")


def run(args: argparse.Namespace) -> int:
    """Runs the demo."""
    require_packages()
    from engine_adapter.transformers import demo

    text = pathlib.Path(args.text) if args.text else _bundled("sample.txt")
    if not text.is_file():
        raise ModelError(f"--text {text}: no such file")
    try:
        parse_bytes(args.dram)
    except ValueError as error:
        raise ModelError(f"--dram: {error}") from error
    options = demo.DemoOptions(
        model=model_directory(args.model),
        text=text,
        prompt_tokens=args.prompt_tokens,
        turns=args.turns,
        turn_tokens=args.turn_tokens,
        requests=args.requests,
        rows_per_page=args.rows,
        max_rows=args.k_max,
        margin_tokens=args.margin,
        dram=args.dram,
        seed=args.seed,
        threads=args.threads,
    )
    with tempfile.TemporaryDirectory(prefix="anchorstore-demo-") as folder:
        found = demo.run(options, pathlib.Path(folder))
    if args.json:
        print_json(found)
    else:
        print(render(found))
    return 0


def render(found: dict[str, Any]) -> str:
    """The figures for people."""
    head = ["prompt", "shared", "reused", "rows", "cold", "warm", "ratio"]
    head += [f"{name}{measure}" for name in ("", "zero ", "kv ") for measure in ("top-1", "KL")]
    rows = []
    for request in found["requests"]:
        cold, warm = request["ttft_cold_s"], request["ttft_warm_s"]
        rows.append(
            [str(request[key]) for key in ("prompt_tokens", "shared_tokens", "reused_tokens")]
            + [str(request["rows_replayed"]), f"{cold * 1e3:.0f} ms", f"{warm * 1e3:.0f} ms"]
            + [f"{warm / cold:.2f}"]
            + _quality(request, "")
            + _quality(request, "zero_state_")
            + _quality(request, "kv_only_")
        )
    margin = found["resume_margin_tokens"]
    lines = [
        "",
        (
            f"Requests of engine B ({found['rows_per_page']} rows a page, k_max {found['k_max']}, "
            f"W = {margin})."
        ),
        "prompt, shared with A's text, reused: tokens; rows: anchors replayed; cold, warm: time to",
        "the first token.  top-1 and KL: agreement with a full prefill over the next 32 tokens;",
        f"its controls: zero = zero state at W = 0, kv = kv only at W = {margin}.",
        "",
        table(head, rows, "r" * len(head)),
        verdict(found),
        "",
        holdings(found),
    ]
    return "\n".join(lines)


def _quality(request: dict[str, Any], name: str) -> list[str]:
    return [f"{request[f'{name}top1_agreement']:.3f}", f"{request[f'{name}mean_kl']:.4f}"]


def _mean(found: dict[str, Any], key: str) -> float:
    values = [request[key] for request in found["requests"]]
    return float(sum(values) / len(values))


def verdict(found: dict[str, Any]) -> str:
    """What the anchors bought, said plainly."""
    margin = found["resume_margin_tokens"]
    kl, kv_only = _mean(found, "mean_kl"), _mean(found, "kv_only_mean_kl")
    bare, zero = _mean(found, "no_margin_mean_kl"), _mean(found, "zero_state_mean_kl")
    lines = [
        (
            f"At W = 0 nothing but the anchors carries the state: mean KL {bare:.4f} "
            f"(zero state {zero:.4f}), top-1 {_mean(found, 'no_margin_top1_agreement'):.3f}."
        )
    ]
    if kv_only - kl > NO_GAIN_KL:
        lines.append(
            f"At W = {margin} the anchors lower the mean KL from {kv_only:.4f} (kv only) "
            f"to {kl:.4f}."
        )
    elif zero <= NO_GAIN_KL:
        lines.append(
            f"At W = {margin} the anchors add nothing over kv only (mean KL {kl:.4f} against "
            f"{kv_only:.4f}): this model shows no dependence on its state."
        )
    else:
        lines.append(
            f"At W = {margin} the anchors add nothing over kv only (mean KL {kl:.4f} against "
            f"{kv_only:.4f}): {margin} recomputed tokens are all that this model remembers."
        )
    return "\n".join(lines)


def holdings(found: dict[str, Any]) -> str:
    """What the daemon holds at the end, and who stored it."""
    status, added = found["daemon"], sum(request["pages_sealed"] for request in found["requests"])
    who = f"engine A stored {found['pages_sealed']}, engine B added {added}"
    where = "where its requests leave A's text"
    lines = [f"The daemon holds {status['pages']} pages; {who} {where}:"]
    for tier in status["tiers"]:
        for part in tier["components"]:
            if part["blocks"]:
                lines.append(
                    f"  {tier['name']} {part['component']}: {part['blocks']} blocks, "
                    f"{format_bytes(part['used_bytes'])} of {format_bytes(part['capacity_bytes'])}"
                )
    return "\n".join(lines)
