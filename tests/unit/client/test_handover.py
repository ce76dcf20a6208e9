"""Goal: what one process hands to another arrives whole; anything else is refused.
Method: round trips, then damage.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.client.attachment import Attachment
from anchorstore.client.handover import (
    SessionRecord,
    WindowRecord,
    decode_session,
    decode_window,
    encode_session,
    encode_window,
)
from anchorstore.errors import InvalidRequest
from anchorstore.keys import canonical_cbor
from anchorstore.wire.v1 import store_pb2 as store

ATTACHMENT = Attachment(
    session_id=b"s" * 16,
    boot_id=b"b" * 16,
    domain="team",
    root_digest=b"r" * 32,
    block_bytes=(32768, 3072),
    staging_bytes=0,
    max_pages=16384,
    max_lineage=16,
    read_ttl_seconds=10.0,
)


def test_session_token_round_trip_keeps_everything() -> None:
    record = SessionRecord("unix:///run/s", 64, ATTACHMENT)
    assert decode_session(encode_session(record)) == record


def test_session_token_hands_over_no_staging_memory() -> None:
    import dataclasses

    writer = dataclasses.replace(ATTACHMENT, staging_bytes=4096)
    token = encode_session(SessionRecord("unix:///run/s", 64, writer))
    assert decode_session(token).attachment.staging_bytes == 0


def test_window_round_trip_keeps_everything() -> None:
    reply = store.LookupResponse(boundary_pages=9, resume_pages=8, lease_id=7)
    reply.columns.add(layout=1, first_page=2, places=bytes(19) + b"\1")
    record = WindowRecord(ATTACHMENT, reply, 123.5, 9.5)
    assert decode_window(encode_window(record)) == record


@given(st.binary(max_size=200))
def test_handover_of_any_bytes_is_refused_or_read(data: bytes) -> None:
    for decode in (decode_session, decode_window):
        with pytest.raises(InvalidRequest):
            decode(data)


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_handover_cut_short_is_refused(cut: int) -> None:
    token = encode_session(SessionRecord("unix:///run/s", 64, ATTACHMENT))
    with pytest.raises(InvalidRequest):
        decode_session(token[:-cut])


def test_handover_of_another_kind_is_refused() -> None:
    token = encode_session(SessionRecord("unix:///run/s", 64, ATTACHMENT))
    with pytest.raises(InvalidRequest, match="anchorstore/window/1"):
        decode_window(token)


def test_handover_with_a_field_missing_is_refused() -> None:
    fields = {"format": "anchorstore/session/1", "address": "unix:///s", "page_tokens": 64}
    with pytest.raises(InvalidRequest, match="attachment is missing"):
        decode_session(canonical_cbor(fields))
    with pytest.raises(InvalidRequest, match="missing or unknown"):
        decode_session(canonical_cbor(fields | {"attachment": {"domain": "x"}}))
