"""Goal: a direct read returns the wanted block's sealed bytes or says no, whatever a hint points at
and whatever happens to the slot meanwhile.  Method: a real segment and a real table in anonymous
memory; a view that lets the writer in between the look and the copy.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from anchorstore.client.direct import DirectReader
from anchorstore.client.mapping import Mapped, SegmentCache
from anchorstore.transport import hints
from anchorstore.transport.hints import HintView
from anchorstore.transport.segment import SegmentView, format_segment

BOOT, KEY, OTHER_KEY = bytes(range(16)), 11, 12
SEGMENT_BYTES, SLOT_BYTES, BLOCK_BYTES = 2**20, 4096, 4000
HASHES = [bytes([number]) * 32 for number in range(1, 5)]
BLOCK = np.arange(BLOCK_BYTES, dtype=np.uint64).astype(np.uint8)


class World:
    """One segment with number 7, one table, and a reader of both."""

    def __init__(self, *, check_checksums: bool = False) -> None:
        self.memory = mmap.mmap(-1, SEGMENT_BYTES)
        self.records = format_segment(memoryview(self.memory), BOOT, 7, SLOT_BYTES, 0)
        self.cache = SegmentCache()
        self.cache.add(BOOT, Mapped({7: self.memory}))
        self.table = memoryview(bytearray(hints.table_bytes(8)))
        self.entries = hints.format_table(self.table, BOOT, 8)
        self.reader = DirectReader(BOOT, self.cache, (KEY,), (BLOCK_BYTES,), check_checksums)
        self.reader.open(HintView(self.table, BOOT))
        self.reader.seen_enabled(self.reader.epoch)

    def seal(self, slot: int, path_hash: bytes, generation: int = 2, key: int = KEY) -> None:
        view = self.cache.get(BOOT, 7)
        assert view is not None
        offset = view.first_slot_offset + slot * SLOT_BYTES
        self.memory[offset : offset + BLOCK_BYTES] = BLOCK.tobytes()
        record = self.records[slot : slot + 1]
        record["path_hash"] = np.frombuffer(path_hash, np.uint64)
        record["layout_key"], record["generation"] = key, generation
        record["checksum"] = xxhash.xxh3_64_intdigest(BLOCK)

    def hint(self, slot: int, path_hash: bytes, segment_id: int = 7) -> None:
        word = np.frombuffer(path_hash[:8], np.uint64)
        homes, tag = hints.places(word, np.array([KEY], np.uint64), 8)
        place = hints.positions(np.array([segment_id], np.uint32), np.array([slot], np.uint32))
        row = self.entries[homes[0, 0]]
        row[int((row == 0).argmax())] = tag[0] | place[0]

    def read(self, *path_hashes: bytes, max_lineage: int = 255) -> int:
        out = np.zeros(len(path_hashes) * BLOCK_BYTES, np.uint8)
        copied = self.reader.copy(b"".join(path_hashes), 0, max_lineage, out)
        assert out[: copied * BLOCK_BYTES].tobytes() == BLOCK.tobytes() * copied
        return copied


def test_read_copies_pages_up_to_the_first_without_a_hint() -> None:
    world = World()
    for slot, path_hash in enumerate(HASHES[:3]):
        world.seal(slot, path_hash)
        if slot != 2:
            world.hint(slot, path_hash)
    assert world.reader.may_read()
    assert world.read(*HASHES) == 2
    assert world.reader.take_touched(1) == HASHES[0]  # the oldest first
    assert world.reader.take_touched(10) == HASHES[1]
    assert world.reader.take_touched(10) == b""


@pytest.mark.parametrize(
    "point",
    [
        lambda world: world.seal(3, HASHES[1]),  # the slot has another page
        lambda world: world.seal(3, HASHES[0], key=OTHER_KEY),  # of another layout
        lambda world: world.seal(3, HASHES[0], generation=3),  # being written
        lambda world: None,  # nothing yet
    ],
    ids=["another-page", "another-layout", "being-written", "nothing"],
)
def test_read_of_a_stale_hint_goes_on_to_the_right_one(point: Callable[[World], None]) -> None:
    world = World()
    point(world)
    world.hint(3, HASHES[0])
    assert world.read(HASHES[0]) == 0
    world.hint(2**24 - 1, HASHES[0])  # no such slot
    world.hint(0, HASHES[0], segment_id=9)  # no such segment here
    assert world.read(HASHES[0]) == 0
    world.seal(5, HASHES[0])
    world.hint(5, HASHES[0])
    assert world.read(HASHES[0]) == 1


def test_read_with_a_lineage_bound_skips_deeper_blocks() -> None:
    world = World()
    world.seal(1, HASHES[0])
    world.records["lineage"][1] = 4
    world.hint(1, HASHES[0])
    assert world.read(HASHES[0], max_lineage=3) == 0
    assert world.read(HASHES[0], max_lineage=4) == 1


class Interrupted(SegmentView):
    """Lets the writer in after the record was looked at and before the bytes are read."""

    def __init__(self, world: World, interruption: Callable[[World], None]) -> None:
        super().__init__(memoryview(world.memory), BOOT, 7)
        self._world, self._interruption = world, interruption

    def run(self, slot: int, count: int, block_bytes: int) -> np.ndarray:
        self._interruption(self._world)
        return super().run(slot, count, block_bytes)


def rewritten(world: World) -> None:
    """The slot is given to another block, whose bytes differ."""
    world.seal(0, HASHES[3], generation=4)
    world.memory[SEGMENT_BYTES // 2 :] = b"\xff" * (SEGMENT_BYTES // 2)
    offset = SegmentView(memoryview(world.memory), BOOT, 7).first_slot_offset
    world.memory[offset : offset + BLOCK_BYTES] = b"\xff" * BLOCK_BYTES


def half_rewritten(world: World) -> None:
    """As before, and the writer is not done."""
    rewritten(world)
    world.records["generation"][0] = 5


def reformatted(world: World) -> None:
    """The segment has another identity."""
    format_segment(memoryview(world.memory), BOOT, 8, SLOT_BYTES, 2)


@pytest.mark.parametrize("interruption", [rewritten, half_rewritten, reformatted])
def test_read_of_a_slot_that_changes_meanwhile_is_none(
    interruption: Callable[[World], None],
) -> None:
    world = World()
    world.seal(0, HASHES[0])
    world.hint(0, HASHES[0])
    assert world.read(HASHES[0]) == 1

    class Cache(SegmentCache):
        def get(self, boot_id: bytes, segment_id: int) -> SegmentView | None:
            return Interrupted(world, interruption)

    world.reader = DirectReader(BOOT, Cache(), (KEY,), (BLOCK_BYTES,), check_checksums=False)
    world.reader.open(HintView(world.table, BOOT))
    assert world.read(HASHES[0]) == 0
    assert not world.reader.touched


def test_read_with_checksums_refuses_damaged_bytes() -> None:
    for check_checksums, copied in [(True, 0), (False, 1)]:
        world = World(check_checksums=check_checksums)
        world.seal(0, HASHES[0])
        world.hint(0, HASHES[0])
        assert world.read(HASHES[0]) == 1
        world.records["checksum"][0] ^= np.uint64(1)
        assert world.read(HASHES[0]) == copied


def test_reader_is_closed_until_the_namespace_was_seen_on_in_this_epoch() -> None:
    world = World()
    assert world.reader.may_read()
    hints.EPOCH.pack_into(world.table, hints.EPOCH_OFFSET, 2)  # a kill switch moved
    assert (world.reader.may_read(), world.reader.is_known) == (False, True)
    world.reader.seen_enabled(1)  # an answer from before
    assert not world.reader.may_read()
    world.reader.seen_enabled(2)
    assert world.reader.may_read()
    world.reader.seen_enabled(0)  # an answer while the table was being replaced
    hints.EPOCH.pack_into(world.table, hints.EPOCH_OFFSET, 0)  # replaced
    assert (world.reader.may_read(), world.reader.is_known) == (False, False)
    assert world.reader.epoch == 0


def test_reader_without_hints_is_closed() -> None:
    reader = DirectReader(BOOT, SegmentCache(), (KEY,), (BLOCK_BYTES,), check_checksums=False)
    assert (reader.may_read(), reader.is_known) == (False, False)
    reader.open(None)
    reader.seen_enabled(reader.epoch)
    assert (reader.may_read(), reader.is_known) == (False, True)
