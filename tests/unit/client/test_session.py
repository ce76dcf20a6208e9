"""Goal: a client attaches, stays attached, and turns every failure into a reason in time.
Method: the steps alone, driven by a script that answers like a daemon or fails like a socket.
"""

from __future__ import annotations

import logging

import pytest

from anchorstore.client import NeedLast, lookups
from anchorstore.client.attachment import Attachment
from anchorstore.client.effects import Call, Dial, Hangup
from anchorstore.clock import ManualClock
from anchorstore.errors import (
    BootChanged,
    ConnectFailed,
    DeadlineExceeded,
    Draining,
    Forbidden,
    HandleClosed,
    InvalidRequest,
    LeaseExpired,
    Overloaded,
    SpecMismatch,
    UnknownSession,
)
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store
from tests.unit.client.scripted import Answer, Script, attach, scripted

HASHES = bytes(range(64))
NEEDS = [NeedLast(0)]


def hit(lease_id: int = 5) -> Answer:
    def answer(request: store.LookupRequest, call: Call) -> store.LookupResponse:
        reply = store.LookupResponse(boundary_pages=2, resume_pages=2, lease_id=lease_id)
        reply.columns.add()
        return reply

    return answer


def fails(*errors: Exception | None, then: Answer) -> Answer:
    """Raises each error once (None: answers), then answers."""
    left = list(errors)

    def answer(request: object, call: Call) -> object:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        return then(request, call)

    return answer  # type: ignore[return-value]


def look_up(script: Script, hashes: bytes = HASHES) -> lookups.Found:
    return script.run(lookups.lookup(script.session, hashes, NEEDS, 255, 0, None))


def held(found: lookups.Found) -> Attachment:
    """The attachment of a hit."""
    assert found.attachment is not None
    return found.attachment


def test_lookup_first_of_all_attaches() -> None:
    script = scripted({Method.LOOKUP: hit()})
    found = look_up(script)
    assert script.calls() == [Method.ATTACH, Method.LOOKUP]
    assert found.miss == "" and found.expires_at == 110.0
    look_up(script)
    assert script.calls()[2:] == [Method.LOOKUP]


def test_lookup_request_in_pieces_is_the_message() -> None:
    seen: list[store.LookupRequest] = []

    def answer(request: store.LookupRequest, call: Call) -> store.LookupResponse:
        seen.append(request)
        return store.LookupResponse(lease_id=9)

    script = scripted({Method.LOOKUP: answer})
    found = look_up(script)
    script.session.pending.append((held(found), 7))
    script.run(lookups.lookup(script.session, HASHES, NEEDS, 3, 1, None))
    expected = store.LookupRequest(
        session_id=b"s" * 16,
        path_hashes=HASHES,
        needs=[NEEDS[0].message()],
        max_lineage=3,
        margin_pages=1,
        release_leases=[7],
    )
    assert seen[1] == expected


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (store.MISS_REASON_NOT_STORED, "not_stored"),
        (store.MISS_REASON_INCOMPLETE, "incomplete"),
        (store.MISS_REASON_LINEAGE, "lineage"),
        (store.MISS_REASON_MARGIN, "margin"),
        (store.MISS_REASON_DISABLED, "disabled"),
    ],
)
def test_lookup_that_misses_says_why(reason: store.MissReason, name: str) -> None:
    script = scripted({Method.LOOKUP: lambda *_: store.LookupResponse(miss=reason)})
    assert look_up(script).miss == name
    assert script.session.counters.misses == {name: 1}


def test_lookup_without_pages_attaches_and_misses() -> None:
    script = scripted({})
    assert look_up(script, b"").miss == "not_stored"
    assert script.calls() == [Method.ATTACH]
    assert look_up(script, b"").miss == "not_stored"
    assert script.calls() == [Method.ATTACH]


