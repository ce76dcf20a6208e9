"""From files, environment and command line to a Config, strictly.

::

    default  <  file  <  ANCHORSTORE__TIERS__DRAM__CAPACITY  <  --set tiers.dram.capacity=64GiB

An unknown key, a bad unit or a wrong combination is refused, all of them at once, each with where
it stands and the nearest name.  The only I/O is reading the one file.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorstore.config.combine import problems
from anchorstore.config.fields import Setting
from anchorstore.config.schema import BY_KEY, SETTINGS, Config, build
from anchorstore.errors import ConfigError

ENVIRONMENT_PREFIX = "ANCHORSTORE__"
FILE_BYTES_MAX = 1024 * 1024
_SECTIONS = {
    item.key.rsplit(".", depth)[0]
    for item in SETTINGS
    for depth in range(1, item.key.count(".") + 1)
}


@dataclasses.dataclass(frozen=True, slots=True)
class Override:
    """A value from the command line; `source` is the option as it was typed, e.g. "--dram"."""

    key: str
    text: str
    source: str = "--set"


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where each value comes from, by key ("default" where nowhere)."""

    config: Config
    sources: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """One value on its way: `value` is as TOML has it."""

    key: str
    value: Any
    source: str


def load(
    file: Path | None, environment: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Loaded:
    """The configuration; ConfigError lists everything that is wrong with it, a line each."""
    wrong: list[str] = []
    given = [
        *(_from_file(file) if file else ()),
        *_from_environment(environment, wrong),
        *_from_overrides(overrides, wrong),
    ]
    written: dict[str, Any] = {}
    sources: dict[str, str] = {item.key: "default" for item in SETTINGS}
    for item in given:
        if item.key not in BY_KEY:
            wrong.append(f"{item.source}: {_unknown(item.key)}")
            continue
        kind = BY_KEY[item.key].kind
        merged = kind.is_table and isinstance(item.value, dict) and item.key in written
        try:
            value = written[item.key] | item.value if merged else item.value
            kind.parse(value)
        except ValueError as error:
            wrong.append(f"{item.source}: {item.key} {_joined(error)}")
            continue
        sources[item.key] = f"{sources[item.key]}, {item.source}" if merged else item.source
        written[item.key] = value
    values: dict[str, object] = {key: BY_KEY[key].kind.parse(raw) for key, raw in written.items()}
    config = build(values)
    wrong = wrong or problems(config)
    if wrong:
        raise ConfigError(_report(wrong))
    return Loaded(config, sources)


def _joined(error: ValueError) -> str:
    """The kind's message as it follows the key: its own parsers start with "is" or "has"."""
    message = str(error)
    return message if message.startswith(("is ", "has ", "rule ")) else f"is wrong: {message}"


def _report(wrong: Sequence[str]) -> str:
    if len(wrong) == 1:
        return f"configuration: {wrong[0]}"
    lines = "".join(f"\n  {line}" for line in wrong)
    return f"configuration: {len(wrong)} problems{lines}"


def _unknown(key: str) -> str:
    if key in _SECTIONS:
        return f"{key} is a section, not a value"
    names = [item.key for item in SETTINGS] + sorted(_SECTIONS)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    last = key.rpartition(".")[2]
    near = near or [name for name in names if name.rpartition(".")[2] == last]
    hint = f"did you mean {near[0]}?" if near else "`anchorstore config defaults` lists every key"
    return f"unknown key {key}; {hint}"


def _from_file(file: Path) -> Iterator[_Given]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"configuration: cannot read {file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"configuration: {file} has {len(data)} bytes, limit {FILE_BYTES_MAX}")
    try:
        tree = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration: {file} is not TOML: {error}") from error
    yield from _flat(tree, "", str(file))


def _flat(tree: Mapping[str, Any], prefix: str, source: str) -> Iterator[_Given]:
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and key not in BY_KEY and (value or key not in _SECTIONS):
            yield from _flat(value, f"{key}.", source) if value else (_Given(key, value, source),)
        elif not (isinstance(value, dict) and key in _SECTIONS):
            yield _Given(key, value, source)


def _from_environment(environment: Mapping[str, str], wrong: list[str]) -> Iterator[_Given]:
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            yield from _from_text(key, environment[name], f"environment {name}", wrong)


def _from_overrides(overrides: Sequence[Override], wrong: list[str]) -> Iterator[_Given]:
    for item in overrides:
        yield from _from_text(item.key.strip(), item.text, item.source, wrong)


def _from_text(key: str, text: str, source: str, wrong: list[str]) -> Iterator[_Given]:
    table = _table_of(key)
    if table is not None:
        yield _Given(table.key, {key.removeprefix(f"{table.key}."): text}, source)
    elif key in BY_KEY and BY_KEY[key].kind.is_table:
        entry = f"{key}.NAME"
        wrong.append(f"{source}: {key} is a table, set its entries one by one: {entry}={text}")
    elif key in BY_KEY:
        try:
            yield _Given(key, BY_KEY[key].kind.read(text), source)
        except ValueError as error:
            wrong.append(f"{source}: {key} {_joined(error)}")
    else:
        yield _Given(key, text, source)


def _table_of(key: str) -> Setting | None:
    for item in SETTINGS:
        if item.kind.is_table and key.startswith(f"{item.key}."):
            return item
    return None


def parse_override(text: str) -> Override:
    """The Override in "tiers.dram.capacity=64GiB"; ConfigError where there is none."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r} is not KEY=VALUE, e.g. tiers.dram.capacity=64GiB")
    return Override(key.strip(), value.strip(), f"--set {key.strip()}")
