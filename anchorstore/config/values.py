"""Kinds of configuration values: how each is read, checked and written.  Pure.

::

    file: TOML value --------------------+
                                         +--> parse() --> value as used --> show() --> TOML
    environment, --set: text -- read() --+

A kind knows its unit and its bounds, so that a refusal can name the value and the limit.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anchorstore.units import format_bytes, format_seconds, parse_bytes, parse_seconds

PATH_BYTES_MAX = 4095  # the kernel's PATH_MAX without its final zero
UID_MAX = 2**32 - 2  # the last one means "no user"


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    Attributes:
        unit: what the value counts, for people.
        bounds: what is allowed, for people; "" where everything is.
        parse: TOML value -> value; ValueError says what is wrong with it.
        show: value -> TOML literal that parses to it.
        read: text of the environment or of --set -> TOML value.
        is_table: its entries have keys of their own below the setting's key.
    """

    unit: str
    bounds: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], str]
    read: Callable[[str], Any] = str
    is_table: bool = False


def toml_text(text: str) -> str:
    """`text` as a TOML basic string (JSON's escapes are a subset of TOML's)."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def parse_address(text: str) -> tuple[str, int]:
    """("127.0.0.1", 9464) of "127.0.0.1:9464"; IPv6 hosts stand in brackets."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not host:port: an IPv6 host goes in brackets")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{text!r} is not host:port, e.g. 127.0.0.1:9464")
    if int(port) > 65535:
        raise ValueError(f"port {port} of {text!r} is above 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine alone.  Of all names only localhost is."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _within(value: float, low: float, high: float, show: Callable[[Any], str]) -> None:
    if not low <= value <= high:
        raise ValueError(f"is {show(value)}, must be {_range(low, high, show)}")


def _range(low: float, high: float, show: Callable[[Any], str]) -> str:
    if high == float("inf"):
        return f"at least {show(low)}"
    return f"{show(low)} to {show(high)}"


def _expect(value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    right = isinstance(value, kinds) and not (isinstance(value, bool) and kinds is not bool)
    if not right:
        raise ValueError(f"is {value!r}, must be {wanted}")


def text(*, empty_means: str = "", bytes_max: int = 1024) -> Kind:
    """A string; empty only where `empty_means` says what that is."""

    def parse(value: Any) -> str:
        _expect(value, str, "text in quotes")
        if not value and not empty_means:
            raise ValueError("is empty, must name something")
        size = len(os.fsencode(value))
        if size > bytes_max:
            raise ValueError(f"has {size} bytes, limit {bytes_max}: {value!r}")
        if "\0" in value:
            raise ValueError(f"has a zero byte: {value!r}")
        return str(value)

    bounds = f"at most {bytes_max} bytes" + (f'; "" = {empty_means}' if empty_means else "")
    return Kind("text", bounds, parse, toml_text)


def path(*, empty_means: str = "", bytes_max: int = PATH_BYTES_MAX) -> Kind:
    """A file's path; the file is looked at by the daemon, not here."""
    kind = text(empty_means=empty_means, bytes_max=bytes_max)
    bounds = kind.bounds if bytes_max < PATH_BYTES_MAX else f'"" = {empty_means}'
    return dataclasses.replace(kind, unit="path", bounds=bounds)


def address(*, empty_means: str) -> Kind:
    """ "host:port" or empty; kept as text, so that it shows as it was written."""

    def parse(value: Any) -> str:
        _expect(value, str, "host:port in quotes")
        try:
            if value:
                parse_address(value)
        except ValueError as error:
            raise ValueError(f'{error}; "" is {empty_means}') from error
        return str(value)

    return Kind("host:port", f'port 0 to 65535; "" = {empty_means}', parse, toml_text)


def choice(*names: str) -> Kind:
    """One of a few words."""
    listed = ", ".join(f'"{name}"' for name in names)

    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError(f"is {value!r}, must be one of {listed}")
        return str(value)

    return Kind("word", listed, parse, toml_text)


def _read_switch(value: str) -> bool | str:
    return {"true": True, "false": False}.get(value.lower(), value)


def switch() -> Kind:
    """true or false."""

    def parse(value: Any) -> bool:
        _expect(value, bool, "true or false")
        return bool(value)

    def show(value: bool) -> str:
        return "true" if value else "false"

    return Kind("true or false", "", parse, show, _read_switch)


def _read_number(value: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def count(low: int, high: int) -> Kind:
    """A whole number within bounds."""

    def parse(value: Any) -> int:
        _expect(value, int, "a whole number")
        _within(value, low, high, str)
        return int(value)

    return Kind("count", f"{low} to {high}", parse, str, _read_number)


def _or_auto(exact: Kind) -> Kind:
    """The same, or "auto" = None."""

    def parse(value: Any) -> Any:
        return None if value == "auto" else exact.parse(value)

    def show(value: Any) -> str:
        return '"auto"' if value is None else exact.show(value)

    return Kind(exact.unit, f'"auto", or {exact.bounds}', parse, show, exact.read)


def count_or_auto(low: int, high: int) -> Kind:
    """A whole number within bounds, or "auto" = None."""
    return _or_auto(count(low, high))


def fraction() -> Kind:
    """A number above 0, at most 1."""

    def parse(value: Any) -> float:
        _expect(value, (int, float), "a number above 0, at most 1")
        if not 0 < value <= 1:
            raise ValueError(f"is {value}, must be above 0, at most 1")
        return float(value)

    return Kind("fraction", "above 0, at most 1", parse, lambda value: f"{value:g}", _read_number)


def _show_bytes(value: int) -> str:
    """Exact, unlike format_bytes: the largest binary unit that divides."""
    shown = format_bytes(value)
    return shown if parse_bytes(shown) == value else f"{value}B"


def size(low: str, high: str = "", *, bounds: str = "") -> Kind:
    """Bytes, written with their unit.  `bounds` says what other keys bound it by, where they do."""
    low_bytes, high_bytes = parse_bytes(low), parse_bytes(high) if high else float("inf")

    def parse(value: Any) -> int:
        _expect(value, str, 'a size in quotes, with its unit, e.g. "64GiB"')
        found = parse_bytes(value)
        _within(found, low_bytes, high_bytes, _show_bytes)
        return found

    bounds = bounds or _range(low_bytes, high_bytes, _show_bytes)
    return Kind("bytes", bounds, parse, lambda value: toml_text(_show_bytes(value)))


def size_or_auto(low: str, high: str) -> Kind:
    """Bytes, or "auto" = None."""
    return _or_auto(size(low, high))


def _show_seconds(value: float) -> str:
    """Exact, in hours or minutes where they divide."""
    for scale, unit in ((3600, "h"), (60, "m")):
        if value >= scale and value % scale == 0:
            return f"{value // scale:.0f}{unit}"
    shown = format_seconds(value)
    return shown if parse_seconds(shown) == value else f"{value!r}s"


def duration(low: str, high: str) -> Kind:
    """Seconds, written with their unit."""
    low_seconds, high_seconds = parse_seconds(low), parse_seconds(high)

    def parse(value: Any) -> float:
        _expect(value, str, 'a duration in quotes, with its unit, e.g. "10s" or "250ms"')
        found = parse_seconds(value)
        _within(found, low_seconds, high_seconds, _show_seconds)
        return found

    bounds = _range(low_seconds, high_seconds, _show_seconds)
    return Kind("seconds", bounds, parse, lambda value: toml_text(_show_seconds(value)))


def mode() -> Kind:
    """Permission bits in octal, e.g. "0660"."""

    def parse(value: Any) -> int:
        _expect(value, str, 'permission bits in quotes, e.g. "0660"')
        if len(value) != 4 or not set(value) <= set("01234567") or value[0] != "0":
            raise ValueError(f'is {value!r}, must be four octal digits, e.g. "0660"')
        bits = int(value, 8)
        if bits & 0o600 != 0o600:
            raise ValueError(f"is {value!r}: the daemon's own user must read and write (06xx)")
        return bits

    return Kind("octal mode", '"0600" to "0777"', parse, lambda value: toml_text(f"{value:04o}"))


def _uid(value: object) -> int:
    digits = str(value)
    if isinstance(value, bool) or not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{value!r} is not a user id")
    if int(digits) > UID_MAX:
        raise ValueError(f"user id {digits} is above {UID_MAX}")
    return int(digits)


def uid_list() -> Kind:
    """User ids."""

    def parse(value: Any) -> tuple[int, ...]:
        _expect(value, list, "a list of user ids, e.g. [0, 1000]")
        return tuple(_uid(item) for item in value)

    def read(written: str) -> Any:
        return [item.strip() for item in written.split(",") if item.strip()]

    return Kind("user ids", "", parse, lambda value: str(list(value)), read)


def uid_table() -> Kind:
    """User id -> domain."""
    domain = text()

    def parse(value: Any) -> dict[int, str]:
        _expect(value, dict, 'a table, e.g. uids = { "1000" = "team-a" }')
        return {_uid(uid): domain.parse(name) for uid, name in value.items()}

    def show(value: Mapping[int, str]) -> str:
        entries = ", ".join(f'"{uid}" = {toml_text(name)}' for uid, name in sorted(value.items()))
        return f"{{ {entries} }}" if entries else "{}"

    return Kind("user id = domain", "", parse, show, is_table=True)


def entries(
    name: str, bounds: str, parse: Callable[[object], Any], example: str, entries_max: int
) -> Kind:
    """A list, each entry read by `parse` (ValueError: "is ...") and shown by str(); one text with
    commas between them is a list, too."""

    def parse_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f'is {value!r}, must be a list, e.g. ["{example}"]')
        if len(value) > entries_max:
            raise ValueError(f"has {len(value)} entries, limit {entries_max}")
        found = []
        for number, entry in enumerate(value, 1):
            try:
                found.append(parse(entry))
            except ValueError as error:
                raise ValueError(f"has a wrong entry: number {number} {error}") from error
        return tuple(found)

    def show(value: Sequence[Any]) -> str:
        return f"[{', '.join(toml_text(str(entry)) for entry in value)}]"

    def read(written: str) -> Any:
        return [entry.strip() for entry in written.split(",") if entry.strip()]

    return Kind(name, bounds, parse_all, show, read)
