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
    RECORD_BYTES,
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
    assert shape.first_slot_offset >= 64 + RECORD_BYTES * shape.slots
    spare = shape.slot_bytes + RECORD_BYTES + 2 * ALIGN_BYTES
    assert segment_bytes - end < spare or shape.slots == 0


def test_view_of_a_fresh_segment_sees_blocks_in_place_read_only() -> None:
    data = memory()
    format_segment(data, BOOT, 7, 65536, 0)
    view = SegmentView(data, BOOT, 7)
    offset = view.first_slot_offset + 65536
    data[offset : offset + 3] = b"abc"
    block = view.block(1, 3)
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
    data = memory()
    with pytest.raises(TornBlock):  # no header: somebody is writing one
        SegmentView(data, BOOT, 0)
    data[:8] = b"GARBAGE!"
    with pytest.raises(InvalidRequest):
        SegmentView(data, BOOT, 0)


def test_block_outside_the_slots_is_refused() -> None:
    data = memory()
    format_segment(data, BOOT, 7, 65536, 0)
    view = SegmentView(data, BOOT, 7)
    for slot, size in ((-1, 65536), (view.slots, 65536), (2**40, 1), (0, 65537)):
        with pytest.raises(InvalidRequest):
            view.block(slot, size)
    assert view.record(view.slots) is None


def test_blocks_stand_until_their_slot_or_their_segment_is_reused() -> None:
    data = memory()
    records = format_segment(data, BOOT, 7, 65536, 10)
    view = SegmentView(data, BOOT, 7)
    slots, held = np.array([0, 3], np.uint32), np.array([12, 12], np.uint32)
    records["generation"] = 12
    assert view.stands(slots, held).tolist() == [True, True]
    assert view.slot_stands(3, 12)
    records["generation"][3] = 13
    assert view.stands(slots, held).tolist() == [True, False]
    assert not view.slot_stands(3, 12) and view.slot_stands(0, 12)
    format_segment(data, BOOT, 9, 4096, 14)
    assert view.stands(slots, held).tolist() == [False, False]
    assert not view.slot_stands(0, 12) and view.record(0) is None
