"""Goal: what is written of a device is what is used, and what cannot be used is refused by name.
Method: the kind and the section alone.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from anchorstore.config.hbm import DEVICE, HbmConfig, SlabConfig
from anchorstore.units import GIB, MIB


def test_device_is_read_and_shown_as_it_was_written() -> None:
    found = DEVICE.parse("cuda:3:8GiB")
    assert found == SlabConfig(3, 8 * GIB)
    assert json.loads(DEVICE.show(found)) == "cuda:3:8GiB"
    assert DEVICE.parse("") is None and DEVICE.show(None) == '""'


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("cuda:0", "must be"),
        ("0:8GiB", "must be"),
        (8, "must be"),
        ("cuda:-1:8GiB", "must be"),
        ("cuda:300:8GiB", "limit 255"),
        ("cuda:0:8", "of cuda:0: is 8B, must be 8MiB to 1TiB"),
        ("cuda:0:many", "of cuda:0: 'many' is not a size"),
    ],
)
def test_device_that_cannot_be_one_is_refused(written: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DEVICE.parse(written)


@pytest.mark.parametrize(
    ("capacity_bytes", "segment_bytes", "segments"),
    [(8 * GIB, 128 * MIB, 64), (8 * MIB, 2 * MIB, 4), (200 * GIB, GIB, 200), (GIB, 16 * MIB, 64)],
)
def test_segments_follow_from_the_capacity(
    capacity_bytes: int, segment_bytes: int, segments: int
) -> None:
    config = HbmConfig(device=SlabConfig(0, capacity_bytes))
    assert (config.tier_segment_bytes, config.tier_segments) == (segment_bytes, segments)
    other = dataclasses.replace(config, segment_bytes=4 * MIB)
    assert other.tier_segments == capacity_bytes // (4 * MIB)


def test_no_device_is_no_segment() -> None:
    assert HbmConfig().device is None and HbmConfig().tier_segments == 0
