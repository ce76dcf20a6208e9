"""Goal: whenever the process dies, what was promised is found again and no byte of it is wrong.
Method: a writer process on one device is killed at random points, again and again; after each kill
the journal is replayed and every live block read back.  Some rounds damage the device in between.
"""

from __future__ import annotations

import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from anchorstore.tiers.nvme.device import ENGINES, NvmeDevice
from anchorstore.tiers.nvme.format import ENTRY, UNIT_BYTES, Entries
from anchorstore.tiers.nvme.plans import ReadPlan, Status
from anchorstore.tiers.nvme.seam import FILE_NAME, aligned
from tests.integration.nvme_writer import LAYOUTS, NOTE, content, open_device
from tests.tidy.checkout import ROOT

LINES_MAX = 400
ALIVE_SECONDS_MAX = 0.03


def killed_writer(
    path: pathlib.Path, seed: int, engine: str, lines: int, alive_seconds: float
) -> str:
    """What a writer said until it was killed, a moment after it had said so many lines."""
    said = path.with_suffix(".said")
    command = [sys.executable, "-m", "tests.integration.nvme_writer", str(path), str(seed), engine]
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, cwd=ROOT)
        while said.read_bytes().count(b"\n") < lines:
            assert process.poll() is None, "the writer ended on its own"
            time.sleep(0.005)
        time.sleep(alive_seconds)
        assert process.poll() is None, "the writer ended on its own"
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    whole, _, _ = said.read_text().rpartition("\n")  # the last line may be a part
    return whole


def promised(said: str, before: dict[int, int]) -> dict[int, int]:
    """Unit to generation of what must be there, given what had to be before."""
    kept = dict(before)
    for line in said.splitlines():
        word, *numbers = line.split()
        if word == "touch":
            kept.pop(int(numbers[0]), None)
        elif word == "keep":
            kept[int(numbers[0])] = int(numbers[1])
    return kept


def read_all(device: NvmeDevice, entries: Entries, kinds: list[int]) -> list[int]:
    """Statuses; the bytes of each block that came are compared with the right ones."""
    step = 8 * UNIT_BYTES
    memory = np.frombuffer(aligned(step * max(1, len(entries))), np.uint8)
    sizes = [LAYOUTS[kind].block_bytes() for kind in kinds]
    plan = ReadPlan(
        segment_index=np.zeros(len(entries), np.uint32),
        offset=np.arange(len(entries), dtype=np.uint64) * np.uint64(step),
        block_bytes=np.array(sizes, np.uint64),
        unit=entries["unit"],
        generation=entries["generation"],
        path_hash=entries["path_hash"],
        layout_key=np.array([5 + kind for kind in kinds], np.uint64),
        lineage=entries["lineage"],
        checksum=entries["checksum"],
    )
    done = device.read(plan, lambda _: memory).result(60)
    for at, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        if done.status[at] == Status.OK:
            found = memory[at * step : at * step + size]
            assert (found == content(entry["path_hash"], size)).all(), "wrong bytes"
    statuses: list[int] = done.status.tolist()
    return statuses


def damage(path: pathlib.Path, data_offset: int, dice: random.Random) -> None:
    """Scrambles some slots, as a device that lost power might have left them."""
    with (path / FILE_NAME).open("r+b") as file:
        size = file.seek(0, 2)
        for _ in range(40):
            file.seek(dice.randrange(data_offset, size - 8192))
            file.write(dice.randbytes(dice.choice([1, 100, 4096, 6000])))


def rounds(path: pathlib.Path, count: int, seed: int, engine: str) -> dict[str, int]:
    """Kills `count` writers on one device; what was seen, counted."""
    dice, kept = random.Random(seed), dict[int, int]()
    seen = dict.fromkeys(("promised", "live", "lost", "torn_slots"), 0)
    path.mkdir()
    for turn in range(count):
        lines = dice.choice([1, dice.randint(2, LINES_MAX), dice.randint(2, LINES_MAX)])
        alive_seconds = dice.uniform(0, ALIVE_SECONDS_MAX)
        said = killed_writer(path, seed + turn, engine, lines, alive_seconds)
        kept = promised(said, kept)
        is_damaged = turn % 3 == 2
        if is_damaged:
            device = open_device(path, engine)
            device.close()
            damage(path, device.data_offset, dice)
        device = open_device(path, engine)
        found = device.recover()
        assert found.namespaces in ([NOTE], [])
        entries = found.entries
        kinds = [LAYOUTS.index(found.kinds[kind]) for kind in entries["kind"].tolist()]
        statuses = np.array(read_all(device, entries, kinds), np.uint8) if kinds else np.zeros(0)
        ok = entries[statuses == Status.OK] if kinds else np.zeros(0, ENTRY)
        there = dict(zip(ok["unit"].tolist(), ok["generation"].tolist(), strict=True))
        missing = [unit for unit, generation in kept.items() if there.get(unit) != generation]
        if is_damaged:
            seen["torn_slots"] += len(missing)
        else:
            assert not missing, f"round {turn}: promised blocks are gone: {missing}"
        lost = entries["unit"][statuses != Status.OK] if kinds else entries["unit"]
        device.note_gone(lost.astype(np.uint32))
        assert device.close()
        seen["promised"] += len(kept)
        seen["live"] += len(ok)
        seen["lost"] += len(lost)
        kept = there
    return seen


@pytest.mark.parametrize("engine", list(ENGINES))
def test_device_of_a_killed_writer_holds_what_was_promised(
    tmp_path: pathlib.Path, engine: str
) -> None:
    seen = rounds(tmp_path / "device", 5, 11, engine)
    assert seen["promised"] > 0 and seen["torn_slots"] > 0, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_device_of_many_killed_writers_holds_what_was_promised(
    tmp_path: pathlib.Path, seed: int
) -> None:
    seen = rounds(tmp_path / "device", 20, seed, list(ENGINES)[seed % len(ENGINES)])
    assert seen["promised"] > 0 and seen["torn_slots"] > 0, seen
