"""What engines tell of their own caches: who holds a page, what goes first, what is pinned.

Goal: a page that no engine holds any more leaves dram before those that one holds, and only once
nvme has all of it; pins hold; both end with the engine.  Method: stores of a few slots, one-page
paths by name, so that each victim can be named.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.errors import InvalidRequest, UnknownSession
from anchorstore.server.core import events
from anchorstore.server.core.engines import ENGINES_MAX
from anchorstore.server.core.policies import Fifo, Lfu, Lru, Policy, Priority, Slru, Ttl
from anchorstore.server.core.types import Event
from tests.unit.core.small import Engine, Small
from tests.unit.core.tiered import Tiered, tiers_of

SEALED = 1
STORED, REMOVED, TOUCHED = Event.STORED, Event.REMOVED, Event.TOUCHED
PINNED, UNPINNED = Event.PINNED, Event.UNPINNED


def mirrored(**changes: Any) -> Tiered:
    """Four slots of dram, and room for all of it below."""
    return Tiered(segments=1, mirrors_engines=True, **changes)


def put(engine: Engine, names: str) -> None:
    """One-page paths, one after another."""
    for name in names:
        assert engine.put(engine.path(1, name)) == [SEALED]


def pages(engine: Engine, names: str) -> bytes:
    """Hashes of one-page paths."""
    return b"".join(engine.path(1, name) for name in names)


def in_dram(engine: Engine, names: str) -> str:
    """Which of the one-page paths dram holds."""
    return "".join(n for n in names if "d" in tiers_of(engine, engine.path(1, n))[0])


def known(engine: Engine, names: str) -> str:
    """Which of them are anywhere."""
    return "".join(n for n in names if engine.present(engine.path(1, n))[0])


def full(**changes: Any) -> tuple[Tiered, Engine]:
    """a to d in dram and in nvme, all held by the engine, d used last."""
    small = mirrored(**changes)
    engine = small.session()
    put(engine, "abcd")
    assert engine.tell((STORED, pages(engine, "abcd"))).is_new
    assert small.write_all() == 4
    return small, engine


@pytest.mark.parametrize(
    "policy", [None, Lru(), Fifo(), Lfu(), Slru(), Priority(), Ttl(10.0)], ids=repr
)
def test_removed_pages_leave_dram_before_held_ones(policy: Policy | None) -> None:
    small, engine = full(policy=policy)
    engine.tell((REMOVED, pages(engine, "cd")))
    assert in_dram(engine, "abcd") == "abcd", "removed deletes nothing"
    put(engine, "ef")
    assert in_dram(engine, "abcdef") == "abef"
    assert known(engine, "abcd") == "abcd", "what was let go is in nvme"
    assert small.store.check() == []


def test_two_engines_the_one_that_holds_a_page_counts() -> None:
    small, one = full()
    other = small.session()
    other.tell((STORED, pages(other, "d")))
    one.tell((REMOVED, pages(one, "cd")))
    put(one, "e")
    assert in_dram(one, "abcde") == "abde", "d is held by the other engine"
    other.tell((REMOVED, pages(other, "d")))
    put(one, "f")
    assert in_dram(one, "abcdef") == "abef"
    assert small.store.check() == []


def test_removed_page_that_nvme_lacks_keeps_its_turn_and_is_written_ahead() -> None:
    small = mirrored(nvme={"ahead": False})
    engine = small.session()
    put(engine, "abcd")
    engine.tell((STORED, pages(engine, "abcd")))
    assert small.store.blocks_to_demote == 0, "nothing is written ahead of need"
    engine.tell((REMOVED, pages(engine, "d")))
    assert small.store.blocks_to_demote == 1, "but for what no engine holds"
    put(engine, "e")
    assert known(engine, "abcde") == "bcde", "d is not in nvme: its turn has not come"
    assert small.write() == 1
    put(engine, "f")
    assert in_dram(engine, "bcdef") == "bcef" and known(engine, "d") == "d"
    assert small.store.check() == []


def test_any_use_takes_a_page_back() -> None:
    small, engine = full()
    silent = small.session()
    engine.tell((REMOVED, pages(engine, "abcd")))
    assert silent.stored(silent.path(1, "a")) == 1
    engine.tell((TOUCHED, pages(engine, "b")))
    put(engine, "ef")
    assert in_dram(engine, "abcdef") == "abef"


def test_touched_page_is_used_last_word_counts() -> None:
    _, engine = full()
    engine.tell((TOUCHED, pages(engine, "a")), (REMOVED, pages(engine, "a")))
    put(engine, "e")
    assert in_dram(engine, "abcde") == "bcde"
    engine.tell((REMOVED, pages(engine, "b")), (STORED, pages(engine, "b")))
    engine.tell((TOUCHED, pages(engine, "b")))
    put(engine, "f")
    assert in_dram(engine, "bcdef") == "bdef", "b is held and recent, c least recent"


def test_block_that_loses_its_place_in_nvme_loses_its_turn() -> None:
    small, engine = full()
    engine.tell((REMOVED, pages(engine, "d")))
    assert small.store.lose_segments(range(1, 9)) == 0, "dram has them all"
    put(engine, "e")
    assert known(engine, "abcde") == "bcde"
    assert small.store.check() == []


def test_engine_that_ends_takes_its_heat_along() -> None:
    small, engine = full()
    other = small.session()
    other.tell((STORED, pages(other, "ab")))
    small.store.end_session(engine.session_id, small.now)
    small.store.expire(small.now)
    put(other, "ef")
    assert in_dram(other, "abcdef") == "abef"
    assert small.store.check() == []


def test_silent_engine_is_forgotten_and_told_that_it_is_new() -> None:
    small, engine = full(engine_ttl_seconds=5.0)
    small.store.connection_opened(engine.session_id, "acme")
    engine.tell((PINNED, pages(engine, "a")))
    small.now = 4.0
    assert not engine.tell().is_new, "an empty batch keeps it"
    assert small.store.next_deadline() == 9.0
    small.now = 9.0
    small.store.expire(small.now)
    counters = small.store.counters
    assert counters["engines_expired"] == 1 and counters["pages_let_go"] == 4
    assert small.store.status(small.now).counters["pinned_pages"] == 0
    assert engine.tell((STORED, pages(engine, "abcd"))).is_new
    assert small.store.check() == []


def test_cleared_engine_holds_what_it_says_afterwards() -> None:
    small, engine = full()
    engine.tell((PINNED, pages(engine, "a")))
    assert not engine.tell((STORED, pages(engine, "cd")), cleared=True).is_new
    small.store.expire(small.now)
    assert small.store.status(0.0).counters["pinned_pages"] == 0
    put(engine, "ef")
    assert in_dram(engine, "abcdef") == "cdef"
    assert small.store.check() == []


def test_sweep_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SWEEP_ROWS", 2)
    small, engine = full()
    other = small.session()
    small.store.end_session(engine.session_id, 0.0)
    for gone in (2, 4, 4):
        small.store.expire(0.0)
        assert small.store.counters["pages_let_go"] == gone
    assert other.tell().is_new and small.store.check() == []


def test_pinned_page_and_what_leads_to_it_stay_until_unpinned() -> None:
    small = Small(segments=1, pin_share=1.0)
    engine = small.session()
    path = engine.path(2)
    engine.put(path)
    engine.tell((PINNED, path[32:]))
    put(engine, "abcdef")
    assert engine.present(path) == [True, True], "leaves go first: one pin keeps the whole path"
    assert small.store.check() == []
    engine.tell((UNPINNED, path[32:]))
    put(engine, "uvwxyz")
    assert engine.present(path) == [False, False]
    result = engine.tell((PINNED, path))
    assert result.unknown == 2 and small.store.status(0.0).counters["pinned_pages"] == 0


def test_pins_end_with_their_session() -> None:
    small = Small(segments=1, pin_share=1.0)
    engine, other = small.session(), small.session()
    put(engine, "ab")
    engine.tell((PINNED, pages(engine, "ab")))
    small.store.connection_opened(engine.session_id, "acme")
    small.store.connection_closed(engine.session_id, 0.0)
    assert small.store.check() == []
    put(other, "uvwxyz")
    assert known(other, "ab") == ""


def test_removed_by_an_operator_pinned_blocks_go_with_their_pin() -> None:
    small = Small(segments=1, pin_share=1.0)
    engine = small.session()
    put(engine, "a")
    engine.tell((PINNED, pages(engine, "a")))
    assert small.store.remove(engine.root, None).blocks_leased == 1
    put(engine, "a")
    engine.tell((PINNED, pages(engine, "a")))
    assert small.store.check() == [], "pinned anew: what the page holds now"
    assert small.store.status(0.0).counters["pinned_pages"] == 1


def test_pins_beyond_a_limit_are_refused_and_counted() -> None:
    small = Small(segments=1, pin_share=1.0, max_pins=2)
    engine = small.session()
    put(engine, "abc")
    assert engine.tell((PINNED, pages(engine, "abc"))).refused == 1
    shared = Small(segments=1, pin_share=0.45)  # two slots of the segment's five pages
    one, other = shared.session(), shared.session()
    put(one, "abc")
    assert one.tell((PINNED, pages(one, "a"))).refused == 0
    assert other.tell((PINNED, pages(other, "bc"))).refused == 1
    assert shared.store.counters["pins_refused"] == 1 and shared.store.check() == []


def test_more_engines_than_bits_are_not_followed() -> None:
    small, first = full()
    for _ in range(ENGINES_MAX - 1):
        small.session().tell()
    late = small.session()
    late.tell((STORED, pages(late, "a")))
    first.tell((REMOVED, pages(first, "a")))
    assert small.store.counters["engines_not_followed"] == 1
    put(first, "e")
    assert in_dram(first, "abcde") == "bcde", "nobody knows that the late one holds it"
    assert small.store.check() == []


def test_foreign_pages_and_turned_off_namespaces_change_nothing() -> None:
    small, engine = full()
    stranger = small.session(model="other")
    assert stranger.tell((REMOVED, pages(engine, "abcd"))).unknown == 4
    small.store.set_enabled(engine.root, False)
    engine.tell((REMOVED, pages(engine, "abcd")), (PINNED, pages(engine, "abcd")))
    assert small.store.counters["pages_let_go"] == 0
    assert small.store.status(0.0).counters["pinned_pages"] == 0


@pytest.mark.parametrize("kind", [0, 6, 255])
def test_unknown_kinds_are_refused_without_a_trace(kind: int) -> None:
    small, engine = full()
    with pytest.raises(InvalidRequest, match="event kinds"):
        said = kind, pages(engine, "a")
        engine.tell(said, (REMOVED, pages(engine, "b")))  # type: ignore[arg-type]
    assert small.store.counters["events_removed"] == 0


def test_closed_session_tells_nothing() -> None:
    small, engine = full()
    small.store.end_session(engine.session_id, 0.0)
    with pytest.raises(UnknownSession):
        engine.tell()


def test_columns_are_there_only_where_they_are_read() -> None:
    plain = Tiered(segments=1)
    engine = plain.session()
    put(engine, "abcd")
    engine.tell((STORED, pages(engine, "abcd")), (REMOVED, pages(engine, "d")))
    put(engine, "e")
    assert known(engine, "abcde") == "bcde"
    assert not hasattr(plain.store._state.index, "holders")
    alone = Small(segments=1, mirrors_engines=True)
    assert not hasattr(alone.store._state.index, "holders"), "without nvme nothing goes first"
