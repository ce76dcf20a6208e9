"""Goal: a stream of frames with payloads is cut rightly however it arrives, and a payload lands
where it belongs and nowhere else.
Method: the same stream in every kind of pieces; hostile headers; replies that come late.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import InvalidRequest
from anchorstore.transport import frames
from anchorstore.transport.frames import Frame, Kind, Method
from anchorstore.transport.stream import INBOX_BYTES, Receiver


def fed(receiver: Receiver, data: bytes, step: int) -> list[Frame]:
    """What comes out when `data` arrives in pieces of at most `step` bytes."""
    found: list[Frame] = []
    while data:
        buffer = receiver.buffer()
        assert len(buffer) > 0
        size = min(step, len(buffer), len(data))
        buffer[:size] = data[:size]
        data = data[size:]
        receiver.filled(size)
        while (frame := receiver.next()) is not None:
            found.append(frame)
    return found


def read_reply(call_id: int, payload: bytes, body: bytes = b"") -> bytes:
    return frames.encode(Kind.REPLY, Method.READ, call_id, body, len(payload)) + payload


@given(
    st.lists(st.integers(0, 2000), max_size=8),
    st.integers(1, 5000),
    st.integers(0, 3 * INBOX_BYTES),
)
def test_receiver_in_any_pieces_finds_every_frame(
    sizes: list[int], step: int, payload_bytes: int
) -> None:
    wanted, payload = len(sizes), bytes(range(256)) * (payload_bytes // 256)
    stream = b"".join(
        frames.encode(Kind.REPLY, Method.LOOKUP, number, bytes([number]) * size)
        for number, size in enumerate(sizes)
    )
    stream += read_reply(wanted, payload) + frames.encode(Kind.REPLY, Method.RENEW, 99, b"end")
    receiver, into = Receiver(), bytearray(len(payload))
    receiver.expect(wanted, memoryview(into) if payload else None)
    found = fed(receiver, stream, step)
    assert [frame.header.call_id for frame in found] == [*range(wanted + 1), 99]
    assert [frame.body for frame in found[:-2]] == [bytes([i]) * n for i, n in enumerate(sizes)]
    assert bytes(into) == payload and found[-1].body == b"end"


def test_receiver_with_a_body_above_its_inbox_grows_and_shrinks_again() -> None:
    receiver, body = Receiver(), bytes(5 * INBOX_BYTES)
    stream = frames.encode(Kind.REPLY, Method.LOOKUP, 1, body)
    assert [len(frame.body) for frame in fed(receiver, stream, 10_000)] == [len(body)]
    assert len(receiver.buffer()) == INBOX_BYTES


def test_payload_of_a_late_reply_goes_to_nobody() -> None:
    receiver, into = Receiver(), bytearray(4)
    receiver.expect(2, memoryview(into))
    found = fed(receiver, read_reply(1, b"late") + read_reply(2, b"mine"), 7)
    assert [frame.header.call_id for frame in found] == [1, 2]
    assert bytes(into) == b"mine"


def test_payload_of_another_size_than_expected_ends_the_stream() -> None:
    receiver = Receiver()
    receiver.expect(1, memoryview(bytearray(5)))
    with pytest.raises(InvalidRequest, match="payload of 4 bytes, expected 5"):
        fed(receiver, read_reply(1, b"four"), 100)


def test_payload_half_way_is_known_to_write_into_the_destination() -> None:
    receiver, into = Receiver(), bytearray(4)
    receiver.expect(1, memoryview(into))
    fed(receiver, read_reply(1, b"mine")[:-2], 100)
    assert receiver.writes_into_destination
    fed(receiver, b"ne", 100)
    assert not receiver.writes_into_destination


@pytest.mark.parametrize(
    "header",
    [
        b"XX" + bytes(22),
        frames.HEADER.pack(b"AS", 9, 2, 7, 0, 1, 0, 0),
        frames.HEADER.pack(b"AS", 1, 2, 7, 0, 1, frames.BODY_BYTES_MAX + 1, 0),
        frames.HEADER.pack(b"AS", 1, 2, 7, 0, 1, 0, 5),
    ],
)
def test_header_that_breaks_the_rules_ends_the_stream(header: bytes) -> None:
    with pytest.raises(InvalidRequest):
        fed(Receiver(), header, 100)
