"""Goal: several devices are one space of units, and one's fault is not another's.
Method: two small devices under one tier; blocks across both; restarts with the order changed.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from anchorstore.errors import ConfigError
from anchorstore.keys import Namespace
from anchorstore.tiers.nvme.format import UNIT_BYTES
from anchorstore.tiers.nvme.notes import NamespaceNote
from anchorstore.tiers.nvme.plans import ReadPlan, Status, chosen
from anchorstore.tiers.nvme.tier import DevicePlace, NvmeTier
from tests.unit.tiers.nvme.bench import (
    CAPACITY_BYTES,
    NOTE,
    OPTIONS,
    SEGMENT_BYTES,
    Blocks,
    kind_of,
    statuses,
    write,
)

SEGMENT_UNITS = SEGMENT_BYTES // UNIT_BYTES
OTHER = NamespaceNote(Namespace("default", "other", bytes(32)), 0)


def open_tier(*paths: pathlib.Path) -> NvmeTier:
    for path in paths:
        path.mkdir(exist_ok=True)
    places = [DevicePlace(path, CAPACITY_BYTES) for path in paths]
    return NvmeTier.open(places, SEGMENT_BYTES, log=list[str]().append, options=OPTIONS)


def spread(tier: NvmeTier) -> Blocks:
    """Blocks whose slots lie on both devices, in turns."""
    blocks = Blocks.made(tier, 6, 3968)
    first = blocks.plan.unit + np.uint32(SEGMENT_UNITS)
    second = blocks.plan.unit + np.uint32(tier.devices[1].base_unit)
    unit = np.where(np.arange(6) % 2, first, second).astype(np.uint32)
    blocks.plan = dataclasses.replace(blocks.plan, unit=unit)
    return blocks


def test_segments_of_devices_follow_each_other_from_one(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    first, second = tier.devices
    assert (first.base_unit, tier.segments) == (SEGMENT_UNITS, 2 * first.segments)
    assert second.base_unit == first.base_unit + first.units
    tier.close()


def test_blocks_on_two_devices_come_back_in_the_order_of_the_plan(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    tier.devices[1].namespace_number(OTHER)  # its numbers are not the first one's
    blocks = spread(tier)
    write(tier, blocks)
    assert statuses(tier, blocks) == [Status.OK] * 6
    assert [device.counters["blocks_written"] for device in tier.devices] == [3, 3]
    tier.flush().result(10)
    assert tier.close()
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    found = tier.recover()
    assert (found.namespaces, found.kinds) == ([NOTE], [kind_of(3968)])
    wanted = blocks.plan.entries(np.ones(6, np.bool_))
    assert found.entries.tobytes() == wanted[np.argsort(wanted["unit"])].tobytes()
    assert statuses(tier, blocks) == [Status.OK] * 6
    tier.close()


def test_devices_in_another_order_are_found_where_they_are_now(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    blocks = spread(tier)
    write(tier, blocks)
    tier.close()
    tier = open_tier(tmp_path / "b", tmp_path / "a")
    found = tier.recover().entries
    assert set(found["path_hash"][:, 0].tolist()) == set(blocks.plan.path_hash[:, 0].tolist())
    unit = np.where(
        blocks.plan.unit >= tier.devices[1].base_unit,
        blocks.plan.unit - np.uint32(tier.devices[0].units),
        blocks.plan.unit + np.uint32(tier.devices[0].units),
    ).astype(np.uint32)
    assert statuses(tier, blocks, blocks.reading(unit=unit)) == [Status.OK] * 6
    tier.close()


def test_block_on_two_devices_is_recovered_once_for_good(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    blocks = Blocks.made(tier, 2, 3968, first_unit=SEGMENT_UNITS)
    write(tier, blocks)
    moved = blocks.plan.unit + np.uint32(tier.devices[0].units)
    blocks.plan = dataclasses.replace(blocks.plan, unit=moved)
    write(tier, blocks)
    tier.close()
    for dropped in ({"doubled": 2}, {}):
        tier = open_tier(tmp_path / "a", tmp_path / "b")
        found = tier.recover()
        assert found.entries["unit"].tolist() == moved.tolist() and found.dropped == dropped
        tier.flush().result(10)
        tier.close()


def test_namespace_is_off_where_any_device_says_so(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    tier.namespace_number(dataclasses.replace(OTHER, enabled=False))
    tier.close()
    tier = open_tier(tmp_path / "b")  # the other one is away when it is turned on
    tier.recover()
    tier.namespace_number(OTHER)
    tier.close()
    tier = open_tier(tmp_path / "b", tmp_path / "a")
    assert tier.recover().namespaces == [dataclasses.replace(OTHER, enabled=False)]
    tier.namespace_number(OTHER)
    tier.close()
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    assert tier.recover().namespaces == []
    tier.close()


def test_tier_with_one_device_in_use_gives_back_the_others(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a")
    with pytest.raises(ConfigError, match="in use"):
        open_tier(tmp_path / "b", tmp_path / "a")
    open_tier(tmp_path / "b").close()
    tier.close()


def test_gone_and_empty_plans_reach_the_right_device(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    blocks = spread(tier)
    write(tier, blocks)
    tier.note_gone(blocks.plan.unit[:2])
    nothing = np.zeros(6, np.bool_)
    tier.note_gone(blocks.plan.unit[nothing])
    tier.note_blocks(blocks.plan.entries(nothing))
    empty = chosen(blocks.reading(), nothing)
    assert isinstance(empty, ReadPlan)
    assert not len(tier.read(empty, blocks.memory.of).result(5).status)
    tier.close()
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    assert sorted(tier.recover().entries["unit"].tolist()) == sorted(blocks.plan.unit[2:].tolist())
    tier.close()


def test_order_of_use_mixes_the_devices(tmp_path: pathlib.Path) -> None:
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    blocks = Blocks.made(tier, 4, 3968, first_unit=SEGMENT_UNITS)
    on_second = np.array([False, True, False, True])
    units = blocks.plan.unit + on_second.astype(np.uint32) * np.uint32(tier.devices[0].units)
    blocks.plan = dataclasses.replace(blocks.plan, unit=units)
    write(tier, blocks)
    tier.note_used(units[[2, 1]])
    tier.close()
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    found = tier.recover()
    by_use = found.entries["unit"][np.argsort(found.recency)].tolist()
    assert set(by_use[:2]) == {units[0], units[3]} and set(by_use[2:]) == {units[2], units[1]}
    tier.close()
