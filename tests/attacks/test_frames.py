"""Goal: no bytes on a socket can make the frame parser crash, hang, grow or misread.

Method: Hypothesis writes random bytes, mutated and truncated frames, and cuts valid streams at
random places; the parser may answer only with the frames that were sent or InvalidRequest.
"""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.errors import InvalidRequest
from anchorstore.transport import frames
from anchorstore.transport.frames import HEADER, HEADER_BYTES, Kind, Method, Parser
from anchorstore.wire.v1 import store_pb2

MANY = settings(max_examples=1000, deadline=None)
BODIES = st.binary(max_size=200)
FRAMES = st.tuples(
    st.sampled_from(list(Kind)), st.sampled_from(list(Method)), st.integers(0, 2**32 - 1), BODIES
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at `places` (modulo its length)."""
    stops = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(stops)]


@MANY
@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(0, 10**6), max_size=12))
def test_parser_fed_in_any_pieces_returns_what_was_sent(
    sent: list[tuple[Kind, Method, int, bytes]], places: list[int]
) -> None:
    parser = Parser()
    stream = b"".join(frames.encode(*frame) for frame in sent)
    found = [frame for piece in cut(stream, places) for frame in parser.feed(piece)]
    assert [(f.header.kind, f.header.method, f.header.call_id, f.body) for f in found] == sent
    assert parser.held_bytes == 0


@MANY
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_parser_fed_garbage_refuses_or_waits_within_its_bound(pieces: list[bytes]) -> None:
    parser = Parser()
    try:
        for piece in pieces:
            parser.feed(piece)
            assert parser.held_bytes <= HEADER_BYTES + frames.BODY_BYTES_MAX
    except InvalidRequest as error:
        assert str(error)


@MANY
@given(FRAMES, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_header_with_one_byte_changed_is_refused_or_consistent(
    frame: tuple[Kind, Method, int, bytes], place: int, change: int
) -> None:
    data = bytearray(frames.encode(*frame))
    data[place] ^= change
    try:
        found = Parser().feed(bytes(data))
    except InvalidRequest:
        return
    for item in found:
        assert item.header.body_bytes == len(item.body) <= len(frame[3])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ((b"XX", 1, 1, 1, 0, 0, 0, 0), "XX"),
        ((b"AS", 9, 1, 1, 0, 0, 0, 0), "version 9"),
        ((b"AS", 1, 7, 1, 0, 0, 0, 0), "kind 7"),
        ((b"AS", 1, 1, 999, 0, 0, 0, 0), "method 999"),
        ((b"AS", 1, 1, 1, 5, 0, 0, 0), "reserved field is 5"),
        ((b"AS", 1, 1, 1, 0, 0, 2**31, 0), str(frames.BODY_BYTES_MAX)),
        ((b"AS", 1, 1, 17, 0, 0, 0, 1), "limit 0"),
    ],
)
def test_header_that_breaks_a_rule_names_value_and_limit(
    fields: tuple[int, ...], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named):
        Parser().feed(HEADER.pack(*fields))


def test_payload_where_the_carrier_takes_it_is_bounded() -> None:
    write = HEADER.pack(b"AS", 1, Kind.REQUEST, Method.WRITE, 0, 1, 0, 4096)
    assert frames.parse_header(write, payload_bytes_max=4096).payload_bytes == 4096
    with pytest.raises(InvalidRequest, match="limit 4095"):
        frames.parse_header(write, payload_bytes_max=4095)
    attach = HEADER.pack(b"AS", 1, Kind.REQUEST, Method.ATTACH, 0, 1, 0, 1)
    with pytest.raises(InvalidRequest, match="limit 0"):
        frames.parse_header(attach, payload_bytes_max=4096)


@MANY
@given(st.sampled_from(list(Method)), st.binary(max_size=400))
def test_body_of_any_bytes_is_a_message_or_refused(method: Method, body: bytes) -> None:
    for cls in frames.MESSAGES[method]:
        try:
            message = frames.parse_body(cls, body)
        except InvalidRequest as error:
            assert cls.__name__ in str(error)
        else:
            assert isinstance(message, cls)


def test_every_method_has_messages_and_a_number_of_its_own() -> None:
    assert set(frames.MESSAGES) == set(Method)
    assert len({int(method) for method in Method}) == len(Method)
    assert frames.MESSAGES[Method.LOOKUP][0] is store_pb2.LookupRequest


def test_header_is_24_little_endian_bytes() -> None:
    data = frames.encode(Kind.REPLY, Method.READ, 0x01020304, b"xyz", payload_bytes=0x0A0B)
    assert data[:HEADER_BYTES].hex() == "415301021200000004030201030000000b0a000000000000"
    assert struct.calcsize("<2sBBHHIIQ") == HEADER_BYTES
