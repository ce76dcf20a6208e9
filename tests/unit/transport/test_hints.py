"""Goal: a hint is found where it was written, by reader and writer alike, and hostile memory is
refused.  Method: random keys through both halves; damaged headers; any bytes as a table.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import BootChanged, InvalidRequest
from anchorstore.transport import hints

BOOT = bytes(range(16))


def table(buckets: int) -> tuple[memoryview, np.ndarray]:
    memory = memoryview(bytearray(hints.table_bytes(buckets)))
    return memory, hints.format_table(memory, BOOT, buckets)


@given(
    st.integers(1, 2**20),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**24 - 1),
    st.integers(0, 2**24 - 1),
)
def test_hint_of_any_key_is_found_where_the_writer_puts_it(
    buckets: int, path_hash: bytes, key: int, segment_id: int, slot: int
) -> None:
    word = np.frombuffer(path_hash[:8], np.uint64)
    homes, tag = hints.places(word, np.array([key], np.uint64), buckets)
    assert (homes >= 0).all() and (homes < buckets).all()
    few = min(buckets, 64)
    memory, entries = table(few)
    homes, tag = hints.places(word, np.array([key], np.uint64), few)
    place = hints.positions(np.array([segment_id], np.uint32), np.array([slot], np.uint32))
    view = hints.HintView(memory, BOOT)
    for home in homes[0]:
        entries[home, 7] = tag[0] | place[0]
        assert set(view.find(path_hash, key)) == {(segment_id, slot)}
        entries[home, 7] ^= np.uint64(1 << 48)  # another tag
        assert view.find(path_hash, key) == []


def test_keys_spread_over_the_buckets() -> None:
    words = np.frombuffer(os.urandom(8 * 64_000), np.uint64)
    for key in (0, 1, 2**64 - 1):
        homes, _ = hints.places(words, np.full(len(words), key, np.uint64), 1000)
        for home in homes.T:
            counts = np.bincount(home, minlength=1000)
            assert counts.min() > 20 and counts.max() < 140  # 64 on average
        assert np.mean(homes[:, 0] == homes[:, 1]) < 0.01


def test_view_of_another_boot_is_refused() -> None:
    memory, _ = table(4)
    with pytest.raises(BootChanged):
        hints.HintView(memory, bytes(16))


@pytest.mark.parametrize("buckets", [0, 5, 2**63])
def test_view_of_a_table_larger_than_its_memory_is_refused(buckets: int) -> None:
    memory, _ = table(4)
    memory[32:40] = buckets.to_bytes(8, "little")
    with pytest.raises(InvalidRequest, match="buckets"):
        hints.HintView(memory, BOOT)


@given(st.binary(min_size=192, max_size=192), st.binary(min_size=32, max_size=32))
def test_any_entries_yield_places_and_no_error(entries: bytes, path_hash: bytes) -> None:
    memory, _ = table(1)
    memory[64:192] = entries[:128]
    for segment_id, slot in hints.HintView(memory, BOOT).find(path_hash, 5):
        assert 0 <= segment_id < 2**24 and 0 <= slot < 2**24
    with pytest.raises(InvalidRequest):
        hints.HintView(memoryview(entries), BOOT)
