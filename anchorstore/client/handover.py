"""What one process hands to another so that it can read under the same lease.  Canonical CBOR.

::

    scheduler: client.session_token  --> worker: Client.join(token)         once
    scheduler: window.export()       --> worker: client.open_window(bytes)  a request

The staging memory stays with the process that attached: only that one writes.

Both carry the session's id, which is the right to be in it: hand them to your own processes only.
A lease's end crosses twice, as a moment of the host's monotonic clock and as seconds left; the
reader believes whichever is earlier.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cbor2

from anchorstore.client.attachment import Attachment
from anchorstore.errors import InvalidRequest
from anchorstore.keys import canonical_cbor
from anchorstore.transport.device_memory import SlabExport
from anchorstore.transport.frames import parse_body
from anchorstore.wire.v1 import store_pb2 as store

TOKEN_FORMAT = "anchorstore/session/1"
WINDOW_FORMAT = "anchorstore/window/1"
_FIELDS = tuple(field.name for field in dataclasses.fields(Attachment))


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRecord:
    """What a joining process needs to know."""

    address: str
    page_tokens: int
    attachment: Attachment


@dataclasses.dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window in transit."""

    attachment: Attachment
    reply: store.LookupResponse
    expires_at: float
    left_seconds: float


def encode_session(record: SessionRecord) -> bytes:
    """`record` for Client.join."""
    return canonical_cbor(
        {
            "format": TOKEN_FORMAT,
            "address": record.address,
            "page_tokens": record.page_tokens,
            "attachment": _plain(record.attachment),
        }
    )


def decode_session(data: bytes) -> SessionRecord:
    """The record in `data`; InvalidRequest where it is none."""
    fields = _load(data, TOKEN_FORMAT, {"address": str, "page_tokens": int, "attachment": dict})
    return SessionRecord(
        fields["address"], fields["page_tokens"], _attachment(fields["attachment"])
    )


def encode_window(record: WindowRecord) -> bytes:
    """`record` for Client.open_window."""
    return canonical_cbor(
        {
            "format": WINDOW_FORMAT,
            "attachment": _plain(record.attachment),
            "reply": record.reply.SerializeToString(),
            "expires_at": record.expires_at,
            "left_seconds": record.left_seconds,
        }
    )


def decode_window(data: bytes) -> WindowRecord:
    """The record in `data`; InvalidRequest where it is none."""
    kinds = {"attachment": dict, "reply": bytes, "expires_at": float, "left_seconds": float}
    fields = _load(data, WINDOW_FORMAT, kinds)
    reply = parse_body(store.LookupResponse, fields["reply"])
    assert isinstance(reply, store.LookupResponse)
    return WindowRecord(
        _attachment(fields["attachment"]), reply, fields["expires_at"], fields["left_seconds"]
    )


def _plain(attachment: Attachment) -> dict[str, Any]:
    fields = {name: getattr(attachment, name) for name in _FIELDS}
    slab = None if attachment.slab is None else list(dataclasses.astuple(attachment.slab))
    sizes = list(attachment.block_bytes)
    return fields | {"block_bytes": sizes, "staging_bytes": 0, "slab": slab}


def _attachment(fields: dict[str, Any]) -> Attachment:
    if set(fields) != set(_FIELDS):
        raise InvalidRequest("handed-over attachment: fields are missing or unknown")
    sizes = fields["block_bytes"]
    is_whole = isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    if not is_whole or not isinstance(fields["session_id"], bytes):
        raise InvalidRequest("handed-over attachment: a field has the wrong type")
    return Attachment(**(fields | {"block_bytes": tuple(sizes), "slab": _slab(fields["slab"])}))


def _slab(written: Any) -> SlabExport | None:
    if written is None:
        return None
    kinds = (str, bytes, int, int)
    if not (isinstance(written, list) and tuple(map(type, written)) == kinds):
        raise InvalidRequest("handed-over attachment: its slab is none")
    return SlabExport(*written)


def _load(data: bytes, format_name: str, kinds: dict[str, type]) -> dict[str, Any]:
    try:
        fields = cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, EOFError) as error:
        raise InvalidRequest(f"handed-over bytes are not CBOR: {error}") from error
    if not isinstance(fields, dict) or fields.get("format") != format_name:
        raise InvalidRequest(f"handed-over bytes are not {format_name}")
    for name, kind in kinds.items():
        value = fields.get(name)
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise InvalidRequest(f"handed-over bytes: {name} is missing or no {kind.__name__}")
    return fields
