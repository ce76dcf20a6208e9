"""Namespaces and layouts as the journal writes them, each with the number that entries use.  Pure.

Fixed fields and lengths, no general decoder: the bytes may be anybody's.  `read_*` answer None for
whatever `write_*` would not have written.
"""

from __future__ import annotations

import dataclasses
import struct

from anchorstore.errors import InvalidKey, SpecMismatch
from anchorstore.keys import DIGEST_BYTES, Namespace
from anchorstore.layout import ENCODED_BYTES_MAX, Layout, layout_from_cbor

_NAMESPACE = struct.Struct("<IIBB2xHHHH32s")
"""Number, page tokens, max lineage, 1 where its kill switch is on, lengths, weights."""
_KIND = struct.Struct("<IHHHH")  # number, component, first head, end of heads, layout's bytes

NAMESPACES_MAX = 65_536
KINDS_MAX = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceNote:
    """A namespace, the deepest lineage that it stores, and whether it is served: its kill switch is
    not on."""

    namespace: Namespace
    max_lineage: int
    enabled: bool = True


def write_namespace(number: int, note: NamespaceNote) -> bytes:
    """Payload of a NAMESPACE frame."""
    space = note.namespace
    texts = [space.domain.encode(), space.model.encode(), space.adapter.encode(), space.salt]
    head = _NAMESPACE.pack(
        number,
        space.page_tokens,
        note.max_lineage,
        not note.enabled,
        *(len(text) for text in texts),
        space.weights_digest,
    )
    return head + b"".join(texts)


def read_namespace(payload: bytes) -> tuple[int, NamespaceNote] | None:
    """Number and namespace."""
    if len(payload) < _NAMESPACE.size:
        return None
    number, page_tokens, max_lineage, off, *lengths, weights = _NAMESPACE.unpack_from(payload)
    if len(payload) != _NAMESPACE.size + sum(lengths) or len(weights) != DIGEST_BYTES or off > 1:
        return None
    parts, at = [], _NAMESPACE.size
    for length in lengths:
        parts.append(payload[at : at + length])
        at += length
    try:
        domain, model, adapter = (part.decode() for part in parts[:3])
        space = Namespace(domain, model, weights, adapter, page_tokens, parts[3])
    except (UnicodeDecodeError, InvalidKey):
        return None
    return number, NamespaceNote(space, max_lineage, not off)


def write_kind(number: int, layout: Layout) -> bytes:
    """Payload of a KIND frame."""
    encoded = layout.encoded()
    heads = (layout.head_start, layout.head_stop)
    return _KIND.pack(number, layout.component, *heads, len(encoded)) + encoded


def read_kind(payload: bytes) -> tuple[int, Layout] | None:
    """Number and layout."""
    if not _KIND.size <= len(payload) <= _KIND.size + ENCODED_BYTES_MAX:
        return None
    number, component, head_start, head_stop, length = _KIND.unpack_from(payload)
    if len(payload) != _KIND.size + length:
        return None
    try:
        return number, layout_from_cbor(component, payload[_KIND.size :], head_start, head_stop)
    except SpecMismatch:
        return None
