"""Goal: a segment's header and generations say truthfully whether bytes still stand.

Method: format memory, read it through a view, then reuse slots and segments under the view.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import BootChanged, InvalidRequest, TornBlock
from anchorstore.transport.segment import (
    ALIGN_BYTES,
    SegmentShape,
    SegmentView,
    format_segment,
    slot_bytes_of,
)

BOOT = bytes(range(16))


def memory(size: int = 2**20) -> memoryview:
    return memoryview(bytearray(size))


@given(st.integers(2**13, 2**26), st.integers(1, 2**20))
def test_shape_of_any_size_fits_its_memory_and_wastes_less_than_a_slot(
    segment_bytes: int, block_bytes: int
) -> None:
    shape = SegmentShape(segment_bytes, slot_bytes_of(block_bytes))
    end = shape.offset(shape.slots)
    assert shape.slots == 0 or end <= segment_bytes
    assert shape.first_slot_offset % ALIGN_BYTES == 0
    assert shape.first_slot_offset >= 64 + 4 * shape.slots
    assert segment_bytes - end < shape.slot_bytes + 2 * ALIGN_BYTES or shape.slots == 0


def test_view_of_a_fresh_segment_sees_blocks_in_place_read_only() -> None:
    data = memory()
    format_segment(data, BOOT, 7, 65536, 0)
    view = SegmentView(data, BOOT, 7)
    offset = view.first_slot_offset + 65536
    data[offset : offset + 3] = b"abc"
    block = view.block(offset, 3)
    assert bytes(block) == b"abc"
    assert block.readonly


@pytest.mark.parametrize(
    ("boot", "segment", "error"), [(bytes(16), 7, BootChanged), (BOOT, 8, TornBlock)]
)
def test_view_of_another_boot_or_segment_is_refused(
    boot: bytes, segment: int, error: type[Exception]
) -> None:
    data = memory()
    format_segment(data, BOOT, 7, 65536, 0)
    with pytest.raises(error):
        SegmentView(data, boot, segment)


def test_view_of_garbage_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        SegmentView(memory(), BOOT, 0)


def test_block_outside_the_slots_is_refused() -> None:
    data = memory()
    format_segment(data, BOOT, 7, 65536, 0)
    view = SegmentView(data, BOOT, 7)
    for offset in (0, 64, len(data) - 10, len(data) + 4096):
        with pytest.raises(InvalidRequest):
            view.block(offset, 65536)


def test_blocks_stand_until_their_slot_or_their_segment_is_reused() -> None:
    data = memory()
    generations = format_segment(data, BOOT, 7, 65536, 10)
    view = SegmentView(data, BOOT, 7)
    offsets = np.array([view.first_slot_offset + 65536 * slot for slot in (0, 3)], np.uint64)
    generations[:] = 12
    held = np.array([12, 12], np.uint32)
    assert view.stands(offsets, held).tolist() == [True, True]
    generations[3] = 13
    assert view.stands(offsets, held).tolist() == [True, False]
    format_segment(data, BOOT, 9, 4096, 14)
    assert view.stands(offsets, held).tolist() == [False, False]
