"""`anchorstore size`: what a model's pages and checkpoints take, from its config.json alone.

::

    Qwen3.5-4B (qwen3_5_text)
      residual width D                      2560
      layers linear/attention              24/8
      ...
    context of 32,768 tokens
      anchors, 4 rows a page              70.0MiB
      ...

The ratio compares anchors with the usual alternative, one checkpoint of every linear layer's
state each 8,192 tokens: below 1 anchors are the smaller store, and they resume at every page.
Needs neither torch nor the daemon.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import TYPE_CHECKING, Any

from anchorstore.cli.options import integer
from anchorstore.errors import ModelError
from anchorstore.families import AnchorSpec, spec_from_config
from anchorstore.keys import PAGE_TOKENS_DEFAULT
from anchorstore.layout import DTYPE_BYTES
from anchorstore.units import KIB, MIB, format_bytes

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

CHECKPOINT_TOKENS = 8192  # how often engines keep a checkpoint
CONFIG_BYTES_MAX = 4 * MIB
CONTEXT_TOKENS_MAX = 2**31 - 1
ROWS_DEFAULT = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one model with `rows` anchors a page; bytes unless the name says otherwise."""

    spec: AnchorSpec
    rows: int
    page_tokens: int = PAGE_TOKENS_DEFAULT

    @property
    def kv_page_bytes(self) -> int:
        return self.spec.kv_layout(page_tokens=self.page_tokens).block_bytes()

    @property
    def anchor_page_bytes(self) -> int:
        return self.spec.anchor_layout(self.rows, page_tokens=self.page_tokens).block_bytes()

    @property
    def dense_page_bytes(self) -> int:
        return self.page_tokens * self.dense_token_bytes

    @property
    def kv_token_bytes(self) -> int:
        return self.kv_page_bytes // self.page_tokens

    @property
    def dense_token_bytes(self) -> int:
        """Anchors of a token, were every token kept."""
        return self.spec.stored_groups * self.spec.hidden * DTYPE_BYTES[self.spec.dtype]

    @property
    def anchor_token_bytes(self) -> float:
        """Anchors of a page spread over its tokens."""
        return self.anchor_page_bytes / self.page_tokens

    @property
    def checkpoint_token_bytes(self) -> float:
        """A checkpoint spread over the tokens until the next one."""
        return self.spec.checkpoint_bytes / CHECKPOINT_TOKENS

    @property
    def ratio(self) -> float:
        """Anchors over checkpoints, a token."""
        return self.anchor_token_bytes / self.checkpoint_token_bytes

    @property
    def anchor_share(self) -> float:
        """Anchors' part of a page's anchors and KV: what tiers.dram.anchor_share needs at least."""
        return self.anchor_page_bytes / (self.anchor_page_bytes + self.kv_page_bytes)

    @property
    def rows_max(self) -> int:
        """Most rows a page that take no more than the checkpoints, at most a whole page."""
        # rows * dense / page <= checkpoint / 8192, in integers
        room = self.page_tokens * self.spec.checkpoint_bytes
        return min(self.page_tokens, room // (CHECKPOINT_TOKENS * self.dense_token_bytes))


def as_json(name: str, sizes: Sizes, context_tokens: int | None) -> dict[str, Any]:
    """Every figure as a plain number."""
    spec = sizes.spec
    report: dict[str, Any] = {
        "model": name,
        "model_type": spec.model_type,
        "dtype": spec.dtype,
        "hidden": spec.hidden,
        "linear_layers": len(spec.linear_layers),
        "attention_layers": len(spec.attention_layers),
        "groups": len(spec.groups),
        "stored_groups": spec.stored_groups,
        "gap_mode": spec.gap_mode,
        "kv_bytes_per_token": sizes.kv_token_bytes,
        "kv_is_latent": spec.kv_latent_width is not None,
        "checkpoint_bytes": spec.checkpoint_bytes,
        "recurrent_bytes": spec.recurrent_bytes,
        "conv_bytes": spec.conv_bytes,
        "checkpoint_tokens": CHECKPOINT_TOKENS,
        "checkpoint_bytes_per_token": sizes.checkpoint_token_bytes,
        "dense_anchor_bytes_per_token": sizes.dense_token_bytes,
        "rows_per_page": sizes.rows,
        "page_tokens": sizes.page_tokens,
        "anchor_bytes_per_token": sizes.anchor_token_bytes,
        "anchor_to_checkpoint_ratio": sizes.ratio,
        "rows_per_page_max": sizes.rows_max,
        "anchor_share": sizes.anchor_share,
        "page_bytes": {
            "kv": sizes.kv_page_bytes,
            "anchor": sizes.anchor_page_bytes,
            "dense_anchor": sizes.dense_page_bytes,
        },
    }
    if context_tokens is not None:
        report["context"] = context_json(sizes, context_tokens)
    return report


def context_json(sizes: Sizes, context_tokens: int) -> dict[str, int]:
    """Totals for the whole pages of a context, in bytes."""
    pages = context_tokens // sizes.page_tokens
    return {
        "tokens": context_tokens,
        "pages": pages,
        "kv_bytes": pages * sizes.kv_page_bytes,
        "anchor_bytes": pages * sizes.anchor_page_bytes,
        "dense_anchor_bytes": pages * sizes.dense_page_bytes,
        "checkpoints_bytes": context_tokens // CHECKPOINT_TOKENS * sizes.spec.checkpoint_bytes,
        "checkpoint_every_page_bytes": pages * sizes.spec.checkpoint_bytes,
    }


def render(name: str, sizes: Sizes, context_tokens: int | None) -> str:
    """The table of one model, a line a figure."""
    spec = sizes.spec
    density = f"{sizes.rows} of {sizes.page_tokens} rows"
    parts = f"{spec.recurrent_bytes / MIB:.2f} + {spec.conv_bytes / MIB:.2f}"
    shares = f"{sizes.anchor_share:.3f}, {1 - sizes.anchor_share:.3f}"
    rows = [
        ("residual width D", f"{spec.hidden}"),
        ("layers linear/attention", f"{len(spec.linear_layers)}/{len(spec.attention_layers)}"),
        ("groups (stored)", f"{len(spec.groups)} ({spec.stored_groups})"),
        ("KV B/token", f"{sizes.kv_token_bytes}" + " (MLA)" * (spec.kv_latent_width is not None)),
        ("checkpoint MiB (recurrent + conv)", f"{spec.checkpoint_bytes / MIB:.2f} ({parts})"),
        (f"checkpoint/{CHECKPOINT_TOKENS} B/token", f"{sizes.checkpoint_token_bytes:.0f}"),
        ("anchor B/token, dense", f"{sizes.dense_token_bytes}"),
        (f"anchor B/token, {density}", f"{sizes.anchor_token_bytes:.0f}"),
        (f"ratio anchors/checkpoints, {density}", f"{sizes.ratio:.3f}"),
        ("most rows a page at a ratio of 1", f"{sizes.rows_max} of {sizes.page_tokens}"),
        ("page KiB: KV", f"{sizes.kv_page_bytes / KIB:g}"),
        (f"page KiB: anchors, {density}", f"{sizes.anchor_page_bytes / KIB:g}"),
        ("page KiB: anchors, dense", f"{sizes.dense_page_bytes / KIB:g}"),
        (f"share of the pool: anchors, KV; {density}", shares),
    ]
    lines = [f"{name} ({spec.model_type}, {spec.dtype})", *_aligned(rows)]
    if context_tokens is not None:
        total = context_json(sizes, context_tokens)
        every = f"checkpoints, one each {CHECKPOINT_TOKENS:,} tokens"
        lines.append(f"context of {context_tokens:,} tokens, {total['pages']:,} whole pages")
        lines += _aligned(
            [
                ("KV", format_bytes(total["kv_bytes"])),
                (f"anchors, {density}", format_bytes(total["anchor_bytes"])),
                ("anchors, dense", format_bytes(total["dense_anchor_bytes"])),
                (every, format_bytes(total["checkpoints_bytes"])),
                ("checkpoints, one a page", format_bytes(total["checkpoint_every_page_bytes"])),
            ]
        )
    return "\n".join(lines)


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {label:<46}{value:>24}" for label, value in rows]


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in `path`, or in the config.json of the directory `path`."""
    file = path / "config.json" if path.is_dir() else path
    try:
        size = file.stat().st_size
        if size > CONFIG_BYTES_MAX:
            raise ModelError(f"{file} has {size} bytes, limit {CONFIG_BYTES_MAX}")
        config = json.loads(file.read_text())
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds a {type(config).__name__}, must hold an object")
    return config


def _name_of(path: pathlib.Path) -> str:
    resolved = path.resolve()
    if resolved.name == "config.json":
        return resolved.parent.name
    return resolved.stem if resolved.suffix == ".json" else resolved.name


def add_parser(subparsers: Subparsers) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "size", help="what a model's pages take", description=(__doc__ or "").split("\n\n")[-1]
    )
    parser.add_argument(
        "--model",
        required=True,
        type=pathlib.Path,
        metavar="CONFIG",
        help="a config.json or the directory that holds it",
    )
    parser.add_argument(
        "--context",
        type=integer(1, CONTEXT_TOKENS_MAX),
        metavar="N",
        help="also print totals for N tokens",
    )
    parser.add_argument(
        "--rows",
        type=integer(1, PAGE_TOKENS_DEFAULT),
        default=ROWS_DEFAULT,
        metavar="R",
        help=f"anchors kept of the {PAGE_TOKENS_DEFAULT} tokens of a page ({ROWS_DEFAULT})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints the table; ModelError says why there is none."""
    sizes = Sizes(spec_from_config(read_config(args.model)), args.rows)
    name = _name_of(args.model)
    if args.json:
        print(json.dumps(as_json(name, sizes, args.context), indent=2))
    else:
        print(render(name, sizes, args.context))
    return 0