def test_lookup_above_the_daemons_limit_is_refused_before_it_is_sent() -> None:
    script = scripted({Method.LOOKUP: hit()})
    with pytest.raises(InvalidRequest, match="9 pages, limit 8"):
        look_up(script, bytes(9 * 32))
    assert script.calls() == [Method.ATTACH]  # only the daemon knows its limit


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectFailed("nobody"), "unreachable"),
        (DeadlineExceeded("late"), "deadline"),
    ],
)
def test_lookup_without_a_daemon_misses_and_is_not_tried_again_at_once(
    error: ConnectFailed | DeadlineExceeded, reason: str
) -> None:
    clock = ManualClock(100.0)
    script = scripted({Method.LOOKUP: hit()}, clock=clock)
    script.dial_error = error
    assert look_up(script).miss == reason
    tried = len(script.seen)
    assert look_up(script).miss == reason and len(script.seen) == tried
    clock.advance(1.0)
    script.dial_error = None
    assert look_up(script).miss == ""


def test_lookup_that_is_told_to_wait_waits_that_long() -> None:
    clock = ManualClock(100.0)
    busy = Overloaded("queue is full")
    busy.retry_after_ms = 5000
    script = scripted({Method.LOOKUP: fails(busy, then=hit())}, clock=clock)
    assert look_up(script).miss == "refused"
    clock.advance(4.9)
    assert look_up(script).miss == "refused"
    clock.advance(0.2)
    assert look_up(script).miss == ""


def test_lookup_while_the_daemon_drains_misses_as_refused() -> None:
    script = scripted({Method.LOOKUP: fails(Draining("going down"), then=hit())})
    assert look_up(script).miss == "refused"


def test_lookup_on_a_stale_connection_dials_again_within_the_call() -> None:
    script = scripted(
        {
            Method.LOOKUP: fails(None, ConnectFailed("reset"), then=hit()),
            Method.JOIN: fails(UnknownSession("gone"), then=hit()),
        }
    )
    look_up(script)
    script.answers[Method.ATTACH] = attach(boot_id=b"B" * 16)
    assert look_up(script).miss == ""
    assert script.calls()[2:] == [Method.LOOKUP, Method.JOIN, Method.ATTACH, Method.LOOKUP]


def test_lookup_after_a_broken_connection_joins_the_session_where_it_lives() -> None:
    script = scripted(
        {
            Method.LOOKUP: fails(None, ConnectFailed("reset"), then=hit()),
            Method.JOIN: lambda *_: store.JoinResponse(boot_id=b"b" * 16),
        }
    )
    first = look_up(script)
    assert look_up(script).attachment is first.attachment
    assert script.calls()[2:] == [Method.LOOKUP, Method.JOIN, Method.LOOKUP]


def test_lookup_in_a_session_that_ended_attaches_once_and_goes_on() -> None:
    script = scripted({Method.LOOKUP: fails(None, UnknownSession("ended"), then=hit())})
    first = look_up(script)
    second = look_up(script)
    assert second.miss == "" and second.attachment is not first.attachment
    assert script.calls()[2:] == [Method.LOOKUP, Method.ATTACH, Method.LOOKUP]


def test_lookup_whose_sessions_always_end_is_a_miss() -> None:
    script = scripted({Method.LOOKUP: fails(*[UnknownSession("ended")] * 9, then=hit())})
    assert look_up(script).miss == "unreachable"


def test_reply_after_one_missed_deadline_keeps_the_connection_after_two_not() -> None:
    clock = ManualClock(100.0)
    late = DeadlineExceeded("late")
    script = scripted({Method.LOOKUP: fails(None, late, None, late, late, then=hit())}, clock=clock)
    reasons = []
    for _ in range(5):
        reasons.append(look_up(script).miss)
        clock.advance(2.0)
    assert reasons == ["", "deadline", "", "deadline", "deadline"]
    assert sum(isinstance(effect, Hangup) for effect in script.seen) == 1
    assert sum(isinstance(effect, Dial) for effect in script.seen) == 1


def test_reply_that_comes_late_has_its_lease_ended() -> None:
    clock = ManualClock(100.0)
    script = scripted(
        {Method.LOOKUP: fails(None, DeadlineExceeded("late"), then=hit())}, clock=clock
    )
    look_up(script)
    look_up(script)
    call = script.seen[-1]
    assert isinstance(call, Call) and call.on_late is not None
    call.on_late(store.LookupResponse(lease_id=77))
    assert [lease for _, lease in script.session.pending] == [77]


