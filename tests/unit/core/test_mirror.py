"""Goal: hbm holds copies of what is asked for again, each found exactly while its block stands.
Method: small mirrors and places made by hand; random walks are in tests/model.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from anchorstore.server.core.mirror import Mirror, MirrorConfig, MirrorWork
from anchorstore.server.core.types import Gone
from anchorstore.transport.segment import DEVICE_IDS_FROM, PLACE, Places, SegmentShape

SEGMENT_BYTES = 5 * 4096  # a header page and 4 slots of 4 KiB, or 2 of 8 KiB
KV, STATE = 4000, 8192
PER_SEGMENT = 4


def mirror(segments: int = 2, **more: int) -> Mirror:
    return Mirror(MirrorConfig(segments, SEGMENT_BYTES, **more))


def places(*slots: int, segment: int = 7, generation: int = 2) -> Places:
    """Blocks in slots of one dram segment."""
    made = np.zeros(len(slots), PLACE)
    made["segment"], made["slot"], made["generation"] = segment, slots, generation
    made["checksum"] = np.array(slots, np.uint64) + 1000
    return made


def sure(work: MirrorWork | None) -> MirrorWork:
    assert work is not None
    return work


def copied(made: Mirror, blocks: Places, size: int = KV) -> MirrorWork:
    """Asks for blocks until they are copied."""
    work = None
    for _ in range(made.config.sightings):
        work = made.see(blocks, size)
    done = sure(work)
    made.finish(done.ticket, np.ones(len(done), np.bool_))
    assert made.check() == []
    return done


def found(made: Mirror, blocks: Places) -> list[bool]:
    return [bool(segment) for segment in made.find(blocks)["segment"]]


def test_block_asked_for_twice_is_copied_and_found_where_it_was_put() -> None:
    made, blocks = mirror(), places(3, 1)
    assert made.see(blocks, KV) is None
    work = sure(made.see(blocks, KV))
    assert work.sources.tolist() == blocks.tolist()
    assert work.generations.tolist() == [1, 1] and work.block_bytes == KV
    shape = SegmentShape(SEGMENT_BYTES, 4096)
    assert work.offsets.tolist() == [shape.offset(int(slot)) for slot in work.slots]
    [order] = work.formats
    assert (order.index, order.segment_id, order.slots) == (0, DEVICE_IDS_FROM, PER_SEGMENT)
    assert not order.fresh_memory
    assert found(made, blocks) == [False, False], "it is still being written"
    made.finish(work.ticket, np.array([True, True]))
    hot = made.find(blocks)
    assert hot["segment"].tolist() == [DEVICE_IDS_FROM] * 2
    assert hot["slot"].tolist() == work.slots.tolist()
    assert hot["generation"].tolist() == [2, 2]
    assert hot["checksum"].tolist() == blocks["checksum"].tolist()
    assert (made.blocks, made.used_bytes) == (2, 8192)


def test_block_being_copied_or_copied_is_not_copied_again() -> None:
    made, blocks = mirror(sightings=1), places(0, 1)
    work = sure(made.see(blocks, KV))
    assert made.see(blocks, KV) is None
    made.finish(work.ticket, np.array([True, True]))
    assert made.see(blocks, KV) is None


def test_copy_that_did_not_arrive_is_tried_when_it_is_asked_for_again() -> None:
    made, blocks = mirror(), places(0, 1)
    made.see(blocks, KV)
    work = sure(made.see(blocks, KV))
    made.finish(work.ticket, np.array([True, False]))
    assert found(made, blocks) == [True, False] and made.check() == []
    assert made.see(blocks, KV) is None, "counted anew"
    again = sure(made.see(blocks, KV))
    assert again.sources["slot"].tolist() == [1]


def test_place_with_another_generation_is_another_block() -> None:
    made = mirror()
    copied(made, places(0, 1))
    assert found(made, places(0, 1, generation=4)) == [False, False]
    assert made.see(places(1, generation=4), KV) is None
    assert found(made, places(0, 1)) == [True, False], "the old block of slot 1 is known to be gone"
    assert found(made, places(1, generation=4)) == [False], "the new one has no copy yet"
    assert made.check() == []


def test_block_gone_from_dram_loses_its_copy() -> None:
    made, blocks = mirror(), places(0, 1, 2)
    copied(made, blocks)
    made.forget([Gone("acme", 7, np.array([1, 900], np.uint32)), Gone("acme", 99, blocks["slot"])])
    assert found(made, blocks) == [True, False, True]
    assert made.check() == [] and made.used_bytes == 2 * 4096


def test_block_gone_while_it_is_copied_is_never_found() -> None:
    made, blocks = mirror(sightings=1), places(0, 1)
    work = sure(made.see(blocks, KV))
    made.forget([Gone("acme", 7, np.array([0], np.uint32))])
    assert made.check() == []
    again = sure(made.see(places(0, generation=4), KV))  # another block in the same slot of dram
    made.finish(work.ticket, np.array([True, True]))
    assert found(made, blocks) == [False, True]
    made.finish(again.ticket, np.array([True]))
    assert found(made, places(0, generation=4)) == [True]
    assert made.check() == []


def test_full_tier_gives_up_what_was_used_least_recently() -> None:
    made = mirror(segments=1)
    copied(made, places(0, 1, 2, 3))
    made.find(places(0))
    made.find(places(2))
    copied(made, places(8, 9))
    assert found(made, places(0, 1, 2, 3, 8, 9)) == [True, False, True, False, True, True]
    assert made.counters["copies_evicted"] == 2


def test_copies_used_by_the_same_lookup_are_not_given_up_for_it() -> None:
    made = mirror(segments=1, sightings=1)
    copied(made, places(0, 1, 2, 3))
    blocks = places(0, 1, 2, 3, 4)
    made.find(blocks)
    assert made.see(blocks, KV) is None
    assert found(made, blocks) == [True] * 4 + [False]


def test_more_than_a_batch_is_copied_in_part() -> None:
    made = mirror(sightings=1, batch_blocks=3)
    work = sure(made.see(places(*range(6)), KV))
    assert work.sources["slot"].tolist() == [0, 1, 2]
    rest = sure(made.see(places(*range(6)), KV))
    assert rest.sources["slot"].tolist() == [3, 4, 5]
    assert made.check() == []


def test_more_than_the_tier_holds_is_copied_in_part() -> None:
    made = mirror(segments=1, sightings=1)
    work = sure(made.see(places(*range(6)), KV))
    assert len(work) == PER_SEGMENT and made.check() == []
    assert made.see(places(10), KV) is None, "every slot is being written"


def test_block_larger_than_a_segment_is_left_where_it_is() -> None:
    made = mirror(sightings=1)
    assert made.see(places(0), SEGMENT_BYTES) is None
    assert made.see(places(), KV) is None


def test_slot_size_without_its_share_takes_the_stalest_segment_of_another() -> None:
    made = mirror(segments=2)
    first = copied(made, places(0, 1, 2, 3))
    copied(made, places(4, 5, 6, 7))
    made.find(places(0))  # of the first segment
    work = copied(made, places(0, 1, segment=9), STATE)
    [order] = work.formats
    assert (order.index, order.slot_bytes, order.slots) == (1, 8192, 2)
    assert order.first_generation == 2 and order.segment_id not in (first.formats[0].segment_id,)
    assert found(made, places(0, 4, 5)) == [True, False, False]
    assert found(made, places(0, 1, segment=9)) == [True, True]
    copied(made, places(20, 21))  # one segment each: now each size keeps to its own
    assert found(made, places(0, 1, segment=9)) == [True, True]


def test_slot_size_takes_from_nobody_who_has_no_more_than_a_share() -> None:
    made = mirror(segments=2, sightings=1)
    copied(made, places(0, 1))
    copied(made, places(0, segment=9), STATE)
    made.find(places())
    assert made.see(places(0, segment=11), 12_288) is None
    assert found(made, places(0, 1)) == [True, True]
    assert found(made, places(0, segment=9)) == [True]


def test_segment_of_dram_whose_blocks_are_all_gone_is_forgotten() -> None:
    made = mirror()
    copied(made, places(0, 1))
    made.see(places(5), KV)
    for slots in ([0, 1], [5]):
        assert made._known
        made.forget([Gone("acme", 7, np.array(slots, np.uint32))])
    assert not made._known


def test_segment_that_is_written_is_taken_from_nobody() -> None:
    made = mirror(segments=2, sightings=1)
    one = sure(made.see(places(0, 1, 2, 3), KV))
    two = sure(made.see(places(4, 5, 6, 7), KV))
    assert made.see(places(0, segment=9), STATE) is None
    for work in (one, two):
        made.finish(work.ticket, np.ones(4, np.bool_))
    made.find(places())
    assert made.see(places(0, segment=9), STATE) is not None


def test_device_that_is_gone_takes_every_copy_along() -> None:
    made = mirror()
    copied(made, places(0, 1))
    open_work = None
    for _ in range(2):
        open_work = made.see(places(2), KV)
    made.clear()
    assert found(made, places(0, 1)) == [False, False]
    made.finish(sure(open_work).ticket, np.array([True]))
    assert made.check() == [] and made.blocks == 0
    assert made.counters["copies_lost"] == 2


def test_worn_segment_that_changes_its_slot_size_asks_for_fresh_memory() -> None:
    made = mirror(segments=2)
    copied(made, places(0, 1, 2, 3))
    copied(made, places(4, 5, 6, 7))
    for segment in made._segments.values():
        segment.slab._generations[:] = 2**32 - 4
    order = copied(made, places(0, segment=9), STATE).formats[0]
    assert order.fresh_memory and order.first_generation == 0


@pytest.mark.parametrize("changes", [{"sightings": 0}, {"batch_blocks": 0}, {"sightings": 256}])
def test_config_without_sense_is_a_broken_invariant(changes: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        mirror(**changes)


def test_check_finds_a_copy_that_nobody_knows_of() -> None:
    made = mirror()
    copied(made, places(0, 1))
    made._known[7].home[1] = 0
    assert len(made.check()) == 2


def test_question_whether_blocks_have_copies_uses_none() -> None:
    made, blocks = mirror(segments=1), places(0, 1, 2, 3)
    copied(made, blocks)
    made.find(places(2, 3))
    assert made.holds(blocks).all()
    copied(made, places(8, 9))
    assert made.holds(places(0, 1, 2, 3, 8, 9)).tolist() == [False, False, True, True, True, True]
    assert made.counters["copies_found"] == 2


def test_copies_whose_blocks_are_gone_are_counted_apart_from_the_evicted() -> None:
    made = mirror()
    copied(made, places(0, 1, 2))
    made.forget([Gone("acme", 7, np.array([0, 2, 900], np.uint32))])
    assert made.counters["copies_dropped"] == 2 and not made.counters["copies_evicted"]


def test_mirrors_that_share_ids_never_use_one_twice() -> None:
    ids = itertools.count(DEVICE_IDS_FROM)
    both = [Mirror(MirrorConfig(2, SEGMENT_BYTES, sightings=1), ids) for _ in range(2)]
    for made in both:
        work = sure(made.see(places(0), KV))
        made.finish(work.ticket, np.array([True]))
    found = [int(made.find(places(0))["segment"][0]) for made in both]
    assert found == [DEVICE_IDS_FROM, DEVICE_IDS_FROM + 1]


def test_copies_on_their_way_and_free_segments_are_counted() -> None:
    made = mirror(segments=3, sightings=1)
    work = sure(made.see(places(0, 1), KV))
    assert (made.writing, made.segments_free) == (2, 2)
    made.finish(work.ticket, np.array([True, True]))
    assert (made.writing, made.segments_free) == (0, 2)
