"""Goal: the devices of the nvme tier are read as they were written, and what cannot work is refused
with key, value and limit.
Method: load() with a file, the environment, --set and the option as the command line gives it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from anchorstore.cli import settings
from anchorstore.config import DeviceConfig, NamespaceRule, eviction, load, parse_override
from anchorstore.config.render import values_plain, values_text
from anchorstore.errors import ConfigError
from anchorstore.server.assembly import policy_of
from anchorstore.server.core.admission import ADMISSIONS
from anchorstore.server.core.policies import POLICIES
from anchorstore.units import GIB, MIB, TIB

KEY = "tiers.nvme.devices"


def loaded(*sets: str) -> DeviceConfig | None:
    """The first device that these settings name."""
    devices = load(None, {}, [parse_override(item) for item in sets]).config.tiers.nvme.devices
    return devices[0] if devices else None


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, [parse_override(item) for item in sets])
    return str(caught.value)


def test_devices_by_default_are_none() -> None:
    assert loaded() is None


def test_devices_of_every_layer_are_the_same(tmp_path: Path) -> None:
    wanted = (DeviceConfig("/mnt/a:b", TIB), DeviceConfig("/dev/nvme1n1", 512 * GIB))
    file = tmp_path / "anchorstore.toml"
    file.write_text('[tiers.nvme]\ndevices = ["/mnt/a:b:1TiB", "/dev/nvme1n1:512GiB"]\n')
    environment = {"ANCHORSTORE__TIERS__NVME__DEVICES": "/mnt/a:b:1TiB, /dev/nvme1n1:512GiB"}
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    args = parser.parse_args(["--nvme", "/mnt/a:b:1TiB", "--nvme", "/dev/nvme1n1:512GiB"])
    for found in (
        load(file, {}),
        load(None, environment),
        load(None, {}, settings.overrides_of(args)),
    ):
        assert found.config.tiers.nvme.devices == wanted
        assert 'devices = ["/mnt/a:b:1TiB", "/dev/nvme1n1:512GiB"]' in values_text(found)
        assert values_plain(found)[KEY]["value"] == [
            {"path": "/mnt/a:b", "capacity_bytes": TIB},
            {"path": "/dev/nvme1n1", "capacity_bytes": 512 * GIB},
        ]


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        ((f"{KEY}=/mnt/a",), (KEY, "number 1", "'/mnt/a'", "PATH:SIZE")),
        ((f"{KEY}=mnt/a:1TiB",), (KEY, "absolute")),
        ((f"{KEY}=/mnt/a:1TiB,/mnt/b:1TiBs",), ("number 2", "/mnt/b", "unknown unit 'TiBs'")),
        ((f"{KEY}=/mnt/a:4MiB",), ("/mnt/a", "is 4MiB", "8MiB to 16TiB")),
        ((f"{KEY}=/mnt/a:17TiB",), ("is 17TiB", "8MiB to 16TiB")),
        ((f"{KEY}=/a:9TiB,/b:8TiB",), (KEY, "17TiB together", "limit 16TiB")),
        ((f"{KEY}=/a:1TiB,/a:2TiB",), (KEY, "/a twice")),
        (
            (f"{KEY}=/a:1GiB", "tiers.nvme.segment=1GiB"),
            ("/a:1GiB", "at least 2GiB", "tiers.nvme.segment"),
        ),
        (
            (f"{KEY}=/a:16TiB", "tiers.nvme.segment=1MiB"),
            ("16777216 segments", "limit 262144"),
        ),
        (("tiers.nvme.segment=1048577",), ("1048577 bytes", "multiple of 4KiB")),
        (("tiers.nvme.low_watermark=0.98",), ("tiers.nvme.high_watermark, 0.98",)),
        (("tiers.nvme.write=never",), ('"behind", "demote"',)),
        (("tiers.nvme.engine=uring",), ('"io_uring"',)),
        (("tiers.nvme.policy=mru",), ('"lfu"',)),
        (
            ("tiers.nvme.admission_least=2MiB", "tiers.nvme.admission_most=1MiB"),
            ("tiers.nvme.admission_least is 2MiB", "tiers.nvme.admission_most, 1MiB"),
        ),
        (("tiers.nvme.depth=0",), ("tiers.nvme.depth", "1 to 128")),
    ],
)
def test_devices_that_cannot_work_are_refused_by_name(
    sets: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    message = refusal(*sets)
    for part in wanted:
        assert part in message


@pytest.mark.parametrize(
    ("devices", "segment_bytes"),
    [
        ("/a:64MiB", 4 * MIB),
        ("/a:4GiB", 64 * MIB),
        ("/a:1TiB,/b:8GiB", 64 * MIB),
        ("/a:1TiB", 256 * MIB),
        ("/a:16TiB", 256 * MIB),
    ],
)
def test_segment_auto_follows_the_smallest_device(devices: str, segment_bytes: int) -> None:
    config = load(None, {}, [parse_override(f"{KEY}={devices}")]).config
    assert config.tiers.nvme.tier_segment_bytes == segment_bytes


def test_names_of_policies_and_admissions_are_the_cores() -> None:
    assert set(eviction.POLICIES) == set(POLICIES)
    assert set(eviction.ADMISSIONS) == set(ADMISSIONS)
    for name in POLICIES:
        found = policy_of(name, 60.0)
        assert found is None if name == "lru" else found is not None and found.name == name


def test_rules_of_nvme_quotas_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[namespaces.rules]]\ndomain = "a"\nmodel = "m"\nnvme_quota = "1TiB"\nreserve = "1GiB"\n'
    )
    spaces = load(file, {}).config.namespaces
    assert spaces.rules == (NamespaceRule("a", "m", nvme_quota_bytes=TIB, reserve_bytes=GIB),)
    assert spaces.nvme_quotas() == {("a", "m"): TIB} and spaces.quotas() == {}
    assert spaces.reserves() == {("a", "m"): GIB} and spaces.nvme_reserves() == {}
