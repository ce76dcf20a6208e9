"""Two tiers under one index: written behind, demoted, promoted, evicted from each on its own.

Goal: what leaves dram is found again in nvme, each block is read once, nothing is promised that is
not there, and nothing is lost that need not be.  Method: pools of a few slots and a disk in memory;
`check()` after the act.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anchorstore.layout import Component
from anchorstore.server.core.planning import Reach
from anchorstore.server.core.types import Miss, NeedAll, NeedLast
from anchorstore.server.core.work import Promotion
from tests.unit.core.small import ANCHOR, KV, SLOT_BYTES, STATE, Engine, Small
from tests.unit.core.tiered import Tiered, fetch, tiers_of

SEALED, KNOWN, DECLINED = 1, 2, 3


def fill_dram(engine: Engine, pages: int = 4) -> None:
    """Puts as many pages of other paths, so that older ones leave dram."""
    sealed = engine.store.counters["blocks_sealed"]
    for number in range(sealed, sealed + pages):
        assert engine.put(engine.path(1, f"filler {number}")) == [SEALED]


def cold_path(engine: Engine, pages: int = 3, name: str = "cold") -> bytes:
    """A path that lies in nvme alone."""
    small, path = engine.small, engine.path(pages, name)
    assert isinstance(small, Tiered)
    engine.put(path)
    small.write_all()
    fill_dram(engine)
    assert tiers_of(engine, path) == ["n"] * pages
    return path


def test_seal_is_written_behind_and_lies_in_both_tiers() -> None:
    small = Tiered()
    engine = small.session()
    path = engine.path(3)
    engine.put(path, layouts=[0, 1])
    assert small.store.blocks_to_demote == 6 and tiers_of(engine, path) == ["d"] * 3
    assert small.write() == 6
    assert tiers_of(engine, path) == ["dn"] * 3 and small.store.check() == []
    assert small.write() == 0, "each block is written once"


def test_demote_work_says_what_the_slot_must_show() -> None:
    small = Tiered()
    engine = small.session()
    path = engine.path(2)
    engine.put(path, lineage=3)
    [work] = small.store.begin_demote(8, 0.0)
    assert [row.tobytes() for row in work.path_hash] == [path[:32], path[32:]]
    assert [row.tobytes() for row in work.parent_hash] == [engine.root, path[:32]]
    assert work.page.tolist() == [0, 1] and work.lineage.tolist() == [3, 3]
    assert work.unit.tolist() == [8, 10], "segment 1 starts at its own length"
    assert work.generation.tolist() == [2, 2] and work.block_bytes.tolist() == [4096] * 2
    assert work.offset.tolist() == [4096, 8192] and work.segment_index.tolist() == [0, 0]
    assert work.kinds[int(work.kind_id[0])] == KV
    [known] = work.namespaces.values()
    assert (known.namespace.root_digest(), known.max_lineage, known.enabled) == (
        engine.root, 16, True,
    )  # fmt: skip


def test_evict_page_that_is_in_nvme_is_demoted_and_found_again() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine)
    assert small.store.counters["pages_demoted"] == 3
    assert small.store.counters["pages_evicted"] == 0
    assert engine.put(path) == [KNOWN] * 3, "a writer need not send it again"
    waiting = engine.lookup(path)
    assert waiting.miss is Miss.COLD and waiting.promotion is not None
    assert waiting.promotion.boundary_pages == 3 and not waiting.lease_id
    assert small.read(waiting.promotion) == 3
    found = engine.lookup(path)
    assert found.boundary_pages == 3 and found.promotion is None
    assert found.columns[0].places["checksum"].tolist() == [0, 1, 2]
    assert tiers_of(engine, path) == ["dn"] * 3 and small.store.check() == []


def test_evict_page_that_is_not_in_nvme_is_lost() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = engine.path(3)
    engine.put(path)
    fill_dram(engine)
    assert tiers_of(engine, path) == [""] * 3 and small.store.counters["pages_evicted"] == 3


def test_block_being_written_stays_in_dram() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    [work] = small.store.begin_demote(8, 0.0)
    assert len(work) == 4
    assert engine.put(engine.path(1, "b")) == [DECLINED]
    assert small.finish_write(work) == 4
    assert engine.put(engine.path(1, "b")) == [SEALED]
    assert tiers_of(engine, path) == ["dn", "dn", "dn", "n"] and small.store.check() == []


def test_write_that_fails_leaves_the_block_in_dram_alone() -> None:
    small = Tiered()
    engine = small.session()
    engine.put(engine.path(2))
    assert small.write(failing=True) == 0
    assert tiers_of(engine, engine.path(2)) == ["d", "d"] and small.store.check() == []
    assert small.store.status(0.0).tiers[1].used_bytes == 0


@pytest.mark.parametrize("act", ["remove", "replace"])
def test_block_that_goes_while_it_is_written_never_comes_to_the_journal(act: str) -> None:
    small = Tiered()
    engine = small.session()
    path = engine.path(1)
    engine.put(path, lineage=2)
    [work] = small.store.begin_demote(8, 0.0)
    if act == "remove":
        small.store.remove(engine.root, None)
    else:
        assert engine.put(path, lineage=0) == [SEALED]
    assert small.store.check() == []
    assert small.finish_write(work) == 0 and not small.disk.journal
    assert small.store.check() == []
    small.write_all()
    assert len(small.disk.journal) == (0 if act == "remove" else 1)


def test_two_lookups_of_one_cold_path_read_it_once() -> None:
    small = Tiered(segments=2)
    engine, other = small.session(), small.session()
    path = engine.path(3)
    engine.put(path)
    small.write_all()
    fill_dram(engine, 8)
    first, second = engine.lookup(path), other.lookup(path[:64])
    assert first.promotion is not None and second.promotion is not None
    assert second.promotion.work is None
    assert second.promotion.tickets == first.promotion.tickets
    small.read(first.promotion)
    assert engine.stored(path) == 3 and other.stored(path[:64]) == 2
    assert small.store.counters["blocks_promoted"] == 3 and small.store.check() == []


def test_lookup_that_cannot_wait_gets_what_dram_alone_satisfies() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 3)
    engine.put(path[:32])  # known: nothing is written
    assert small.read(promotion_of(engine, path[:32])) == 1
    ask: dict[str, Any] = {"max_lineage": 255, "margin_pages": 0, "now": 0.0, "reach": Reach.DRAM}
    found = small.store.lookup(engine.session_id, path, [NeedAll(0, 0)], **ask)
    assert found.boundary_pages == 1 and found.miss is Miss.HIT
    engine.release(found)
    other = cold_path(engine, 1, "other")
    nothing = small.store.lookup(engine.session_id, other, [NeedLast(0)], **ask)
    assert nothing.miss is Miss.COLD


def promotion_of(engine: Engine, path: bytes) -> Promotion:
    """What a lookup of the path waits for."""
    promotion = engine.lookup(path).promotion
    assert promotion is not None
    return promotion


def test_lookup_of_more_than_dram_holds_is_answered_from_dram() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = engine.path(6)
    for start in (0, 3):
        assert engine.put(path[: 32 * (start + 3)], first=start) == [SEALED] * 3
        small.write_all()
        fill_dram(engine)
    assert tiers_of(engine, path) == ["n"] * 6
    found = engine.lookup(path)
    assert found.promotion is None and found.miss is Miss.COLD
    assert small.store.counters["promotions_refused"] == 1 and small.store.check() == []
    assert fetch(engine, path[:96]).boundary_pages == 3, "a shorter one fits"


def test_promotion_that_finds_nothing_forgets_the_block() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 3)
    promotion = promotion_of(engine, path)
    assert promotion.work is not None
    del small.disk.slots[int(promotion.work.unit[1])]
    assert small.read(promotion) == 2
    assert engine.stored(path) == 1 and small.store.check() == []
    assert small.store.counters["blocks_corrupt"] == 1
    assert engine.put(path) == [KNOWN, SEALED, KNOWN], "a writer brings it again"
    assert engine.stored(path) == 3


def test_promotion_that_was_not_tried_leaves_the_block_in_nvme() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 2)
    work = promotion_of(engine, path).work
    assert work is not None
    nothing = np.zeros(len(work), np.bool_)
    small.store.finish_promote(work.ticket, nothing, nothing, 0.0)
    assert tiers_of(engine, path) == ["n", "n"] and small.store.check() == []
    assert fetch(engine, path).boundary_pages == 2


def test_promotion_of_what_is_removed_meanwhile_brings_nothing() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 2)
    promotion = promotion_of(engine, path)
    small.store.remove(engine.root, path[:32])
    assert small.store.check() == []
    assert small.read(promotion) == 0 and engine.stored(path) == 0
    assert small.store.check() == []
    small.note_gone()
    assert len(small.disk.journal) == 0


def test_promotion_reads_anchors_before_states_before_kv() -> None:
    small = Tiered(segments=3)
    engine = small.session(layouts=[KV, STATE, ANCHOR])
    path = engine.path(2)
    engine.put(path, layouts=[0, 1, 2])
    small.write_all()
    for number in range(6):
        engine.put(engine.path(1, str(number)), layouts=[0, 1, 2])
    result = engine.lookup(path, [NeedAll(0, 0), NeedLast(1), NeedAll(2, 0)])
    assert result.promotion is not None and result.promotion.work is not None
    sizes = result.promotion.work.block_bytes.tolist()
    assert sizes == [512, 512, 8192, 4096, 4096]


def test_promotion_pins_what_the_lookup_found_in_dram() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 2)
    small.read(promotion_of(engine, path[:32]))
    promotion = promotion_of(engine, path)
    assert promotion.work is not None and len(promotion.work) == 1
    for number in range(6):
        engine.put(engine.path(1, f"more {number}"))
    small.read(promotion)
    assert engine.stored(path) == 2 and small.store.check() == []


def test_nvme_evicts_leaves_least_recently_used_first() -> None:
    small = Tiered(segments=2, nvme={"segments": 1})
    engine = small.session()
    old, new = engine.path(2, "old"), engine.path(2, "new")
    engine.put(old)
    engine.put(new)
    assert small.write_all() == 4
    engine.stored(old)
    engine.put(engine.path(1, "c"))
    assert small.write_all() == 1
    assert tiers_of(engine, old) == ["dn", "dn"] and tiers_of(engine, new) == ["dn", "d"]
    assert len(small.disk.journal) == 4 and small.store.check() == []


def test_nvme_never_gives_a_page_up_for_a_colder_one() -> None:
    small = Tiered(segments=2, nvme={"segments": 1})
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    engine.put(engine.path(1, "late"))
    [work] = small.store.begin_demote(4, 0.0)
    assert small.finish_write(work) == 4
    engine.stored(path)
    assert small.write_all() == 0
    assert tiers_of(engine, path) == ["dn"] * 4
    assert small.store.counters["nvme_blocks_refused"] > 0


def test_page_in_nvme_alone_goes_with_its_place() -> None:
    small = Tiered(segments=1, nvme={"segments": 1})
    engine = small.session()
    path = cold_path(engine, 3)
    for number in range(4):
        engine.put(engine.path(1, f"new {number}"))
        small.write_all()
    assert small.store.counters["pages_evicted_nvme"] > 0
    assert "n" not in "".join(tiers_of(engine, path)), "path is gone from its end"
    assert small.store.check() == []


def test_demote_mode_writes_only_what_eviction_would_drop_next() -> None:
    small = Tiered(segments=2, low_watermark=0.5, nvme={"ahead": False})
    engine = small.session()
    paths = [engine.path(1, str(number)) for number in range(6)]
    for path in paths[:4]:
        engine.put(path)
    assert small.write() == 0, "below the low watermark nothing is written"
    for path in paths[4:]:
        engine.put(path)
    assert small.write(limit=2) == 2
    assert [tiers_of(engine, path)[0] for path in paths] == ["dn", "dn", "d", "d", "d", "d"]


def test_demote_mode_looks_ahead_along_a_path() -> None:
    small = Tiered(segments=1, low_watermark=0.25, nvme={"ahead": False})
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    assert small.write(limit=3) == 3
    assert tiers_of(engine, path) == ["d", "dn", "dn", "dn"]


def test_demote_mode_writes_what_a_quota_would_push_out_next() -> None:
    """Its own leaves make room for a namespace at its quota, while dram has plenty."""
    bounded = ("acme", "bounded")
    small = Tiered(segments=16, quotas={bounded: 4 * SLOT_BYTES}, nvme={"ahead": False})
    engine, other = small.session(model="bounded"), small.session(model="free")
    other.put(other.path(4, "other"))
    paths = [engine.path(1, str(number)) for number in range(8)]
    for path in paths:
        engine.put(path)
        small.write_all()
    assert "".join(tiers_of(engine, path)[0] for path in paths[:4]) == "nnnn"
    assert tiers_of(other, other.path(4, "other")) == ["d"] * 4 and small.store.check() == []


def test_watermark_waits_for_nvme_and_a_writer_does_not() -> None:
    small = Tiered(segments=1, high_watermark=0.5, low_watermark=0.25)
    engine = small.session()
    path = engine.path(4)
    engine.put(path)
    assert small.store.evict_step(0.0, 8) == 0, "nothing is in nvme yet"
    small.write_all()
    assert small.store.evict_step(0.0, 8) == 3
    assert tiers_of(engine, path) == ["dn", "n", "n", "n"]
    small.store.pause_demotion(True)
    engine.put(engine.path(3, "b"))
    assert small.store.evict_step(0.0, 8) > 0, "nobody waits for what is not written"
    assert small.store.check() == []


def test_nvme_quota_bounds_a_namespace_there() -> None:
    small = Tiered(segments=4, nvme={"quotas": {("acme", "bounded"): 2 * 8192}})
    bounded, free = small.session(model="bounded"), small.session(model="free")
    free.put(free.path(2))
    for name in "abc":
        bounded.put(bounded.path(1, name))
        small.write_all()
    assert [tiers_of(bounded, bounded.path(1, name))[0] for name in "abc"] == ["d", "dn", "dn"]
    assert tiers_of(free, free.path(2)) == ["dn", "dn"] and small.store.check() == []


def test_remove_takes_both_tiers() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 3)
    removed = small.store.remove(engine.root, path[:32])
    assert removed.blocks_removed == 3 and engine.stored(path) == 0
    small.store.remove(engine.root, None)
    small.note_gone()
    assert not small.disk.journal and small.store.check() == []
    assert [tier.used_bytes for tier in small.store.status(0.0).tiers] == [0, 0]


def test_nvme_component_shares_keep_anchors_from_kv() -> None:
    shares = {Component.KV: 0.5, Component.ANCHOR: 0.5}
    small = Tiered(segments=8, nvme={"segments": 2, "component_share": shares})
    engine = small.session()
    old = engine.path(4, "old")
    engine.put(old, layouts=[0, 1])
    small.write_all()
    for number in range(8):
        engine.put(engine.path(1, str(number)))
        small.write_all()
    status = small.store.status(0.0).tiers[1]
    held = {part.component: part.segments for part in status.components}
    assert held == {Component.KV: 1, Component.ANCHOR: 1, Component.STATE: 0}
    assert small.store.check() == []


def test_waiting_queue_is_bounded_and_counts_what_it_passes_over() -> None:
    small = Tiered(segments=4, nvme={"queue_blocks": 3})
    engine = small.session()
    engine.put(engine.path(5))
    assert small.store.blocks_to_demote == 3
    assert small.store.counters["nvme_blocks_passed_over"] == 2


def test_waiting_namespaces_take_turns() -> None:
    small = Tiered(segments=4, nvme={"queue_blocks": 12})
    loud, quiet = small.session(model="loud"), small.session(model="quiet")
    loud.put(loud.path(8))
    quiet.put(quiet.path(2))
    loud.put(loud.path(4, "more"))
    assert small.store.blocks_to_demote == 10, "nobody has more than half while others wait"
    assert small.store.counters["nvme_blocks_passed_over"] == 4
    assert small.write(limit=4) == 4
    assert tiers_of(quiet, quiet.path(2)) == ["dn", "dn"]
    assert tiers_of(loud, loud.path(8)) == ["dn"] * 2 + ["d"] * 6
    assert small.write() == 6, "all that waits"
    assert small.write() == 4, "what was passed over, now that dram fills up"
    assert small.store.check() == []


def test_explain_names_the_tiers() -> None:
    small = Tiered(segments=1)
    engine = small.session()
    path = cold_path(engine, 3)
    [match] = small.store.explain(engine.root, path).layouts
    assert match.tiers == [("dram", 0), ("nvme", 3)]


def test_dram_alone_has_one_tier_and_no_work() -> None:
    small = Small()
    engine = small.session()
    engine.put(engine.path(2))
    assert small.store.begin_demote(8, 0.0) == [] and not len(small.store.take_cold_gone())
    [tier] = small.store.status(0.0).tiers
    assert tier.name == "dram"


def test_reserved_share_is_nobody_elses() -> None:
    reserves = {("acme", "kept"): 2 * 4096}
    small = Small(segments=1, reserves=reserves)
    kept, other = small.session(model="kept"), small.session(model="other")
    for name in "abc":
        kept.put(kept.path(1, name))
    for name in "uvwxyz":
        assert other.put(other.path(1, name)) == [SEALED]
    assert [kept.present(kept.path(1, name))[0] for name in "abc"] == [False, True, True]
    kept.put(kept.path(1, "d"))
    assert kept.present(kept.path(1, "d")) == [True] and small.store.check() == []
    shares = {space.model: space.share_bytes for space in small.store.status(0.0).namespaces}
    assert shares == {"kept": 2 * 4096, "other": 0}


def test_reserved_share_of_nvme_is_nobody_elses() -> None:
    nvme = {"segments": 1, "reserves": {("acme", "kept"): 2 * 8192}}
    small = Tiered(segments=4, nvme=nvme)
    kept, other = small.session(model="kept"), small.session(model="other")
    kept.put(kept.path(2))
    small.write_all()
    other.put(other.path(1, "a"))
    other.put(other.path(1, "b"))
    other.put(other.path(1, "c"))
    small.write_all()
    assert tiers_of(kept, kept.path(2)) == ["dn", "dn"] and small.store.check() == []
    assert [tiers_of(other, other.path(1, name))[0] for name in "abc"] == ["dn", "dn", "d"]
    shares = {space.model: space.cold_share_bytes for space in small.store.status(0.0).namespaces}
    assert shares == {"kept": 2 * 8192, "other": 0}


def test_page_that_leaves_is_counted_by_reason_and_age() -> None:
    small = Tiered(segments=1, high_watermark=0.5, low_watermark=0.25)
    engine = small.session()
    engine.put(engine.path(1, "old"))
    small.now = 100.0
    engine.put(engine.path(3, "new"))
    small.write_all()
    small.now = 130.0
    engine.put(engine.path(1, "next"))
    assert small.store.counters["pages_left_dram_for_room"] == 1
    assert small.store.counters["pages_left_dram_age_600"] == 1, "used 130 seconds ago"
    assert small.store.evict_step(130.0, 8) > 0
    assert small.store.counters["pages_left_dram_for_watermark"] > 0
    assert small.store.counters["pages_left_dram_age_60"] > 0, "used 30 seconds ago"


def test_flood_of_promotions_leaves_memory_to_other_namespaces() -> None:
    small = Tiered(segments=4, nvme={"segments": 16})
    many, one = small.session(layouts=[KV]), small.session("globex", layouts=[KV])
    paths = [many.path(2, f"flood {number}") for number in range(8)]
    other = one.path(2)
    for engine, path in ((one, other), *((many, path) for path in paths)):
        engine.put(path)
        small.write_all()
    fill_dram(many, 16)
    flood = [many.lookup(path).promotion for path in paths]
    begun = [promotion for promotion in flood if promotion is not None]
    assert 0 < len(begun) < len(paths)
    assert small.store.counters["promotions_refused"] == len(paths) - len(begun)
    small.read(promotion_of(one, other))
    assert one.stored(other) == 2
    for promotion in begun:
        small.read(promotion)
    small.read(promotion_of(many, paths[-1]))
    assert small.store.check() == []


def test_promotions_of_the_only_namespace_may_fill_memory() -> None:
    small = Tiered(segments=4, nvme={"segments": 16})
    engine = small.session(layouts=[KV])
    paths = [engine.path(2, f"path {number}") for number in range(8)]
    for path in paths:
        engine.put(path)
        small.write_all()
    fill_dram(engine, 16)
    assert all(engine.lookup(path).promotion for path in paths) and small.store.check() == []
