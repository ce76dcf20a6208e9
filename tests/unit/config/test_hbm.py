"""Goal: what is written of a device is what is used, and what cannot be used is refused by name.
Method: the kind and the section alone, then whole configurations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import pytest

from anchorstore.cli import settings
from anchorstore.config import build, problems
from anchorstore.config.hbm import DEVICES, HbmConfig, SlabConfig
from anchorstore.errors import ConfigError
from anchorstore.units import GIB, MIB


def wrong(**hbm: object) -> list[str]:
    """What a configuration with this section is refused for."""
    config = build({f"tiers.hbm.{key}": value for key, value in hbm.items()})
    return [problem for problem in problems(config) if problem.startswith("tiers.hbm")]


def test_devices_are_read_and_shown_as_they_were_written() -> None:
    found = DEVICES.parse(["cuda:3:8GiB", "cuda:0:8MiB"])
    assert found == (SlabConfig(3, 8 * GIB), SlabConfig(0, 8 * MIB))
    assert json.loads(DEVICES.show(found)) == ["cuda:3:8GiB", "cuda:0:8MiB"]
    assert DEVICES.read("cuda:3:8GiB, cuda:0:8MiB") == ["cuda:3:8GiB", "cuda:0:8MiB"]
    assert DEVICES.parse([]) == ()


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
def test_device_that_cannot_be_one_is_refused_with_its_position(
    written: object, words: str
) -> None:
    with pytest.raises(ValueError, match=f"number 2 .*{words}"):
        DEVICES.parse(["cuda:0:8GiB", written])


def test_devices_that_are_no_list_or_too_many_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a list"):
        DEVICES.parse("cuda:0:8GiB")
    with pytest.raises(ValueError, match="has 17 entries, limit 16"):
        DEVICES.parse([f"cuda:{ordinal}:8GiB" for ordinal in range(17)])


@pytest.mark.parametrize(
    ("capacities", "segment_bytes"),
    [([8 * GIB], 128 * MIB), ([8 * MIB], 2 * MIB), ([200 * GIB, 300 * GIB], GIB), ([], 2 * MIB)],
)
def test_segments_follow_from_the_smallest_device(
    capacities: list[int], segment_bytes: int
) -> None:
    devices = tuple(SlabConfig(ordinal, size) for ordinal, size in enumerate(capacities))
    config = HbmConfig(devices=devices)
    assert config.tier_segment_bytes == segment_bytes
    assert dataclasses.replace(config, segment_bytes=4 * MIB).tier_segment_bytes == 4 * MIB


def test_nothing_is_wanted_of_a_device_by_default() -> None:
    assert not HbmConfig().is_wanted and wrong() == []
    assert HbmConfig(devices=(SlabConfig(0, GIB),)).is_wanted
    assert HbmConfig(lent_slabs=1).is_wanted


def test_devices_that_are_wrong_together_are_named() -> None:
    one, two = SlabConfig(0, 8 * MIB), SlabConfig(1, 8 * MIB)
    assert wrong(devices=(one, two)) == []
    assert wrong(devices=(one, one)) == ["tiers.hbm.devices names cuda:0 twice"]
    [small] = wrong(devices=(one,), segment=16 * MIB)
    assert "cuda:0:8MiB must have at least 16MiB" in small
    [odd] = wrong(devices=(one,), segment=3 * MIB)
    assert odd == f"tiers.hbm.segment is {3 * MIB} bytes, must be a multiple of 2MiB"
    [many] = wrong(devices=(SlabConfig(0, 16 * GIB),), segment=2 * MIB)
    assert "8192 segments in cuda:0:16GiB, limit 4096" in many


def test_option_names_devices_and_is_repeatable() -> None:
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    args = parser.parse_args(["--hbm", "cuda:0:8GiB", "--hbm", "cuda:1:1GiB"])
    found = settings.loaded_from(args)
    assert found.config.tiers.hbm.devices == (SlabConfig(0, 8 * GIB), SlabConfig(1, GIB))
    assert found.sources["tiers.hbm.devices"] == "--hbm"
    with pytest.raises(ConfigError, match=r"tiers\.hbm\.devices .*number 1 is 'gpu:0:8GiB'"):
        settings.loaded_from(parser.parse_args(["--hbm", "gpu:0:8GiB"]))
