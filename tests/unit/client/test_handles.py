"""Goal: fetched bytes are the sealed ones or an error, and a window's end is an end.
Method: windows of a scripted remote daemon whose replies are right, damaged, or late.
"""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from anchorstore.client import NeedLast, lookups
from anchorstore.client.blocks import BlocksBase
from anchorstore.client.effects import Call
from anchorstore.client.handles import WindowBase
from anchorstore.errors import (
    BootChanged,
    ChecksumMismatch,
    ConnectFailed,
    HandleClosed,
    InvalidRequest,
    LeaseExpired,
    UnknownSession,
)
from anchorstore.transport.frames import Method
from anchorstore.transport.segment import PLACE
from anchorstore.wire.v1 import store_pb2 as store
from tests.unit.client.scripted import BLOCK_BYTES, Answer, Script, attach, scripted

COUNT = 3
BLOCKS = [bytes([number + 1]) * BLOCK_BYTES for number in range(COUNT)]


def found(request: store.LookupRequest, call: Call) -> store.LookupResponse:
    reply = store.LookupResponse(boundary_pages=3, resume_pages=3, lease_id=5)
    places = np.zeros(COUNT, PLACE)
    places["checksum"] = [xxhash.xxh3_64_intdigest(block) for block in BLOCKS]
    reply.columns.add(places=places.tobytes())
    return reply


def reads(blocks: list[bytes]) -> Answer:
    def answer(request: store.ReadRequest, call: Call) -> store.ReadResponse:
        assert call.into is not None and request.lease_id == 5
        call.into[:] = b"".join(blocks[request.first : request.first + request.count])
        return store.ReadResponse(block_bytes=BLOCK_BYTES)

    return answer


def window_of(script: Script) -> WindowBase[BlocksBase]:
    steps = lookups.lookup(script.session, bytes(96), [NeedLast(0)], 255, 0, None)
    return WindowBase(script.session, script.run(steps), BlocksBase)


def test_fetched_blocks_are_the_sealed_ones() -> None:
    script = scripted({Method.LOOKUP: found, Method.READ: reads(BLOCKS)})
    blocks = window_of(script).blocks(0)
    script.run(blocks.load_steps(None))
    assert [bytes(blocks[index]) for index in range(COUNT)] == BLOCKS
    assert bytes(blocks[-1]) == BLOCKS[-1] and blocks[0].readonly
    with pytest.raises(IndexError):
        blocks[COUNT]


def test_fetch_into_a_destination_needs_no_memory_of_its_own() -> None:
    script = scripted({Method.LOOKUP: found, Method.READ: reads(BLOCKS)})
    target = bytearray(COUNT * BLOCK_BYTES)
    blocks = window_of(script).blocks(0)
    script.run(blocks.copy_steps(target, None))
    assert bytes(target) == b"".join(BLOCKS) and not blocks.is_loaded
    assert script.session.counters.bytes_read == len(target)


def test_fetched_bytes_that_differ_are_an_error_and_counted() -> None:
    damaged = [BLOCKS[0], BLOCKS[1][:-1] + b"x", BLOCKS[2]]
    script = scripted({Method.LOOKUP: found, Method.READ: reads(damaged)})
    blocks = window_of(script).blocks(0)
    with pytest.raises(ChecksumMismatch, match="page 1"):
        script.run(blocks.load_steps(None))
    assert not blocks.is_loaded and script.session.counters.checksum_mismatches == 1


def test_fetch_of_another_block_size_is_an_error() -> None:
    def wrong(request: store.ReadRequest, call: Call) -> store.ReadResponse:
        return store.ReadResponse(block_bytes=1)

    script = scripted({Method.LOOKUP: found, Method.READ: wrong})
    with pytest.raises(InvalidRequest, match="blocks of 1 bytes, expected 64"):
        script.run(window_of(script).blocks(0).load_steps(None))


def test_fetch_from_a_daemon_that_is_gone_raises_and_shuts_the_gate() -> None:
    def gone(request: store.ReadRequest, call: Call) -> store.ReadResponse:
        script.dial_error = ConnectFailed("nobody")
        script.session.lost_connection()
        raise ConnectFailed("reset")

    script = scripted({Method.LOOKUP: found, Method.READ: gone})
    window = window_of(script)
    with pytest.raises(ConnectFailed):
        script.run(window.blocks(0).load_steps(None))
    tried = len(script.seen)
    with pytest.raises(ConnectFailed, match="not tried again yet"):
        script.run(window.blocks(0).load_steps(None))
    assert len(script.seen) == tried


def test_blocks_before_they_are_loaded_say_so() -> None:
    script = scripted({Method.LOOKUP: found})
    with pytest.raises(HandleClosed, match=r"call load\(\) first"):
        window_of(script).blocks(0)[0]


def test_destination_of_another_size_is_refused() -> None:
    script = scripted({Method.LOOKUP: found})
    with pytest.raises(InvalidRequest, match="191 bytes, the 3 blocks have 192"):
        script.run(window_of(script).blocks(0).copy_steps(bytearray(191), None))


def test_window_of_a_miss_has_no_blocks() -> None:
    reply = store.LookupResponse(miss=store.MISS_REASON_NOT_STORED)
    window = window_of(scripted({Method.LOOKUP: lambda *_: reply}))
    assert (window.hit, window.miss, window.lease_id) == (False, "not_stored", 0)
    with pytest.raises(HandleClosed, match="a miss"):
        window.blocks(0)
    assert window.end() is False


def test_window_after_its_end_raises_and_ends_its_lease_once() -> None:
    script = scripted({Method.LOOKUP: found})
    window = window_of(script)
    blocks = window.blocks(0)
    assert window.end() is True and window.end() is False
    assert [lease for _, lease in script.session.pending] == [5]
    for use in (window.verify, lambda: blocks[0], lambda: window.blocks(0)):
        with pytest.raises(HandleClosed):
            use()


def test_window_without_such_a_need_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="need 1: the lookup had 1"):
        window_of(scripted({Method.LOOKUP: found})).blocks(1)


@pytest.mark.parametrize(
    ("boot_id", "error"), [(b"b" * 16, LeaseExpired), (b"B" * 16, BootChanged)]
)
def test_window_of_an_earlier_attachment_is_void(boot_id: bytes, error: type[Exception]) -> None:
    script = scripted({Method.LOOKUP: found, Method.READ: reads(BLOCKS)})
    window = window_of(script)

    def ended(request: store.LookupRequest, call: Call) -> store.LookupResponse:
        script.answers[Method.LOOKUP] = found
        raise UnknownSession("ended")

    script.answers |= {Method.LOOKUP: ended, Method.ATTACH: attach(boot_id, b"S" * 16)}
    window_of(script)
    with pytest.raises(error):
        window.verify()
    with pytest.raises(error):
        script.run(window.blocks(0).load_steps(None))


def test_places_cut_short_are_refused() -> None:
    def ragged(request: store.LookupRequest, call: Call) -> store.LookupResponse:
        reply = found(request, call)
        reply.columns[0].places += bytes(8)
        return reply

    with pytest.raises(InvalidRequest, match="no whole places"):
        window_of(scripted({Method.LOOKUP: ragged})).blocks(0)
