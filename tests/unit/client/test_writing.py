"""Goal: staged bytes are sealed once, under their own key, and never reused while they may be read.
Method: the write steps, driven by a script that answers like a daemon or fails like a socket.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash

from anchorstore.client import PutOutcome, reserving
from anchorstore.client.effects import Call, Work
from anchorstore.client.writing import ReservationBase
from anchorstore.clock import ManualClock
from anchorstore.errors import (
    CapacityFull,
    ConnectFailed,
    DeadlineExceeded,
    HandleClosed,
    InvalidRequest,
    LeaseExpired,
    QuotaExceeded,
)
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store
from tests.unit.client.scripted import BLOCK_BYTES, Answer, Script, scripted

HASHES = bytes(6 * 32)
PAGES = 6


class RemoteDaemon:
    """Takes what is reserved, written and sealed, as the daemon would."""

    def __init__(self, verdicts: bytes = b"\1" * PAGES) -> None:
        self.staging, self.verdicts = bytearray(512), verdicts
        self.sealed: dict[int, bytes] = {}
        self.seals = 0
        self.fail: list[Exception | None] = []

    def answers(self) -> dict[Method, Answer]:
        return {
            Method.RESERVE: lambda *_: store.ReserveResponse(
                reservation_id=1, verdicts=self.verdicts, reason="quota"
            ),
            Method.WRITE: self._write,
            Method.SEAL: self._seal,
            Method.ABORT: lambda *_: store.AbortResponse(),
        }

    def _write(self, request: store.WriteRequest, call: Call) -> store.WriteResponse:
        start = request.staging_offset
        for part in call.payload:
            self.staging[start : start + len(part)] = part
            start += len(part)
        return store.WriteResponse()

    def _seal(self, request: store.SealRequest, call: Call) -> store.SealResponse:
        self.seals += 1
        error = self.fail.pop(0) if self.fail else None
        if error is not None:
            raise error
        pages = np.frombuffer(request.pages, "<u4")
        offsets = np.frombuffer(request.staging_offsets, "<u8")
        sums = np.frombuffer(request.checksums, "<u8")
        results = bytearray()
        for page, offset, checksum in zip(pages, offsets, sums, strict=True):
            block = bytes(self.staging[int(offset) : int(offset) + BLOCK_BYTES])
            is_whole = xxhash.xxh3_64_intdigest(block) == int(checksum)
            results.append(1 if is_whole else 4)
            self.sealed[int(page)] = block
        return store.SealResponse(results=bytes(results))


def blocks(count: int = PAGES) -> list[bytes]:
    return [bytes([number + 1]) * BLOCK_BYTES for number in range(count)]


def put(script: Script, given: Any) -> PutOutcome:
    steps = reserving.put(script.session, None, 0, HASHES, {0: given}, 0, None)
    return script.run(steps)


def reserved(script: Script) -> ReservationBase:
    answer = script.run(reserving.reserve(script.session, None, 0, HASHES, (0,), 0, None))
    return ReservationBase(script.session, (0,), answer)


def test_put_larger_than_staging_goes_in_several_seals() -> None:
    daemon = RemoteDaemon()
    script = scripted(daemon.answers(), staging_bytes=2 * BLOCK_BYTES)
    assert put(script, blocks()) == PutOutcome(sealed=PAGES, reason="quota")
    assert daemon.seals == 3 and daemon.sealed == dict(enumerate(blocks()))


def test_put_of_known_and_declined_pages_writes_only_the_others() -> None:
    daemon = RemoteDaemon(b"\1\2\3\1\2\2")
    script = scripted(daemon.answers())
    assert put(script, blocks()) == PutOutcome(sealed=2, known=3, declined=1, reason="quota")
    assert set(daemon.sealed) == {0, 3}
    assert script.session.counters.blocks_known == 3


def test_put_with_a_page_left_out_seals_the_others() -> None:
    daemon = RemoteDaemon()
    script = scripted(daemon.answers())
    given: list[bytes | None] = [*blocks()[:5], None]
    assert put(script, given).sealed == 5 and 5 not in daemon.sealed


def test_put_of_a_block_of_the_wrong_size_is_refused_and_aborted() -> None:
    script = scripted(RemoteDaemon().answers())
    with pytest.raises(InvalidRequest, match="page 5, layout 0 has 3 bytes, must have 64"):
        put(script, [*blocks()[:5], b"abc"])
    assert script.calls()[-1] is Method.ABORT
    assert script.session.staging.free_bytes == 256


def test_put_of_too_few_blocks_is_refused_before_anything_is_sent() -> None:
    script = scripted(RemoteDaemon().answers())
    with pytest.raises(InvalidRequest, match="2 blocks of layout 0 for 6 pages"):
        put(script, blocks(2))
    assert script.calls() == []


def test_put_into_staging_smaller_than_a_block_is_refused() -> None:
    script = scripted(RemoteDaemon().answers(), staging_bytes=BLOCK_BYTES - 1)
    with pytest.raises(InvalidRequest, match="64 bytes do not fit the 63 bytes of staging"):
        put(script, blocks())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectFailed("reset"), "unreachable"),
        (DeadlineExceeded("late"), "deadline"),
        (QuotaExceeded("full"), "refused"),
        (LeaseExpired("too late"), "expired"),
    ],
)
def test_put_whose_second_seal_fails_declines_the_rest(error: Exception, reason: str) -> None:
    daemon = RemoteDaemon()
    daemon.fail = [None, error]
    script = scripted(daemon.answers(), staging_bytes=2 * BLOCK_BYTES)
    assert put(script, blocks()) == PutOutcome(sealed=2, declined=4, reason=reason)
    assert daemon.seals == 2


def test_seal_without_a_reply_keeps_its_bytes_until_the_reply_comes() -> None:
    clock, daemon = ManualClock(100.0), RemoteDaemon()
    daemon.fail = [DeadlineExceeded("late")]
    script = scripted(daemon.answers(), clock=clock, staging_bytes=2 * BLOCK_BYTES)
    reservation = reserved(script)
    reservation.buffer(0, 0)[:] = blocks()[0]
    outcome = script.run(reservation.seal_steps(None))
    assert outcome == PutOutcome(declined=1, reason="deadline")
    staging = script.session.staging
    assert (staging.quarantine_bytes, staging.free_bytes) == (BLOCK_BYTES, BLOCK_BYTES)
    seal = [e for e in script.seen if isinstance(e, Call) and e.method is Method.SEAL][-1]
    assert seal.on_late is not None
    seal.on_late(store.SealResponse(results=b"\1"))
    assert (staging.quarantine_bytes, staging.free_bytes) == (0, 2 * BLOCK_BYTES)


def test_seal_whose_connection_broke_never_shares_its_session_again() -> None:
    clock, daemon = ManualClock(100.0), RemoteDaemon()
    daemon.fail = [ConnectFailed("reset")]
    script = scripted(daemon.answers(), clock=clock)
    assert put(script, [*blocks()[:4], None, None]).declined == 4
    script.session.lost_connection()
    clock.advance(2.0)
    before = len(script.calls())
    assert put(script, [*blocks()[:4], None, None]).sealed == 4
    assert script.calls()[before] is Method.ATTACH  # not JOIN: the old staging may still be read
    assert script.session.staging.quarantine_bytes == 0


def test_seal_that_is_given_up_half_way_quarantines_its_bytes() -> None:
    script = scripted(RemoteDaemon().answers())
    reservation = reserved(script)
    reservation.buffer(0, 0)[:] = blocks()[0]
    steps = reservation.seal_steps(None)
    effect: Any = next(steps)
    while not isinstance(effect, Call):
        effect = steps.send(b"\0" * 8)
    steps.close()  # cancelled, or a keyboard interrupt
    assert script.session.staging.quarantine_bytes == BLOCK_BYTES


def test_put_that_is_given_up_half_way_leaves_no_staging_taken() -> None:
    script = scripted(RemoteDaemon().answers())
    script.run(script.session.connect(101.0))
    steps = reserving.put(
        script.session, None, 0, HASHES, {0: [*blocks()[:4], None, None]}, 0, None
    )
    effect: Any = next(steps)
    while not isinstance(effect, Work):
        effect = steps.send(script.perform(effect))
    steps.close()
    assert script.session.staging.free_bytes == 256


def test_bytes_damaged_on_their_way_are_counted_as_mismatched() -> None:
    daemon = RemoteDaemon()
    answers = daemon.answers()

    def damage(request: store.WriteRequest, call: Call) -> store.WriteResponse:
        daemon.staging[request.staging_offset] ^= 1
        return store.WriteResponse()

    script = scripted({**answers, Method.WRITE: damage})
    assert put(script, [blocks()[0], *[None] * 5]) == PutOutcome(mismatched=1, reason="quota")


def test_buffer_asked_for_twice_is_the_same_memory() -> None:
    reservation = reserved(scripted(RemoteDaemon().answers()))
    reservation.buffer(2, 0)[0] = 7
    assert reservation.buffer(2, 0)[0] == 7 and len(reservation.buffer(2, 0)) == BLOCK_BYTES


def test_buffer_beyond_staging_names_the_limit_and_flush_makes_room() -> None:
    script = scripted(RemoteDaemon().answers(), staging_bytes=BLOCK_BYTES)
    reservation = reserved(script)
    reservation.buffer(0, 0)
    with pytest.raises(CapacityFull, match="64 bytes, 0 of 64 bytes free"):
        reservation.buffer(1, 0)
    assert script.run(reservation.flush_steps(None)).sealed == 1
    reservation.buffer(1, 0)


@pytest.mark.parametrize(("page", "layout"), [(6, 0), (-1, 0), (0, 1)])
def test_buffer_outside_the_reservation_is_refused(page: int, layout: int) -> None:
    reservation = reserved(scripted(RemoteDaemon().answers()))
    with pytest.raises(InvalidRequest, match="6 pages of layouts"):
        reservation.buffer(page, layout)


def test_buffer_that_nobody_wants_is_refused() -> None:
    reservation = reserved(scripted(RemoteDaemon(b"\2\1\1\1\1\1").answers()))
    assert next(reservation.wanted()) == (1, 0)
    with pytest.raises(InvalidRequest, match="not wanted"):
        reservation.buffer(0, 0)


def test_reservation_after_its_end_raises() -> None:
    script = scripted(RemoteDaemon().answers())
    reservation = reserved(script)
    reservation.buffer(0, 0)
    script.run(reservation.abort_steps(None))
    assert script.calls()[-1] is Method.ABORT
    assert script.session.staging.free_bytes == 256
    with pytest.raises(HandleClosed):
        reservation.buffer(0, 0)
    with pytest.raises(HandleClosed):
        script.run(reservation.seal_steps(None))


def test_reserve_without_a_daemon_wants_nothing() -> None:
    script = scripted(RemoteDaemon().answers())
    script.dial_error = ConnectFailed("nobody")
    reservation = reserved(script)
    assert list(reservation.wanted()) == []
    outcome = script.run(reservation.seal_steps(None))
    assert outcome == PutOutcome(declined=PAGES, reason="unreachable")
