"""Goal: whatever the medium, a slot gives back the bytes that were sealed in it, or says that it
does not.
Method: one suite over every tier, driven as the daemon drives it and looked at as a client does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from anchorstore.errors import TornBlock
from tests.contract.rigs import SEGMENT_BYTES, SEGMENTS, Block, Format, Rig, view

SIZES = (1, 4096, 65_536, 300_001)


def form(index: int = 0, segment_id: int = 1, first_generation: int = 0) -> Format:
    return Format(index, segment_id, 303_104, first_generation)


def blocks_of(made: Format, slots: Sequence[int], size: int, generation: int = 1) -> list[Block]:
    """A different block for each slot."""
    random = np.random.default_rng(generation * 1000 + made.segment_id)
    return [
        Block(made, slot, random.integers(0, 256, size, dtype=np.uint8), generation)
        for slot in slots
    ]


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_any_size_come_back_and_are_seen_by_clients(rig: Rig, size: int) -> None:
    made = form()
    rig.tier.format(made)
    blocks = blocks_of(made, [4, 0, 3], size)
    assert rig.write(blocks) == [True, True, True]
    assert rig.read(blocks) == [block.data.tobytes() for block in blocks]
    assert [rig.seen(block) for block in blocks] == [block.data.tobytes() for block in blocks]


def test_sealed_slot_shows_its_record_to_clients(rig: Rig) -> None:
    made = form(first_generation=6)
    rig.tier.format(made)
    [block] = blocks_of(made, [2], 5000, generation=7)
    assert rig.write([block]) == [True]
    shown = view(rig, made)
    path_hash = block.path_hash.tobytes()
    assert shown.record(2) == (8, block.lineage, block.layout_key, block.checksum, path_hash)
    assert shown.slot_stands(2, 8)
    assert rig.tier.records(0)["generation"].tolist() == [6, 6, 8, 6, 6, 6]


def test_write_into_slots_leaves_their_neighbours_alone(rig: Rig) -> None:
    made = form()
    rig.tier.format(made)
    blocks = blocks_of(made, range(5), 303_104)
    assert all(rig.write(blocks))
    middle = blocks_of(made, [2], 303_104, generation=3)
    assert rig.write(middle) == [True]
    expected = [*blocks[:2], *middle, *blocks[3:]]
    assert [rig.seen(block) for block in expected] == [b.data.tobytes() for b in expected]


def test_block_unlike_its_checksum_is_never_sealed(rig: Rig) -> None:
    made = form()
    rig.tier.format(made)
    blocks = blocks_of(made, [0, 1, 2], 70_000)
    sums = [blocks[0].checksum, blocks[1].checksum ^ 1, blocks[2].checksum]
    assert rig.write(blocks, sums) == [True, False, True]
    assert rig.tier.records(0)["generation"][:4].tolist() == [2, 1, 2, 0]
    assert not view(rig, made).slot_stands(1, 2)


def test_block_damaged_where_it_lies_is_not_read(rig: Rig) -> None:
    made = form()
    rig.tier.format(made)
    blocks = blocks_of(made, [0, 1, 2], 70_000)
    assert all(rig.write(blocks))
    rig.damage(blocks[1])
    found = rig.read(blocks)
    assert found == [blocks[0].data.tobytes(), None, blocks[2].data.tobytes()]


def test_slot_written_again_no_longer_gives_the_old_block(rig: Rig) -> None:
    made = form()
    rig.tier.format(made)
    [old], [new] = blocks_of(made, [1], 9000), blocks_of(made, [1], 9000, generation=3)
    assert rig.write([old]) == [True]
    shown = view(rig, made)
    assert rig.write([new]) == [True]
    assert rig.read([old]) == [None]
    assert rig.read([new]) == [new.data.tobytes()]
    assert not shown.slot_stands(1, 2) and shown.slot_stands(1, 4)


@pytest.mark.parametrize("fresh_memory", [False, True])
def test_segment_formatted_anew_shows_nobody_other_bytes_than_before(
    rig: Rig, fresh_memory: bool
) -> None:
    first = form(1, segment_id=5)
    rig.tier.format(first)
    blocks = blocks_of(first, [0], 4096)
    assert all(rig.write(blocks))
    shown = view(rig, first)
    again = Format(1, 6, slot_bytes=8192, first_generation=10, fresh_memory=fresh_memory)
    rig.tier.format(again)
    with pytest.raises(LookupError):
        rig.tier.index_of(5)
    assert rig.tier.index_of(6) == 1
    assert set(rig.tier.records(1)["generation"].tolist()) == {10}
    [block] = blocks_of(again, [200], 8000, generation=11)
    assert rig.write([block]) == [True]
    assert rig.seen(block) == block.data.tobytes()
    old_bytes = blocks[0].data.tobytes()
    assert not shown.slot_stands(0, 2) or bytes(shown.block(0, 4096)) == old_bytes


def test_segment_of_another_id_is_not_taken_for_this_one(rig: Rig) -> None:
    rig.tier.format(form(0, segment_id=3))
    with pytest.raises(TornBlock, match="reformatted as 3"):
        view(rig, form(0, segment_id=2))


def test_segments_beside_each_other_keep_their_own_blocks(rig: Rig) -> None:
    made = [form(index, segment_id=10 + index) for index in range(SEGMENTS)]
    for one in made:
        rig.tier.format(one)
    last = made[0].slots - 1
    blocks = [blocks_of(one, [last], 303_104)[0] for one in made]
    assert all(rig.write(blocks))
    assert rig.read(blocks) == [block.data.tobytes() for block in blocks]
    assert [rig.tier.index_of(10 + index) for index in range(SEGMENTS)] == list(range(SEGMENTS))


def test_client_of_a_segment_can_neither_write_nor_resize_what_it_maps(rig: Rig) -> None:
    rig.tier.format(form())
    descriptor = os.dup(rig.tier.descriptor(0))
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, SEGMENT_BYTES)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def test_writes_and_reads_from_many_threads_mix_nothing_up(rig: Rig) -> None:
    made = [form(index, segment_id=20 + index) for index in range(SEGMENTS)]
    for one in made:
        rig.tier.format(one)

    def rounds(one: Format) -> list[bool]:
        right = []
        for number in range(4):
            blocks = blocks_of(one, [0, 3, 5], 100_000, generation=2 * number + 1)
            written = rig.write(blocks)
            found = rig.read(blocks)
            right.append(all(written) and found == [block.data.tobytes() for block in blocks])
        return right

    with ThreadPoolExecutor(SEGMENTS) as threads:
        assert all(all(found) for found in threads.map(rounds, made))
