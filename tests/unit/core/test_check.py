"""check() is no ornament: damage to any column or record is found and named.

Goal: what the model tests and `anchorstore check` rely on does look.  Method: a store with a lease,
an open reservation and a seal in flight; one column or record at a time is damaged, and restored.
"""

from __future__ import annotations

import pytest

from anchorstore.layout import Component
from tests.unit.core.small import ANCHOR, KV, Engine, Small


def busy() -> tuple[Small, Engine]:
    """A store where something is in every condition."""
    small = Small(segments=8)
    engine = small.session(layouts=[KV, ANCHOR])
    engine.put(engine.path(3), layouts=[0, 1])
    engine.lookup(engine.path(3))
    engine.reserve(engine.path(2, "open"))
    engine.begin(engine.reserve(engine.path(2, "writing")).reservation_id, [(0, 0), (1, 0)])
    assert small.store.check() == []
    return small, engine


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("index", "children", "children miscounted"),
        ("index", "parent", "parent"),
        ("index", "page", "one page shorter"),
        ("index", "namespace", "namespace"),
        ("index", "hashes", "not found under their keys"),
        ("index", "first_block", "chains and page links disagree"),
        ("blocks", "page", "chain"),
        ("blocks", "kind", "kind"),
        ("blocks", "leases", "counts differ"),
        ("blocks", "slot", "slab"),
        ("blocks", "segment", "slab"),
        ("blocks", "generation", "odd generation"),
    ],
)
def test_check_damaged_column_is_named(table: str, column: str, words: str) -> None:
    small, _ = busy()
    array = getattr(getattr(small.store._state, table), column)
    array[1] ^= array.dtype.type(1)
    assert any(words in violation for violation in small.store.check()), small.store.check()
    array[1] ^= array.dtype.type(1)
    assert small.store.check() == []


def test_check_stamp_from_the_future_is_named() -> None:
    small, _ = busy()
    small.store._state.index.stamp[1] = 1_000_000
    assert any("future" in violation for violation in small.store.check())


def test_check_miscounted_blocks_of_dram_alone_are_named() -> None:
    small, _ = busy()
    small.store._state.blocks.in_dram_alone += 1
    assert any("in dram alone" in violation for violation in small.store.check())


def test_check_miscounted_bytes_are_named() -> None:
    small, engine = busy()
    record = small.store._state.registry.namespaces[engine.root]
    for name in ("used_bytes", "reserved_bytes"):
        setattr(record, name, getattr(record, name) + 1)
        assert any("miscounted" in violation for violation in small.store.check())
        setattr(record, name, getattr(record, name) - 1)
    assert small.store.check() == []


def test_check_lost_slot_is_named() -> None:
    small, _ = busy()
    segment = next(small.store._state.pool.segments_of(Component.ANCHOR))
    segment.slab.take(1)
    assert any("slots lost" in violation for violation in small.store.check())


def test_check_lost_segment_is_named() -> None:
    small, _ = busy()
    small.store._state.pool.unused.pop()
    assert any("segment twice, or lost" in violation for violation in small.store.check())


def test_check_forgotten_ticket_is_named() -> None:
    small, _ = busy()
    small.store._state.tickets.clear()
    found = small.store.check()
    assert any("said to be written" in violation for violation in found)
    assert any("slots lost" in violation for violation in found)
