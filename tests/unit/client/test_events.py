"""The queue of an engine's events: bounded, in order, and honest about what it lost.

Goal: whoever tells never waits and never piles up memory; after a loss the daemon is told that what
it knows is void, and the teller that it must tell again.  Method: a queue without its thread.
"""

from __future__ import annotations

import pytest

from anchorstore.client.events import Batch, EventQueue
from anchorstore.clock import ManualClock
from anchorstore.errors import InvalidRequest


def hashes(*numbers: int) -> bytes:
    """One page a number."""
    return b"".join(bytes([number]) * 32 for number in numbers)


def queue_of(limit_pages: int, settle_seconds: float = 0.0) -> EventQueue:
    return EventQueue(limit_pages, settle_seconds, ManualClock())


def test_queue_gives_back_what_was_put_in_batches_and_in_order() -> None:
    queue = queue_of(8)
    assert queue.put(1, hashes(1, 2, 3)) == queue.put(2, hashes(4)) == 0
    assert queue.take(2) == Batch(b"\1\1", hashes(1, 2), False, 0)
    assert queue.take(8) == Batch(b"\1\2", hashes(3, 4), False, 0)
    assert queue.take(8) == Batch(b"", b"", False, 0), "a sign of life"


def test_queue_without_room_drops_all_that_waits_and_says_so_once() -> None:
    queue = queue_of(4)
    epoch = queue.epoch
    assert queue.put(1, hashes(1, 2, 3)) == 0 and queue.epoch is epoch
    assert queue.put(1, hashes(4, 5)) == 5
    assert queue.epoch is not epoch, "what was told must be told again"
    assert queue.put(3, hashes(6)) == 0
    assert queue.take(8) == Batch(b"\3", hashes(6), True, 5)
    assert queue.take(8) == Batch(b"", b"", False, 0)


def test_queue_batch_that_was_lost_counts_as_dropped_with_what_it_had_to_say() -> None:
    queue = queue_of(4)
    queue.put(1, hashes(1, 2, 3, 4))
    queue.put(1, hashes(5))
    lost = queue.take(8)
    assert lost.cleared and lost.dropped == 5
    queue.put(1, hashes(6))
    assert queue.void(lost) == 1, "the five were counted before"
    assert queue.take(8) == Batch(b"", b"", True, 6)


def test_queue_of_a_daemon_that_does_not_answer_counts_each_event_once() -> None:
    queue = queue_of(1000)
    epoch, put, counted = queue.epoch, 0, 0
    for _ in range(6):  # rounds that fail, to a teller that goes by the epoch
        counted += queue.put(1, hashes(1, 2, 3))
        put += 3
        counted += queue.void(queue.take(8))
        assert queue.epoch is epoch, "there is nobody to be told again"
    assert counted == put
    answered = queue.take(8)
    assert answered == Batch(b"", b"", True, put)
    queue.back()
    assert queue.epoch is not epoch
    assert queue.put(1, hashes(4)) == 0 and queue.take(8) == Batch(b"\1", hashes(4), False, 0)
    queue.back()


def test_queue_closed_takes_nothing_and_keeps_nobody_waiting() -> None:
    queue = queue_of(4)
    queue.put(1, hashes(1))
    queue.close()
    assert queue.put(1, hashes(2)) == 0
    queue.wait(3600.0)
    queue.pause(3600.0)


def test_queue_refuses_what_are_no_hashes() -> None:
    with pytest.raises(InvalidRequest, match="33 bytes"):
        queue_of(4).put(1, bytes(33))


def test_queue_lets_events_settle_in_order() -> None:
    clock = ManualClock()
    queue = EventQueue(8, 2.0, clock)
    queue.put(1, hashes(1, 2))
    clock.advance(1.5)
    queue.put(2, hashes(1))
    assert queue.take(8).kinds == b""
    clock.advance(0.5)
    queue.wait(3600.0)
    assert queue.take(1).kinds == queue.take(8).kinds == b"\1"
    assert queue.take(8).kinds == b""
    clock.advance(1.5)
    assert queue.take(8).kinds == b"\2"
