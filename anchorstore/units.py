"""Sizes and durations as people write them: "64GiB", "250ms", and back."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BYTES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}
_BYTES |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def _split(text: str, kind: str, units: dict[str, float] | dict[str, int]) -> tuple[float, float]:
    match = _NUMBER.fullmatch(text)
    names = ", ".join(name for name in units if name)
    if not match:
        raise ValueError(f"{text!r} is not a {kind}: write a number and one of {names}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"unknown unit {unit!r}" if unit else "it has no unit"
        raise ValueError(f"{text!r} is not a {kind}: {problem}, use one of {names}")
    return float(number), units[unit]


def parse_bytes(text: str) -> int:
    """Bytes meant by `text`, e.g. "64GiB" or "4096".  ValueError names the unit it cannot read."""
    number, scale = _split(text, "size", _BYTES)
    return int(number * scale)


def parse_seconds(text: str) -> float:
    """Seconds meant by `text`, e.g. "250ms"; the unit is required."""
    number, scale = _split(text, "duration", _SECONDS)
    return number * scale


def format_bytes(size: int) -> str:
    """Exact where a binary unit divides, e.g. "64GiB", else one decimal, e.g. "1.5MiB"."""
    for name, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{size // scale}{name}" if size % scale == 0 else f"{size / scale:.1f}{name}"
    return f"{size}B"


def format_seconds(seconds: float) -> str:
    """E.g. "250ms", "10s", "2.5s"."""
    if seconds and seconds < 1:
        return f"{seconds * 1e3:g}ms"
    return f"{seconds:g}s"
