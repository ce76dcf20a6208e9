"""What operators see and do: status, pages, explain, remove.

Goal: each answer is true of the store, costs no heat and takes no lease.  Method: a small store.
"""

from __future__ import annotations

import pytest

from anchorstore.errors import InvalidRequest
from anchorstore.layout import Component
from tests.unit.core.small import SLOT_BYTES, Small

BIG = {"segments": 8}


def test_status_adds_up() -> None:
    small = Small(**BIG)
    engine = small.session()
    engine.put(engine.path(3), layouts=[0, 1])
    engine.lookup(engine.path(3))
    engine.reserve(engine.path(1, "b"))
    status = small.store.status(0.0)
    assert (status.sessions, status.leases, status.reservations, status.pages) == (1, 1, 1, 3)
    assert (status.blocks, status.used_bytes) == (6, 6 * SLOT_BYTES)
    assert (status.segments, status.segments_free) == (8, 6)
    kv = status.components[Component.KV - 1]
    assert (kv.component, kv.blocks, kv.used_bytes) == (Component.KV, 3, 3 * SLOT_BYTES)
    [namespace] = status.namespaces
    assert (namespace.pages, namespace.bytes) == (3, 7 * SLOT_BYTES)
    assert status.index_bytes > 0 and status.counters["blocks_sealed"] == 6


def test_list_pages_cursor_visits_each_page_once() -> None:
    engine = Small(**BIG).session()
    engine.put(engine.path(5))
    cursor, seen = 0, []
    while True:
        listed = engine.store.list_pages(engine.root, cursor, 2)
        seen += [page.page for page in listed.pages]
        cursor = listed.next_cursor
        if not cursor:
            break
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for limit in (0, 10_001):
        with pytest.raises(InvalidRequest, match="limit must be 1 to 10000"):
            engine.store.list_pages(engine.root, 0, limit)


@pytest.mark.parametrize(
    ("act", "present", "words"),
    [
        ("nothing", 3, "all 3 pages are stored"),
        ("other tokens", 1, "page 1 is not stored: tokens differ"),
        ("nothing stored", 0, "no page is stored"),
        ("hole", 0, "page 0 is not stored, though 2 later pages are"),
        ("switch", 3, "kill switch"),
    ],
)
def test_explain_says_why_a_prefix_ends(act: str, present: int, words: str) -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path, first=1 if act == "hole" else 0)
    match act:
        case "other tokens":
            path = engine.path(3, "other", shared=1)
        case "nothing stored":
            path = engine.path(3, "other")
        case "switch":
            engine.store.set_enabled(engine.root, False)
    found = engine.store.explain(engine.root, path)
    assert (found.pages_asked, found.pages_present) == (3, present)
    assert words in found.ends_because


def test_explain_names_the_first_page_that_a_layout_lacks() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path, layouts=[1])
    engine.put(path[:32], layouts=[0])
    why = engine.store.explain(engine.root, path).ends_because
    assert why == "all 3 pages are stored, in 2 layouts; of these kv lacks page 1"


def test_explain_counts_pages_and_lineage_a_layout() -> None:
    engine = Small(**BIG).session()
    path = engine.path(3)
    engine.put(path[:64], layouts=[0])
    engine.put(path[:32], layouts=[1], lineage=2)
    engine.put(path, layouts=[1], first=2, lineage=1)
    kv, anchor = engine.store.explain(engine.root, path).layouts
    assert (kv.component, kv.pages, kv.leading_pages) == (Component.KV, 2, 2)
    assert (anchor.component, anchor.pages, anchor.leading_pages) == (Component.ANCHOR, 2, 1)
    assert (kv.lineage_least, kv.lineage_most) == (0, 0)
    assert (anchor.lineage_least, anchor.lineage_most) == (1, 2)


def test_explain_leaves_no_heat() -> None:
    engine = Small(segments=1).session()
    paths = [engine.path(1, name) for name in "abcd"]
    for path in paths:
        engine.put(path)
    engine.store.explain(engine.root, paths[0])
    engine.put(engine.path(1, "e"))
    assert engine.present(paths[0]) == [False]


def test_remove_page_takes_all_that_continue_it() -> None:
    engine = Small(**BIG).session()
    left, right = engine.path(4, "l", 2), engine.path(4, "r", 2)
    engine.put(left)
    engine.put(right, first=2)
    removed = engine.store.remove(engine.root, left[64:96])
    assert (removed.blocks_removed, removed.blocks_leased) == (2, 0)
    assert engine.present(left) == [True, True, False, False]
    assert engine.present(right) == [True] * 4
    assert engine.store.remove(engine.root, b"x" * 32).blocks_removed == 0
    assert engine.store.remove(engine.root, left[:32]).blocks_removed == 4
    assert engine.store.status(0.0).used_bytes == 0 and engine.store.check() == []


def test_remove_long_paths_goes_through() -> None:
    engine = Small(segment_bytes=3000 * SLOT_BYTES, segments=1).session()
    path = engine.path(2500)
    engine.put(path)
    assert engine.store.remove(engine.root, None).blocks_removed == 2500
    assert engine.store.check() == []


def test_remove_wrong_arguments_are_refused() -> None:
    engine = Small().session()
    with pytest.raises(InvalidRequest, match="31 bytes"):
        engine.store.remove(engine.root, b"x" * 31)
    with pytest.raises(InvalidRequest, match="no namespace"):
        engine.store.remove(b"r" * 32, None)
