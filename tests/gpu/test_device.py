"""Goal: on a real device, blocks reach other processes as they were sealed.
Method: a tier here, another process there (other.py); the contract runs in tests/contract.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.errors import ConfigError
from anchorstore.tiers.hbm import HbmTier, daemon_tier, engine_tier
from anchorstore.transport.cuda_driver import DriverDevice
from tests.contract.conftest import OPTIONS
from tests.contract.rigs import (
    BOOT,
    DOMAIN,
    SEGMENT_BYTES,
    SEGMENTS,
    Block,
    Format,
    HbmRig,
    Reader,
)
from tests.gpu.other import Other, from_json, to_json

pytestmark = pytest.mark.gpu

FORM = Format(index=1, segment_id=1, slot_bytes=303_104)


@pytest.fixture
def device() -> Iterator[DriverDevice]:
    made = DriverDevice(0)
    yield made
    made.release()


@pytest.fixture
def other() -> Iterator[Other]:
    with Other() as made:
        yield made


def blocks() -> list[Block]:
    random = np.random.default_rng(3)
    return [Block(FORM, slot, random.integers(0, 256, 300_001, dtype=np.uint8)) for slot in (0, 4)]


def written(tier: HbmTier) -> list[Block]:
    """Two blocks in segment 1, sealed."""

    def no_reader() -> Reader:
        raise AssertionError("read by the other process")

    tier.format(FORM)
    made = blocks()
    assert HbmRig(tier, no_reader, list).write(made) == [True, True]
    return made


def start(block: Block) -> int:
    """Where a block starts in the slab."""
    return FORM.index * SEGMENT_BYTES + block.offset


def owned(device: DriverDevice, capacity_bytes: int) -> HbmTier:
    warnings: list[str] = []
    tier = daemon_tier(
        *(device, capacity_bytes, SEGMENT_BYTES, BOOT, DOMAIN, OPTIONS),
        warn=warnings.append,
        lost=warnings.append,
    )
    assert not warnings, "its memory could be pinned"
    return tier


def test_daemons_slab_is_read_in_place_by_another_process(
    device: DriverDevice, other: Other
) -> None:
    tier = owned(device, SEGMENTS * SEGMENT_BYTES)
    made = written(tier)
    other.ask("open", export=to_json(tier.export_for(DOMAIN)))
    for block in made:
        assert other.ask("sum", start=start(block), size=len(block.data)) == block.checksum
    other.ask("close")
    tier.close()


def test_daemons_slab_is_a_tensor_of_another_process_without_a_copy(
    device: DriverDevice, other: Other
) -> None:
    tier = owned(device, SEGMENTS * SEGMENT_BYTES)
    [block, _] = written(tier)
    other.ask("open", export=to_json(tier.export_for(DOMAIN)))
    found = other.ask("torch", start=start(block), size=len(block.data))
    other.ask("close")
    tier.close()
    if found is None:
        pytest.skip("no torch on this machine")
    assert found == block.checksum


def test_engines_slab_is_written_here_and_read_by_the_engine(
    device: DriverDevice, other: Other
) -> None:
    export = from_json(other.ask("own", size_bytes=SEGMENTS * SEGMENT_BYTES))
    lost: list[str] = []
    tier = engine_tier(
        *(device, export, SEGMENT_BYTES, BOOT, DOMAIN, OPTIONS), warn=lost.append, lost=lost.append
    )
    made = written(tier)
    for block in made:
        assert other.ask("sum", start=start(block), size=len(block.data)) == block.checksum
    tier.close()
    assert not lost


def test_more_than_the_device_has_is_refused_by_name(device: DriverDevice) -> None:
    with pytest.raises(ConfigError, match="cannot be had on cuda:0"):
        owned(device, device.free_bytes() + 2**30)