def test_release_that_was_not_sent_is_sent_with_the_next_lookup() -> None:
    clock = ManualClock(100.0)
    sent: list[list[int]] = []

    def answer(request: store.LookupRequest, call: Call) -> store.LookupResponse:
        sent.append(list(request.release_leases))
        if len(sent) == 2:
            raise DeadlineExceeded("late")
        return store.LookupResponse(lease_id=len(sent))

    script = scripted({Method.LOOKUP: answer}, clock=clock)
    found = look_up(script)
    script.session.pending.append((held(found), 1))
    look_up(script)
    clock.advance(2.0)
    look_up(script)
    assert sent == [[], [1], [1]]


def test_release_under_an_earlier_attachment_is_forgotten() -> None:
    script = scripted({Method.LOOKUP: fails(None, UnknownSession("ended"), then=hit())})
    found = look_up(script)
    script.session.pending.append((held(found), 1))
    look_up(script)
    assert not script.session.pending


def test_flush_ends_waiting_leases_in_one_call() -> None:
    released: list[list[int]] = []

    def release(request: store.ReleaseRequest, call: Call) -> store.ReleaseResponse:
        released.append(list(request.lease_ids))
        return store.ReleaseResponse()

    script = scripted({Method.LOOKUP: hit(), Method.RELEASE: release})
    found = look_up(script)
    for lease_id in (3, 4):
        script.session.pending.append((held(found), lease_id))
    script.run(lookups.flush(script.session, 101.0))
    assert released == [[3, 4]]
    script.run(lookups.flush(script.session, 101.0))
    assert len(released) == 1


def test_connect_refused_for_its_credentials_raises() -> None:
    script = scripted({Method.ATTACH: fails(Forbidden("not you"), then=attach())})
    with pytest.raises(Forbidden):
        script.run(script.session.connect(101.0))


def test_connect_with_another_block_size_granted_raises() -> None:
    def other(request: store.AttachRequest, call: Call) -> store.AttachResponse:
        return store.AttachResponse(layouts=[store.LayoutGrant(block_bytes=1)])

    script = scripted({Method.ATTACH: other})
    with pytest.raises(SpecMismatch, match=r"\(1,\) bytes granted"):
        script.run(script.session.connect(101.0))


def test_lookup_after_a_restart_that_refuses_us_is_a_miss_not_an_error() -> None:
    script = scripted(
        {
            Method.LOOKUP: fails(None, UnknownSession("ended"), then=hit()),
            Method.ATTACH: fails(None, SpecMismatch("changed"), then=attach()),
        }
    )
    look_up(script)
    assert look_up(script).miss == "refused"


def test_lookup_after_close_raises() -> None:
    script = scripted({Method.LOOKUP: hit(), Method.DETACH: lambda *_: store.DetachResponse()})
    look_up(script)
    script.run(script.session.close(101.0))
    assert script.calls()[-1] is Method.DETACH
    with pytest.raises(HandleClosed, match="closed"):
        look_up(script)


def test_renew_of_a_lost_lease_raises() -> None:
    script = scripted(
        {Method.LOOKUP: hit(), Method.RENEW: lambda *_: store.RenewResponse(lost=[5])}
    )
    found = look_up(script)
    with pytest.raises(LeaseExpired):
        script.run(lookups.renew(script.session, held(found), 5, 101.0))


def test_renew_under_another_boot_raises_that() -> None:
    script = scripted({Method.LOOKUP: fails(None, UnknownSession("ended"), then=hit())})
    found = look_up(script)
    script.answers[Method.ATTACH] = attach(boot_id=b"B" * 16)
    look_up(script)
    with pytest.raises(BootChanged):
        script.run(lookups.renew(script.session, held(found), 5, 101.0))


def test_failures_in_a_row_are_logged_loudly_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(100.0)
    script = scripted({}, clock=clock)
    script.dial_error = ConnectFailed("nobody there")
    with caplog.at_level(logging.WARNING, "anchorstore.client"):
        for _ in range(3):
            look_up(script)
            clock.advance(2.0)
    assert len(caplog.records) == 1 and "nobody there" in caplog.text
