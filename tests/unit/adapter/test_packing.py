"""Goal: kept rows land in the right columns of a batch, with gaps between runs only.
Method: drawings worked by hand, then properties over random sets of positions.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.packing import columns_of, kept_positions, pack


def test_kept_positions_are_the_last_rows_of_each_page() -> None:
    assert kept_positions(2, 3, 2, 8).tolist() == [22, 23, 30, 31, 38, 39]
    assert kept_positions(0, 2, 4, 4).tolist() == list(range(8))
    assert kept_positions(5, 0, 4, 8).tolist() == []


def test_columns_between_runs_leave_the_gap() -> None:
    positions = np.array([5, 6, 7, 13, 14, 15, 16, 40])
    assert columns_of(positions, 0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert columns_of(positions, 3).tolist() == [0, 1, 2, 6, 7, 8, 9, 13]
    assert columns_of(positions[:0], 3).tolist() == []


def test_pack_of_two_hits_aligns_their_ends() -> None:
    packing = pack([np.array([6, 7, 14, 15]), np.array([15])], gap=3)
    assert packing.length == 7
    assert [columns.tolist() for columns in packing.columns] == [[0, 1, 5, 6], [6]]
    mask = packing.mask()
    assert mask is not None
    assert mask.astype(int).tolist() == [[1, 1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1]]


def test_pack_without_holes_needs_no_mask() -> None:
    assert pack([np.arange(10, 20)], gap=3).mask() is None
    assert pack([np.arange(10, 20), np.arange(64, 74)], gap=3).mask() is None
    assert pack([np.arange(10, 20), np.arange(64, 73)], gap=3).mask() is not None


@given(
    hits=st.lists(st.sets(st.integers(0, 200), max_size=40), min_size=1, max_size=5),
    gap=st.integers(0, 5),
)
def test_pack_keeps_order_gaps_and_right_alignment(hits: list[set[int]], gap: int) -> None:
    positions = [np.array(sorted(hit), np.int64) for hit in hits]
    packing = pack(positions, gap)
    for rows, columns in zip(positions, packing.columns, strict=True):
        assert len(rows) == len(columns)
        if not len(rows):
            continue
        assert columns[-1] == packing.length - 1
        assert columns[0] >= 0
        expected = np.where(np.diff(rows) == 1, 1, gap + 1)
        assert np.array_equal(np.diff(columns), expected)
    mask = packing.mask()
    assert (0 if mask is None else int((~mask).sum())) == len(hits) * packing.length - sum(
        len(rows) for rows in positions
    )
