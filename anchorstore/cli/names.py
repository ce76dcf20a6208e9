"""From what an operator types to one namespace of the daemon."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence

from anchorstore.cli.connection import Connection
from anchorstore.cli.namespace_table import names_text
from anchorstore.errors import InvalidKey, UsageError
from anchorstore.keys import DIGEST_BYTES
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import admin_pb2

PREFIX_LETTERS_MIN = 4
_HASH = re.compile(f"[0-9a-fA-F]{{{2 * DIGEST_BYTES}}}")
HELP = (
    f"a namespace: its root digest or the first letters of it, at least {PREFIX_LETTERS_MIN}, "
    "its model, or domain/model"
)


def add_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Adds the positional NAMESPACE."""
    parser.add_argument(
        "namespace", metavar="NAMESPACE", nargs="?" if optional else None, help=HELP
    )


def namespaces(daemon: Connection) -> list[admin_pb2.NamespaceStatus]:
    """Every namespace that the caller may see."""
    answer = daemon.call(Method.LIST, admin_pb2.ListRequest(), admin_pb2.ListResponse)
    return list(answer.namespaces)


def resolve_all(
    spaces: Sequence[admin_pb2.NamespaceStatus], wanted: str
) -> list[admin_pb2.NamespaceStatus]:
    """Every namespace that `wanted` fits, say all salts of a model; UsageError for none."""
    return [space for space in spaces if _fits(space, wanted)] or [resolve(spaces, wanted)]


def resolve(
    spaces: Sequence[admin_pb2.NamespaceStatus], wanted: str | None
) -> admin_pb2.NamespaceStatus:
    """The one namespace meant by `wanted`; None means the only one there is.

    UsageError says what there is where none or several fit.
    """
    found = [space for space in spaces if wanted is None or _fits(space, wanted)]
    if len(found) == 1:
        return found[0]
    subject = "no namespace was named" if wanted is None else f"namespace {wanted!r}"
    if not spaces:
        raise UsageError(f"{subject}: the daemon has none")
    reason = f"{len(found)} fit, name one by its root digest" if found else "none fits; there are"
    if wanted is not None and len(wanted) < PREFIX_LETTERS_MIN and not found:
        reason = f"none fits, a root digest's start has {PREFIX_LETTERS_MIN} letters; there are"
    listed = textwrap.indent(names_text(found or spaces).rstrip("\n"), "  ")
    raise UsageError(f"{subject}: {reason}:\n{listed}")


def _fits(space: admin_pb2.NamespaceStatus, wanted: str) -> bool:
    if wanted in (space.model, f"{space.domain}/{space.model}"):
        return True
    enough = len(wanted) >= PREFIX_LETTERS_MIN
    return enough and space.root_digest.hex().startswith(wanted.lower())


def parse_hash(text: str) -> bytes:
    """The 32 bytes of one path hash in hex; InvalidKey otherwise."""
    if not _HASH.fullmatch(text):
        raise InvalidKey(
            f"path hash {text!r} has {len(text)} characters, must have {2 * DIGEST_BYTES} "
            "hexadecimal letters, as `anchorstore ls NAMESPACE --json` prints them"
        )
    return bytes.fromhex(text)
