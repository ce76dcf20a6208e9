"""Goal: a tier that opens says what it cannot do.  Method: devices in a folder, and its log."""

from __future__ import annotations

import pathlib

import pytest

from anchorstore.config import load, parse_override
from anchorstore.server.opening import open_tier


@pytest.mark.parametrize(("size", "is_told"), [("8MiB", True), ("24MiB", False)])
def test_devices_with_room_for_one_component_alone_are_told_of(
    tmp_path: pathlib.Path, size: str, is_told: bool
) -> None:
    (tmp_path / "device").mkdir()
    chosen = parse_override(f"tiers.nvme.devices={tmp_path / 'device'}:{size}")
    lines: list[str] = []
    tier = open_tier(load(None, {}, [chosen]).config.tiers.nvme, lines.append, lambda text: None)
    assert (tier.segments == 1) == is_told
    assert any("one segment of 4MiB in all" in line for line in lines) == is_told
    assert tier.close()
