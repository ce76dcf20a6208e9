"""The configuration for people: annotated file, values with sources, reference page.  Pure."""

from __future__ import annotations

import dataclasses
import textwrap

from anchorstore.config.fields import Setting
from anchorstore.config.loader import ENVIRONMENT_PREFIX, Loaded
from anchorstore.config.schema import SETTINGS, Config, section_docs, value_of

WIDTH = 96
_RULE_EXAMPLE = """\
# [[namespaces.rules]]
# domain = "team-a"
# model = "Qwen/Qwen3.5-4B"
# quota = "16GiB"
# nvme_quota = "1TiB"
# max_lineage = 0
"""


def environment_name(item: Setting) -> str:
    """The environment variable that sets a key, e.g. ANCHORSTORE__TIERS__DRAM__CAPACITY."""
    return ENVIRONMENT_PREFIX + item.key.upper().replace(".", "__")


def _comment(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def defaults_toml() -> str:
    """A file with every key at its default, each explained; it loads to the defaults."""
    out = [
        "# anchorstore: every key with its default.  Keep what you change, leave out the rest.",
        "# Order: default < this file < environment < --set KEY=VALUE.  Unknown keys are refused.",
    ]
    for section, about in section_docs().items():
        out += ["", f"# {'-' * (WIDTH - 2)}", _comment(about), f"[{section}]"]
        for item in SETTINGS:
            if item.section == section:
                bounds = f"  ({item.kind.bounds})" if item.kind.bounds else ""
                out += ["", _comment(f"{item.meaning}{bounds}"), _comment(f"When: {item.when}")]
                out.append(f"{item.name} = {item.kind.show(item.default)}")
        if section == "namespaces":
            out += [*_RULE_EXAMPLE.splitlines()]
    return "\n".join(out) + "\n"


def values_text(loaded: Loaded) -> str:
    """One line a key: value, then its source as a comment.  Valid TOML."""
    lines = [
        (f"{item.key} = {item.kind.show(value_of(loaded.config, item))}", loaded.sources[item.key])
        for item in SETTINGS
    ]
    width = max(len(line) for line, _ in lines if len(line) < WIDTH // 2 + 20)
    return "".join(f"{line:<{width}}  # {source}\n" for line, source in lines)


def values_plain(loaded: Loaded) -> dict[str, dict[str, object]]:
    """By key: value in base units, as it is written, its unit and its source.  For JSON."""
    return {
        item.key: {
            "value": _plain(item, loaded.config),
            "written": item.kind.show(value_of(loaded.config, item)),
            "unit": item.kind.unit,
            "source": loaded.sources[item.key],
        }
        for item in SETTINGS
    }


def _plain(item: Setting, config: Config) -> object:
    value = value_of(config, item)
    if item.key in ("namespaces.rules", "tiers.nvme.devices", "tiers.hbm.devices"):
        assert isinstance(value, tuple), value
        return [dataclasses.asdict(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): entry for key, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("  ", " ")


def reference_markdown() -> str:
    """The reference of every key, a table a section, for docs/operations.md."""
    out = []
    for section, about in section_docs().items():
        out += [f"### [{section}]", "", about, ""]
        out += [
            "| key | default | unit, bounds | meaning | when to change |",
            "|---|---|---|---|---|",
        ]
        for item in SETTINGS:
            if item.section == section:
                unit = (
                    f"{item.kind.unit}: {item.kind.bounds}" if item.kind.bounds else item.kind.unit
                )
                cells = (f"`{item.name}`", f"`{item.kind.show(item.default)}`", unit)
                row = " | ".join(map(_cell, (*cells, item.meaning, item.when)))
                out.append(f"| {row} |")
        out.append("")
    return "\n".join(out)
