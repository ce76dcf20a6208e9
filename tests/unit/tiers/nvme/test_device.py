"""Goal: what a device took is found again and proven, now and after a restart; nothing else is.
Method: a device on a directory; restarts are a close (or none) and an open of the same path.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from anchorstore.errors import ConfigError
from anchorstore.tiers.nvme.format import FOOTER_BYTES, slot_bytes_of
from anchorstore.tiers.nvme.plans import Status
from anchorstore.tiers.nvme.seam import FILE_NAME, DirectFile, lock
from anchorstore.units import MIB
from tests.unit.tiers.nvme.bench import (
    CAPACITY_BYTES,
    NOTE,
    Blocks,
    kind_of,
    open_device,
    statuses,
    write,
)


@pytest.mark.parametrize("block_bytes", [128, 3968, 4096, 8064, 65536, 131072 + 640])
def test_read_of_written_blocks_returns_their_bytes(
    tmp_path: pathlib.Path, block_bytes: int
) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 5, block_bytes)
    write(device, blocks)
    assert statuses(device, blocks) == [Status.OK] * 5
    assert device.counters["bytes_read"] == 5 * block_bytes
    assert device.close()


def test_read_in_any_order_returns_each_block(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 40, 8064, stride=2)
    write(device, blocks)
    order = np.random.default_rng(3).permutation(40)
    blocks.plan = type(blocks.plan)(
        **{name: getattr(blocks.plan, name)[order] for name in blocks.plan.__slots__}
    )
    blocks.bytes_ = [blocks.bytes_[at] for at in order]
    assert statuses(device, blocks) == [Status.OK] * 40
    device.close()


def test_restart_after_close_finds_every_block(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path, base_unit=1)
    blocks = Blocks.made(device, 9, 3968, first_unit=1)
    write(device, blocks)
    assert device.close()
    device = open_device(tmp_path, base_unit=1)
    found = device.recover()
    assert found.namespaces == [NOTE] and found.kinds == [kind_of(3968)]
    wanted = blocks.plan.entries(np.ones(9, np.bool_))
    assert found.entries.tobytes() == wanted.tobytes() and not found.dropped
    assert statuses(device, blocks) == [Status.OK] * 9
    assert not len(device.recover().entries), "handed over once"
    device.close()


def test_gone_blocks_after_restart_are_not_found(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 6, 3968)
    write(device, blocks)
    device.note_gone(blocks.plan.unit[1:3])
    again = Blocks.made(device, 1, 3968, seed=2, first_unit=2, generation=4)
    write(device, again)
    device.flush().result(10)
    device.close()
    device = open_device(tmp_path)
    found = device.recover().entries
    assert found["unit"].tolist() == [0, 2, 3, 4, 5]
    assert found["generation"].tolist() == [2, 4, 2, 2, 2]
    assert statuses(device, again) == [Status.OK]
    assert statuses(device, blocks) == [1, 1, Status.OTHER, 1, 1, 1]
    device.close()


@pytest.mark.parametrize("column", ["path_hash", "generation", "layout_key", "lineage"])
def test_read_of_another_block_than_the_slots_says_other(
    tmp_path: pathlib.Path, column: str
) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 3, 4096)
    write(device, blocks)
    wanted = {name: getattr(blocks.plan, name).copy() for name in (column, "checksum")}
    for changed in wanted.values():
        changed[1] += changed.dtype.type(1)
    assert statuses(device, blocks, blocks.reading(**wanted)) == [1, Status.OTHER, 1]
    device.close()


@pytest.mark.parametrize("block_bytes", [3968, 4096, 65536])
def test_read_asks_the_bytes_and_no_footer_whether_they_are_the_block(
    tmp_path: pathlib.Path, block_bytes: int
) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 3, block_bytes)
    write(device, blocks)
    slot_bytes = slot_bytes_of(block_bytes)
    with (tmp_path / FILE_NAME).open("r+b") as file:
        for at in range(3):
            file.seek(device.data_offset + (at + 1) * slot_bytes - FOOTER_BYTES)
            file.write(bytes(FOOTER_BYTES))
    assert statuses(device, blocks) == [Status.OK] * 3
    checksum = blocks.plan.checksum + np.array([0, 1, 0], np.uint64)
    assert statuses(device, blocks, blocks.reading(checksum=checksum)) == [1, Status.FOREIGN, 1]
    device.close()


def test_read_of_an_empty_slot_says_foreign(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 2, 3968)
    assert statuses(device, blocks) == [Status.FOREIGN] * 2
    device.close()


@pytest.mark.parametrize("at", [0, 3000, 3967])
def test_read_of_scrambled_bytes_says_torn(tmp_path: pathlib.Path, at: int) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 3, 3968)
    write(device, blocks)
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    place = data.index(blocks.bytes_[1]) + at
    device.close()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 1]))
    said: list[str] = []
    device = open_device(tmp_path, log=said)
    assert len(device.recover().entries) == 3
    for _ in range(2):
        assert statuses(device, blocks) == [1, Status.TORN, 1]
    slot = place - at
    assert said == [
        f"nvme: {path}: blocks lost: 1 since the last such line, the last at byte {slot}: torn"
    ], "once a minute"
    device.close()


def test_open_while_another_owns_it_is_refused_with_its_process(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    with pytest.raises(ConfigError, match=r"in use by another process( \(process \d+\))?"):
        open_device(tmp_path)
    device.close()
    open_device(tmp_path).close()


@pytest.mark.parametrize("content", [b"something else", b"\0" * 5000 + b"x" + bytes(9000)])
def test_open_of_a_foreign_file_is_refused_and_leaves_it(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds something else"):
        open_device(path)
    assert path.read_bytes() == content


def test_open_without_the_directory_or_room_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="cannot open"):
        open_device(tmp_path / "absent" / "file")
    with pytest.raises(ConfigError, match="hold no segment"):
        open_device(tmp_path, capacity_bytes=2 * MIB)
    with pytest.raises(ConfigError, match="cannot have"):
        open_device(tmp_path, capacity_bytes=2**43)


def test_open_with_other_capacity_keeps_what_fits(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    blocks = Blocks.made(device, 3, 3968, stride=256)  # one a segment
    write(device, blocks)
    device.close()
    device = open_device(tmp_path, capacity_bytes=2 * CAPACITY_BYTES)
    assert device.segments == 29 and len(device.recover().entries) == 3
    device.close()
    device = open_device(tmp_path, capacity_bytes=5 * MIB)
    found = device.recover()
    assert found.entries["unit"].tolist() == [0, 256] and found.dropped == {"outside": 1}
    assert (tmp_path / FILE_NAME).stat().st_size == 5 * MIB
    device.close()


def test_open_with_other_segments_starts_empty_and_stays_so(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    write(device, Blocks.made(device, 3, 3968))
    device.close()
    for _ in range(3):
        log: list[str] = []
        device = open_device(tmp_path, segment_bytes=2 * MIB, log=log)
        assert not len(device.recover().entries)
        device.close()
    assert not log


def test_lock_of_an_owner_that_has_ended_is_waited_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "device"
    left = os.open(path, os.O_RDWR | os.O_CREAT)  # as the kernel keeps it for calls that are out
    taken = f"import fcntl; fcntl.flock({left}, fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", taken], pass_fds=[left], check=True)
    descriptor = os.open(path, os.O_RDWR)
    file = DirectFile(str(path), descriptor, is_direct=False, is_read_only=False)
    with pytest.raises(ConfigError, match=r"in use by another process$"):
        lock(file, pause=lambda seconds: None)
    lock(file, pause=lambda seconds: os.close(left))  # closed once: it was waited for once
    file.close()
