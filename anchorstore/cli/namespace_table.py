"""Namespaces as people read them: a line each, and what tells those of one model apart.

::

    NAMESPACE     DOMAIN  MODEL  WEIGHTS   ADAPTER       PAGE TOKENS  SALT  PAGES  ...
    000102030405  team-a  qwen   5f1c09aa  sql:77e2b01c           64  yes   1,200

A column that says nothing of any of them (no adapter, no salt, no nvme) is left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from anchorstore.cli.output import digest, number, table
from anchorstore.keys import LINEAGE_ANY
from anchorstore.units import format_bytes
from anchorstore.wire.v1.admin_pb2 import NamespaceStatus

DIGITS_SHOWN = 8
_WHOLE_DIGEST = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, a namespace's cell, and whether a namespace needs it (None: all)."""

    header: str
    cell: Callable[[NamespaceStatus], str]
    is_needed: Callable[[NamespaceStatus], bool] | None = None
    side: str = "r"


def _quota(quota_bytes: int) -> str:
    return format_bytes(quota_bytes) if quota_bytes else "none"


def _lineage(space: NamespaceStatus) -> str:
    return "any" if space.max_lineage == LINEAGE_ANY else str(space.max_lineage)


def _adapter(space: NamespaceStatus) -> str:
    """The adapter's identity, a digest in it cut short; "-" for none."""
    return _WHOLE_DIGEST.sub(lambda found: found[0][:DIGITS_SHOWN], space.adapter) or "-"


def _has_nvme(space: NamespaceStatus) -> bool:
    return bool(space.nvme_bytes or space.nvme_quota_bytes)


NAME = (
    Column("NAMESPACE", lambda space: digest(space.root_digest), side="l"),
    Column("DOMAIN", lambda space: space.domain, side="l"),
    Column("MODEL", lambda space: space.model, side="l"),
    Column(
        "WEIGHTS",
        lambda space: digest(space.weights_digest)[:DIGITS_SHOWN],
        lambda space: bool(space.weights_digest),
        side="l",
    ),
    Column("ADAPTER", _adapter, lambda space: bool(space.adapter), side="l"),
    Column(
        "PAGE TOKENS",
        lambda space: number(space.page_tokens),
        lambda space: bool(space.page_tokens),
    ),
    Column(
        "SALT", lambda space: "yes" if space.salted else "no", lambda space: space.salted, side="l"
    ),
)
"""What tells namespaces apart."""

STATE = (
    Column("PAGES", lambda space: number(space.pages)),
    Column("USED", lambda space: format_bytes(space.bytes)),
    Column("QUOTA", lambda space: _quota(space.quota_bytes)),
    Column(
        "RESERVED",
        lambda space: _quota(space.share_bytes),
        lambda space: bool(space.share_bytes),
    ),
    Column("NVME", lambda space: format_bytes(space.nvme_bytes), _has_nvme),
    Column("NVME QUOTA", lambda space: _quota(space.nvme_quota_bytes), _has_nvme),
    Column(
        "NVME RESERVED",
        lambda space: _quota(space.nvme_share_bytes),
        lambda space: bool(space.nvme_share_bytes),
    ),
    Column("LINEAGE", _lineage),
    Column("SESSIONS", lambda space: number(space.sessions)),
    Column("STATE", lambda space: "on" if space.enabled else "OFF", side="l"),
)


def names_text(namespaces: Iterable[NamespaceStatus]) -> str:
    """A line a namespace: what it is, not how it is."""
    return _text(list(namespaces), NAME)


def namespaces_text(namespaces: Iterable[NamespaceStatus]) -> str:
    """A line a namespace, under the columns that one of them needs."""
    return _text(list(namespaces), NAME + STATE)


def _text(spaces: Sequence[NamespaceStatus], columns: Sequence[Column]) -> str:
    shown = [
        column
        for column in columns
        if column.is_needed is None or any(map(column.is_needed, spaces))
    ]
    rows = [[column.cell(space) for column in shown] for space in spaces]
    sides = "".join(column.side for column in shown)
    return table([column.header for column in shown], rows, sides)
