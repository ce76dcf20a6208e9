"""How a configuration key is declared: one dataclass field with its kind, meaning and default.

An attribute carries its unit (`capacity_bytes`); the key in the file does not, because the value
does (`capacity = "64GiB"`).  Reference pages, annotated files and the loader are all made from the
fields, so that a key exists in one place.  Pure.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from anchorstore.config.values import Kind

_UNIT_SUFFIX = {"bytes": "_bytes", "seconds": "_seconds"}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One key as people see it.

    Attributes:
        key: dotted, e.g. "tiers.dram.capacity".
        attributes: way from Config to the value, e.g. ("tiers", "dram", "capacity_bytes").
    """

    key: str
    attributes: tuple[str, ...]
    kind: Kind
    default: Any
    meaning: str
    when: str

    @property
    def section(self) -> str:
        """The key without its last part."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]


def setting(kind: Kind, default: Any, meaning: str, when: str) -> Any:
    """A dataclass field.  `default` is written as in a file; `when` = when to change it."""
    parsed = kind.parse(default)
    metadata = {"kind": kind, "meaning": meaning, "when": when}
    if isinstance(parsed, dict):
        return dataclasses.field(default_factory=lambda: dict(parsed), metadata=metadata)
    return dataclasses.field(default=parsed, metadata=metadata)


def key_name(field: dataclasses.Field[Any]) -> str:
    """The last part of a field's key: its name without the unit."""
    suffix = _UNIT_SUFFIX.get(field.metadata["kind"].unit, "")
    assert field.name.endswith(suffix), f"{field.name} must end with {suffix}"
    return field.name.removesuffix(suffix)


def settings_of(section: Any, prefix: str = "", way: tuple[str, ...] = ()) -> list[Setting]:
    """Every setting below `section`, an instance of a section with its defaults, in order."""
    found = []
    for field in dataclasses.fields(section):
        default, there = getattr(section, field.name), (*way, field.name)
        if "kind" not in field.metadata:
            found += settings_of(default, f"{prefix}{field.name}.", there)
            continue
        data = field.metadata
        found.append(
            Setting(
                prefix + key_name(field),
                there,
                data["kind"],
                default,
                data["meaning"],
                data["when"],
            )
        )
    return found
