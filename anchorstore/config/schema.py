"""The whole configuration, and the list of its keys.  Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from anchorstore.config.access import AuthConfig, ListenConfig, LogConfig, NodeConfig, TlsConfig
from anchorstore.config.fields import Setting, settings_of
from anchorstore.config.limits import LimitsConfig
from anchorstore.config.storage import (
    DeadlinesConfig,
    LeaseConfig,
    NamespacesConfig,
    TiersConfig,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Everything that `anchorstore serve` goes by.  Built by load(); immutable."""

    node: NodeConfig = dataclasses.field(default_factory=NodeConfig)
    listen: ListenConfig = dataclasses.field(default_factory=ListenConfig)
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    auth: AuthConfig = dataclasses.field(default_factory=AuthConfig)
    tiers: TiersConfig = dataclasses.field(default_factory=TiersConfig)
    lease: LeaseConfig = dataclasses.field(default_factory=LeaseConfig)
    limits: LimitsConfig = dataclasses.field(default_factory=LimitsConfig)
    deadlines: DeadlinesConfig = dataclasses.field(default_factory=DeadlinesConfig)
    namespaces: NamespacesConfig = dataclasses.field(default_factory=NamespacesConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)


SETTINGS: tuple[Setting, ...] = tuple(settings_of(Config()))
"""Every key, in the order of the file."""

BY_KEY: dict[str, Setting] = {item.key: item for item in SETTINGS}


def section_docs() -> dict[str, str]:
    """One line about each section, by its key, in the order of the file."""
    docs: dict[str, str] = {}

    def visit(section: Any, key: str) -> None:
        if any("kind" in field.metadata for field in dataclasses.fields(section)):
            docs[key] = (type(section).__doc__ or "").strip()
        for field in dataclasses.fields(section):
            if "kind" not in field.metadata:
                visit(getattr(section, field.name), f"{key}.{field.name}".lstrip("."))

    visit(Config(), "")
    return docs


def value_of(config: Config, item: Setting) -> object:
    """The value of one key."""
    found: object = config
    for attribute in item.attributes:
        found = getattr(found, attribute)
    return found


def build(values: dict[str, object]) -> Config:
    """The Config with `values` by key in place of the defaults.  KeyError for an unknown key."""

    def rebuilt(section: Any, prefix: str) -> Any:
        changes: dict[str, object] = {}
        for field in dataclasses.fields(section):
            if "kind" not in field.metadata:
                inner = getattr(section, field.name)
                changes[field.name] = rebuilt(inner, f"{prefix}{field.name}.")
        for item in SETTINGS:
            if item.section == prefix.rstrip(".") and item.key in values:
                changes[item.attributes[-1]] = values[item.key]
        return dataclasses.replace(section, **changes)

    unknown = set(values) - set(BY_KEY)
    if unknown:
        raise KeyError(f"unknown keys: {sorted(unknown)}")
    config = rebuilt(Config(), "")
    assert isinstance(config, Config)
    return config
