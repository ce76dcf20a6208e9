"""Goal: a journal that a crash cut off is told from one that was damaged.
Method: frames written and synced in random batches; a crash leaves any part of the last batch,
damage takes any frame.  Then whole devices, at a start and at rest.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.cli.main import FAILED, main
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.device import read_superblock
from anchorstore.tiers.nvme.format import UNIT_BYTES, FrameType
from anchorstore.tiers.nvme.region import RegionWriter, read_region
from anchorstore.tiers.nvme.seam import FILE_NAME, open_direct
from anchorstore.units import MIB
from tests.unit.tiers.nvme.bench import Blocks, open_device, write

JOURNAL_ID = 7
FRAME = (FrameType.GONE, 1, b"abcd")
"""A note whose frame takes one unit."""


class Region:
    """The first journal region of a device in memory, written in batches.

    Attributes:
        synced: frames on the device for sure, the last batch's excluded.
    """

    def __init__(self, batches: list[int], durable_frames: int = 0) -> None:
        self.superblock = dataclasses.replace(
            nvme_format.geometry(16 * MIB, 4 * MIB, MIB, bytes(16)),
            journal_id=JOURNAL_ID,
            active=0,
            durable_frames=durable_frames,
        )
        self.data = bytearray(self.superblock.region_offset(2))
        writer = RegionWriter(self, self.start, MIB, JOURNAL_ID)  # type: ignore[arg-type]
        for batch in batches[:-1]:
            writer.append([FRAME] * batch)
            writer.sync()
        writer.append([FRAME] * batches[-1])
        self.synced, self.frames = sum(batches[:-1]), sum(batches)

    @property
    def start(self) -> int:
        return self.superblock.region_offset(0)

    def destroy(self, frame: int, filler: bytes = b"\0") -> None:
        at = self.start + frame * UNIT_BYTES
        self.data[at : at + UNIT_BYTES] = filler * (UNIT_BYTES // len(filler))

    def lost_frames(self, *, is_whole: bool = True) -> int:
        found = read_region(self, self.superblock, is_whole=is_whole)  # type: ignore[arg-type]
        assert "torn_tail" not in found.dropped or not found.lost_frames
        return found.lost_frames

    def pwritev(self, buffers: list[memoryview], offset: int) -> int:
        for buffer in buffers:
            self.data[offset : offset + len(buffer)] = buffer
            offset += len(buffer)
        return sum(map(len, buffers))

    def preadv(self, buffers: list[memoryview], offset: int) -> int:
        for buffer in buffers:
            buffer[:] = self.data[offset : offset + len(buffer)]
            offset += len(buffer)
        return sum(map(len, buffers))

    def fdatasync(self) -> None:
        """Memory forgets nothing."""


batches_st = st.lists(st.integers(1, 6), min_size=1, max_size=6)
fillers = st.sampled_from([b"\0", b"\xa5", b"ANJF\1\0\0\0" + JOURNAL_ID.to_bytes(8, "little")])


@given(batches=batches_st, filler=fillers, data=st.data())
def test_crash_that_leaves_any_part_of_what_was_not_synced_is_no_damage(
    batches: list[int], filler: bytes, data: st.DataObject
) -> None:
    region = Region(batches)
    for frame in range(region.synced, region.frames):
        if data.draw(st.booleans()):
            region.destroy(frame, filler)
    assert region.lost_frames() == 0


@given(batches=batches_st, filler=fillers, data=st.data())
def test_frame_that_was_synced_before_another_is_missed(
    batches: list[int], filler: bytes, data: st.DataObject
) -> None:
    region = Region([*batches, 1])
    gone = data.draw(st.integers(0, region.synced - 1))
    region.destroy(gone, filler)
    assert region.lost_frames() == region.synced - gone
    assert region.lost_frames(is_whole=False) == region.synced - gone


@pytest.mark.parametrize("gone", [0, 2])
def test_frame_of_a_snapshot_is_missed_where_nothing_follows(gone: int) -> None:
    region = Region([3], durable_frames=3)
    assert region.lost_frames() == 0
    region.destroy(gone)
    assert region.lost_frames() == 3 - gone


@pytest.fixture
def damaged(tmp_path: pathlib.Path) -> pathlib.Path:
    """A device with five blocks, whose journal has lost the frame that named them."""
    device = open_device(tmp_path)
    write(device, Blocks.made(device, 5, 3968))
    device.flush().result(10)
    device.note_used(np.array([0], np.uint32))  # one frame more, which says what was synced
    device.flush().result(10)
    assert device.journal is not None
    superblock = device.journal.superblock
    device.close()
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.seek(superblock.region_offset(superblock.active))
        frames = file.read(8 * UNIT_BYTES)
        [gone] = [at for at in range(8) if frame_type(frames, at) == FrameType.BLOCKS]
        file.seek(superblock.region_offset(superblock.active) + gone * UNIT_BYTES)
        file.write(bytes(UNIT_BYTES))
    return tmp_path


def frame_type(frames: bytes, at: int) -> int:
    header = nvme_format.frame_header_of(frames[at * UNIT_BYTES :])
    return header.type if header else 0


def test_check_of_a_device_whose_journal_lost_a_frame_fails_and_says_so(
    damaged: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--offline", str(damaged)]) == FAILED
    out = capsys.readouterr().out
    assert out.startswith("FAILED: 1 violations")
    assert "the journal is damaged behind its frame 2: 2 frames and more" in out


def test_start_on_a_damaged_journal_warns_once_and_goes_on_with_what_is_left(
    damaged: pathlib.Path,
) -> None:
    said: list[str] = []
    device = open_device(damaged, log=said)
    assert not len(device.recover().entries)
    assert [line for line in said if "the journal is damaged" in line] == said
    device.close()
    again: list[str] = []
    open_device(damaged, log=again).close()
    assert again == []


def active_region(folder: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A device's file, and where its journal starts."""
    file = open_direct(folder, print)
    superblock, _ = read_superblock(file)
    file.close()
    assert superblock is not None
    return folder / FILE_NAME, superblock.region_offset(superblock.active)


@pytest.mark.parametrize("gone", [0, 2, 3])
def test_any_frame_that_is_missing_after_a_clean_end_is_damage(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], gone: int
) -> None:
    device = open_device(tmp_path)
    write(device, Blocks.made(device, 5, 3968))
    device.flush().result(10)
    device.note_used(np.array([0], np.uint32))
    device.close()  # a namespace, a layout, blocks and uses
    assert main(["check", "--offline", str(tmp_path)]) == 0
    path, start = active_region(tmp_path)
    with path.open("r+b") as file:
        file.seek(start + gone * UNIT_BYTES)
        file.write(bytes((4 - gone) * UNIT_BYTES))
    assert main(["check", "--offline", str(tmp_path)]) == FAILED
    assert f"damaged behind its frame {gone}: {4 - gone} frames" in capsys.readouterr().out


def test_superblock_that_was_written_and_is_empty_is_damage(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        open_device(tmp_path).close()
    assert main(["check", "--offline", str(tmp_path)]) == 0
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(bytes(UNIT_BYTES))
    assert main(["check", "--offline", str(tmp_path)]) == FAILED
    assert "superblock 0 is damaged: it is empty" in capsys.readouterr().out
