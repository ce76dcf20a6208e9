"""Tables for people, JSON for machines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import MutableSequence, Sequence
from typing import Any

from google.protobuf.message import Message

from anchorstore.units import format_bytes
from anchorstore.wire.v1 import admin_pb2, store_pb2

DIGEST_SHOWN = 12
CELL_CHARACTERS_MAX = 120


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def print_json(value: object) -> None:
    """One indented JSON document on standard output."""
    is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    json.dump(value, sys.stdout, indent=2, ensure_ascii=is_ascii)
    sys.stdout.write("\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """Aligned columns, two spaces apart.

    `right` has an "r" for each column that is flush right and any other letter for the rest.
    Cells may hold what tenants chose: see `printable`.
    """
    lines = [list(headers), *(list(map(printable, row)) for row in rows)]
    assert all(len(line) == len(headers) for line in lines), "a row has more or fewer cells"
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    sides = right.ljust(len(headers), "l")

    def shown(line: list[str]) -> str:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(line, widths, sides, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return "".join(f"{shown(line)}\n" for line in lines)


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would act on, in ASCII where standard output
    is no more than that; cut where it is very long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    encoding = sys.stdout.encoding or "ascii"
    shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    return shown if len(shown) <= CELL_CHARACTERS_MAX else shown[: CELL_CHARACTERS_MAX - 3] + "..."


def share(used: int, capacity: int) -> str:
    """E.g. "1.5GiB (37%)"."""
    percent = f" ({100 * used / capacity:.0f}%)" if capacity else ""
    return f"{format_bytes(used)}{percent}"


def number(value: int) -> str:
    """E.g. "12,345"."""
    return f"{value:,}"


def digest(value: bytes) -> str:
    """Enough of a digest to tell it from others."""
    return value.hex()[:DIGEST_SHOWN]


def elapsed(seconds: float) -> str:
    """E.g. "3d04h", "2h05m", "12s"."""
    whole = int(seconds)
    for size, name, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size}{name}{whole % size // smaller:02d}{below}"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON has it: every field under its name, bytes as hex, enums as words."""
    return {
        field.name: _plain_field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain_field(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if isinstance(value, MutableSequence):
        return [_plain_value(field, item) for item in value]
    return _plain_value(field, value)


def _plain_value(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.hex()
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        prefix = f"{field.enum_type.name.upper()}_"
        return names[value].name.removeprefix(prefix).lower() if value in names else str(value)
    return value


def component_word(component: int) -> str:
    """E.g. "kv"."""
    names = store_pb2.Component.DESCRIPTOR.values_by_number
    found = names.get(component)
    return found.name.removeprefix("COMPONENT_").lower() if found else str(component)


def heads_of(shard: int) -> tuple[int, int]:
    """First head and the one behind the last; both 0 where the component has no heads."""
    return shard >> 16, shard & 0xFFFF


def shard_words(shard: int) -> str:
    """E.g. "heads 0-3" (four of them), "head 3", "-" where the component has no heads."""
    first, stop = heads_of(shard)
    if not shard:
        return "-"
    return f"heads {first}-{stop - 1}" if stop - first > 1 else f"head {first}"


def blocks_of(tier: admin_pb2.TierStatus) -> int:
    """Blocks that a tier holds."""
    return tier.blocks or sum(part.blocks for part in tier.components)
