"""What options have in common: their types, and a parser that answers for its own command."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

from anchorstore.units import parse_bytes


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses what it does not know itself, under its own usage; argparse hands it
    up to the parser of all commands, whose usage helps nobody."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As in argparse; leaves with 2 where something is left over."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def integer(low: int, high: int) -> Callable[[str], int]:
    """The type of an option that takes `low` to `high`."""
    return functools.partial(_integer, low, high)


def _integer(low: int, high: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is out of range, must be {low} to {high}")
    return value


def size(text: str) -> int:
    """The type of an option that takes bytes, e.g. 64MiB; at least 1."""
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too small, must be at least 1B")
    return value


def non_empty(text: str) -> str:
    """The type of an option that names something: an empty one is a mistake, not a default."""
    if not text:
        raise argparse.ArgumentTypeError("is empty, must name something")
    return text
