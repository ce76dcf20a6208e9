"""Goal: an operator sees what a device at rest holds, and nothing is changed by looking.
Method: devices written by the real one, then damaged; the command itself is run on them.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from anchorstore.cli.main import FAILED, USAGE, main
from anchorstore.tiers.nvme.format import MAGIC, UNIT_BYTES
from anchorstore.tiers.nvme.seam import FILE_NAME
from anchorstore.transport.segment import layout_key
from tests.unit.tiers.nvme.bench import NOTE, Blocks, kind_of, open_device, write


@pytest.fixture
def device_path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Five blocks of 3968 bytes, then four of 8064 in another segment."""
    device = open_device(tmp_path)
    for first_unit, count, size in ((0, 5, 3968), (256, 4, 8064)):
        blocks = Blocks.made(device, count, size, first_unit=first_unit, seed=size)
        layout = kind_of(size)
        key = layout_key(NOTE.namespace.root_digest(), layout.digest(), layout.shard())
        blocks.plan.layout_key[:] = np.uint64(key)
        write(device, blocks)
    device.close()
    return tmp_path


def data_offset(path: pathlib.Path) -> int:
    device = open_device(path)
    device.close()
    return device.data_offset


def scramble(path: pathlib.Path, offset: int) -> None:
    with (path / FILE_NAME).open("r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object]]:
    code = main(["check", "--json", *arguments])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.parametrize("options", [(), ("--checksums",)])
def test_check_of_a_whole_device_is_ok_and_changes_nothing(
    device_path: pathlib.Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    before = (device_path / FILE_NAME).read_bytes()
    code, found = checked(capsys, "--offline", str(device_path), *options)
    assert code == 0 and found["ok"] and found["slots"] == {"whole": 9}
    assert (found["blocks"], found["bytes"]) == (9, 5 * 3968 + 4 * 8064)
    assert (found["namespaces"], found["layouts"], found["dropped"]) == (1, 2, {})
    assert (device_path / FILE_NAME).read_bytes() == before


def test_check_with_checksums_finds_scrambled_bytes(
    device_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scramble(device_path, data_offset(device_path) + UNIT_BYTES + 5)
    code, found = checked(capsys, "--offline", str(device_path))
    assert code == 0 and found["slots"] == {"whole": 9}, "footers alone do not see it"
    code, found = checked(capsys, "--offline", str(device_path), "--checksums")
    assert code == FAILED and found["violations"] == ["unit 1: torn"]
    assert found["slots"] == {"torn": 1, "whole": 8}


def test_check_finds_damaged_footers_and_superblocks(
    device_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = data_offset(device_path)
    scramble(device_path, offset + UNIT_BYTES - 100)
    scramble(device_path, 100)
    assert main(["check", "--offline", str(device_path)]) == FAILED
    out = capsys.readouterr().out
    assert out.startswith("FAILED: 2 violations")
    assert "superblock 0 is damaged" in out and "unit 0: foreign" in out


def test_check_of_a_reused_slot_calls_it_outdated_which_is_no_damage(
    device_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_device(device_path)
    blocks = Blocks.made(device, 1, 3968, first_unit=2, generation=4)
    assert device.write(blocks.plan, blocks.memory.of).result(10).ok.all()
    device.close()  # the note never came
    code, found = checked(capsys, "--offline", str(device_path), "--checksums")
    assert code == 0 and found["slots"] == {"outdated": 1, "whole": 8}


def test_check_of_a_cut_file_names_what_is_unreadable(
    device_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offset = data_offset(device_path)
    with (device_path / FILE_NAME).open("r+b") as file:
        file.truncate(offset + 258 * UNIT_BYTES * 1)
    for options in ((), ("--checksums",)):
        code, found = checked(capsys, "--offline", str(device_path), *options)
        assert code == FAILED and found["slots"] == {"unreadable": 3, "whole": 6}


def test_check_of_an_owned_absent_or_foreign_device_is_refused(
    device_path: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_device(device_path)
    assert main(["check", "--offline", str(device_path)]) == USAGE
    assert "in use by another process" in capsys.readouterr().err
    device.close()
    assert main(["check", "--offline", str(tmp_path / "absent")]) == USAGE
    assert not (tmp_path / "absent").exists()
    foreign = tmp_path / "foreign"
    for content, words in (
        (b"x" * 9000, "holds something else"),
        (b"", "it is empty"),
        (MAGIC + bytes(9000), "superblock 0 is damaged"),
    ):
        foreign.write_bytes(content)
        assert main(["check", "--offline", str(foreign)]) == USAGE
        assert words in capsys.readouterr().err
        assert foreign.read_bytes() == content
