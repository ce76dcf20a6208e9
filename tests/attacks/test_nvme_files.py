"""Goal: whatever a device's file has become, a start neither fails in an unknown way, nor hangs,
nor touches what is not ours, nor serves a wrong byte.
Method: a sound device, its file changed at random or by somebody who knows the format and can
compute checksums; then the usual open, recover and read.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import struct

import numpy as np
import pytest

from anchorstore.errors import ConfigError
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.format import ENTRY, FRAME_MAGIC, UNIT_BYTES, FrameType
from anchorstore.tiers.nvme.plans import Status
from anchorstore.tiers.nvme.seam import FILE_NAME
from anchorstore.units import MIB
from tests.unit.tiers.nvme.bench import Blocks, open_device, statuses, write

BLOCKS = 24


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Blocks]:
    """The file of a device with some blocks, and the blocks."""
    path = tmp_path_factory.mktemp("sound")
    device = open_device(path)
    blocks = Blocks.made(device, BLOCKS, 3968, first_unit=3)
    write(device, blocks)
    device.note_gone(np.array([500, 501], np.uint32))
    device.close()
    return (path / FILE_NAME).read_bytes(), blocks


def opened(path: pathlib.Path, data: bytes, blocks: Blocks) -> int:
    """How many blocks a start on these bytes serves; every one is compared."""
    (path / FILE_NAME).write_bytes(data)
    device = open_device(path)
    try:
        device.recover()
        return statuses(device, blocks).count(Status.OK)
    finally:
        assert device.close()


@pytest.mark.parametrize("seed", range(6))
def test_device_with_random_damage_opens_or_is_refused(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks], seed: int
) -> None:
    data, blocks = sound
    dice, served = random.Random(seed), 0
    for _ in range(6):
        changed = bytearray(data)
        ends = dice.choice([2 * UNIT_BYTES, MIB + 16 * UNIT_BYTES, len(data)])
        for _ in range(dice.choice([1, 10, 200])):
            at = dice.randrange(ends)
            junk = dice.randbytes(dice.choice([1, 8, 100]))
            changed[at : at + len(junk)] = junk
        del changed[len(data) :]
        try:
            served += opened(tmp_path, bytes(changed), blocks)
        except ConfigError as error:
            assert "nvme" in str(error)
    assert served > 0


@pytest.mark.parametrize("size", [0, 1, 4096, 8192, MIB, 3 * MIB + 5 * UNIT_BYTES, 10 * MIB])
def test_device_cut_short_serves_what_is_left(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks], size: int
) -> None:
    data, blocks = sound
    try:
        served = opened(tmp_path, data[:size], blocks)
    except ConfigError:
        served = 0
    assert served == (0 if size <= 3 * MIB else 2 if size < 4 * MIB else BLOCKS)


def forged(payload: bytes, count: int, kind: int = FrameType.BLOCKS) -> bytes:
    """A frame with right checksums around any payload, for journal 7, as its first."""
    return nvme_format.frame(FrameType(kind), 7, 0, count, payload)


def with_journal(data: bytes, frames: bytes) -> bytes:
    """The device with this journal, its superblocks sealed anew."""
    pages = [data[:UNIT_BYTES], data[UNIT_BYTES : 2 * UNIT_BYTES]]
    found = [sb for page in pages if (sb := nvme_format.superblock_of(page))]
    superblock = max(found, key=lambda copy: copy.sequence)
    changed = bytearray(data)
    body = bytearray(superblock.encoded()[:-8])
    struct.pack_into("<Q", body, 88, 7)
    page = bytes(body) + struct.pack("<Q", nvme_format.xxh3(bytes(body)))
    changed[: 2 * UNIT_BYTES] = page + page
    start = superblock.region_offset(superblock.active)
    changed[start : start + len(frames)] = frames
    return bytes(changed)


@pytest.mark.parametrize("seed", range(4))
def test_journal_forged_with_right_checksums_serves_nothing_wrong(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks], seed: int
) -> None:
    data, blocks = sound
    dice = np.random.default_rng(seed)
    entries = np.frombuffer(dice.bytes(200 * ENTRY.itemsize), ENTRY).copy()
    entries["namespace"] %= 3
    entries["kind"] %= 3
    entries["unit"] %= 4000
    assert opened(tmp_path, with_journal(data, forged(entries.tobytes(), 200)), blocks) == BLOCKS
    lying = forged(entries.tobytes(), 2**32 - 1)
    assert opened(tmp_path, with_journal(data, lying), blocks) == BLOCKS


@pytest.mark.parametrize("size", [0, 63, 2**40, 2**64 - 1])
def test_frame_that_claims_any_size_is_no_frame(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks], size: int
) -> None:
    data, blocks = sound
    head = nvme_format.FRAME_HEADER.pack(FRAME_MAGIC, 1, 0, 7, 0, 1, 0, size, 0, 0)
    head += struct.pack("<Q", nvme_format.xxh3(head))
    assert opened(tmp_path, with_journal(data, head), blocks) == BLOCKS


def test_journal_of_frames_without_end_is_bounded(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks]
) -> None:
    data, blocks = sound
    frames = b"".join(
        nvme_format.frame(FrameType.GONE, 7, at, 0, b"") for at in range(MIB // UNIT_BYTES + 3)
    )
    assert opened(tmp_path, with_journal(data, frames), blocks) == BLOCKS


def test_path_that_is_a_link_a_pipe_or_not_ours_is_refused_and_left(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks]
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious" * 2000)
    (tmp_path / FILE_NAME).symlink_to(target)
    with pytest.raises(ConfigError, match="cannot open"):
        open_device(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="neither a file"):
        open_device(pipe)
    with pytest.raises(ConfigError, match="holds something else"):
        open_device(target)
    assert target.read_bytes() == b"precious" * 2000


def test_slots_of_another_device_are_foreign(
    tmp_path: pathlib.Path, sound: tuple[bytes, Blocks]
) -> None:
    data, _ = sound
    device = open_device(tmp_path)
    start = device.data_offset
    blocks = Blocks.made(device, BLOCKS, 3968, seed=2, first_unit=3)
    write(device, blocks)
    device.close()
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(start)
        file.write(data[start:])
    device = open_device(tmp_path)
    assert len(device.recover().entries) == BLOCKS
    assert statuses(device, blocks) == [Status.FOREIGN] * BLOCKS
    device.close()
    shutil.rmtree(tmp_path)
