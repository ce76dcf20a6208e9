"""Goal: a start finds what lived, whatever the journal's bytes have been through.
Method: journals written by the real writer, then cut, scrambled, compacted or forged; what comes
out is compared with a plain dict of what went in.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import ConfigError
from anchorstore.keys import Namespace
from anchorstore.layout import AnchorLayout, Layout
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.device import NvmeDevice
from anchorstore.tiers.nvme.format import ENTRY, UNIT_BYTES, Entries, FrameType
from anchorstore.tiers.nvme.health import State
from anchorstore.tiers.nvme.notes import (
    NamespaceNote,
    read_kind,
    read_namespace,
    write_kind,
    write_namespace,
)
from anchorstore.tiers.nvme.region import RegionWriter, block_notes, read_region
from anchorstore.tiers.nvme.replay import FrameWalk, Recovered, Replay
from anchorstore.tiers.nvme.seam import FILE_NAME, open_direct
from anchorstore.units import MIB
from tests.unit.tiers.nvme.bench import NOTE, OPTIONS, kind_of, open_device

SEGMENT_BYTES = 64 * UNIT_BYTES
UNITS = 1024
BIG = AnchorLayout(1, 4, 2048, "uint8")  # three units a slot


def entries_of(units: list[int], *, kind: int = 0, generation: int = 2, seed: int = 1) -> Entries:
    """Blocks at these units, with random keys."""
    entries = np.zeros(len(units), ENTRY)
    random = np.random.default_rng(seed)
    entries["path_hash"] = random.integers(0, 2**63, (len(units), 4), np.uint64)
    entries["unit"], entries["kind"], entries["generation"] = units, kind, generation
    return entries


def replayed(
    *notes: tuple[FrameType, int, bytes], kinds: tuple[Layout, ...] = (kind_of(3968), BIG)
) -> Recovered:
    """The outcome of these notes after an introduction of one namespace and the kinds."""
    first = [(FrameType.NAMESPACE, 1, write_namespace(0, NOTE))]
    first += [(FrameType.KIND, 1, write_kind(at, kind)) for at, kind in enumerate(kinds)]
    data = b"".join(
        nvme_format.frame(kind, 9, at, count, payload)
        for at, (kind, count, payload) in enumerate([*first, *notes])
    )
    walk, replay = FrameWalk(memoryview(data), 9), Replay()
    while (step := walk.step()) is not None:
        replay.add(*step)
    assert walk.position == len(data) and not walk.is_torn
    return replay.result(SEGMENT_BYTES, UNITS)


def blocks(entries: Entries) -> tuple[FrameType, int, bytes]:
    [note] = block_notes(entries)
    return note


def gone(*units: int) -> tuple[FrameType, int, bytes]:
    return FrameType.GONE, len(units), np.array(units, "<u4").tobytes()


def test_replay_of_later_words_on_a_unit_keeps_the_last() -> None:
    found = replayed(
        blocks(entries_of([1, 2, 3])),
        gone(2, 3, 77),
        blocks(entries_of([3], generation=4, seed=2)),
    )
    assert found.entries[["unit", "generation"]].tolist() == [(1, 2), (3, 4)]
    assert not found.dropped


def test_replay_of_a_block_stored_twice_keeps_the_newer_place() -> None:
    old, new = entries_of([1, 2]), entries_of([5, 6])
    new["path_hash"][1] += np.uint64(1)  # the same first word, another block
    new["path_hash"][1][0] = old["path_hash"][1][0]
    found = replayed(blocks(old), blocks(new))
    assert found.entries["unit"].tolist() == [2, 5, 6] and found.dropped == {"doubled": 1}


def test_replay_of_a_reformatted_segment_keeps_its_newest_class() -> None:
    found = replayed(
        blocks(entries_of([0, 1, 64])),
        blocks(entries_of([3], kind=1, seed=2)),
    )
    assert found.entries["unit"].tolist() == [3, 64] and found.dropped == {"outdated": 2}


@pytest.mark.parametrize(
    ("unit", "kind", "reason"),
    [
        (1024, 0, "outside"),
        (4, 1, "outside"),  # off the grid of its segment
        (63, 1, "outside"),  # across two segments
        (1023, 1, "outside"),
        (2**32 - 1, 0, "outside"),
        (1, 2, "unknown_numbers"),
    ],
)
def test_replay_of_an_impossible_entry_drops_it(unit: int, kind: int, reason: str) -> None:
    found = replayed(blocks(entries_of([unit], kind=kind)), blocks(entries_of([128], seed=2)))
    assert found.entries["unit"].tolist() == [128] and found.dropped == {reason: 1}


def test_replay_of_unknown_or_ill_shaped_frames_passes_over_them() -> None:
    bad_count = (FrameType.BLOCKS, 2, entries_of([9]).tobytes())
    far_number = (FrameType.NAMESPACE, 1, write_namespace(5, NOTE))
    unknown = (99, 1, b"from a later minor version")
    notes: list[Any] = [bad_count, far_number, unknown, blocks(entries_of([1]))]
    found = replayed(*notes)
    assert found.entries["unit"].tolist() == [1] and found.dropped == {"unknown_frames": 3}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("blocks"), st.lists(st.integers(0, 80), max_size=6)),
            st.tuples(st.just("gone"), st.lists(st.integers(0, 80), min_size=1, max_size=6)),
        ),
        max_size=12,
    )
)
def test_replay_of_random_words_is_that_of_a_dict(words: list[tuple[str, list[int]]]) -> None:
    meant: dict[int, int] = {}
    notes = []
    for at, (word, units) in enumerate(words):
        if word == "gone":
            notes.append(gone(*units))
            for unit in units:
                meant.pop(unit, None)
        elif units:
            notes.append(blocks(entries_of(units, generation=at, seed=at)))
            meant |= dict.fromkeys(units, at)
    found = replayed(*notes)
    assert found.entries[["unit", "generation"]].tolist() == sorted(meant.items())


@given(st.data())
def test_walk_of_a_damaged_journal_ends_before_the_damage(data: st.DataObject) -> None:
    frames = [
        nvme_format.frame(FrameType.GONE, 7, at, 600 * at, bytes(4 * 600 * at)) for at in range(5)
    ]
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    walk, seen = FrameWalk(memoryview(whole), 7), 0
    while walk.step() is not None:
        seen += 1
    ends = np.cumsum([len(frame) for frame in frames])
    hit = int(np.searchsorted(ends, at, "right"))
    in_padding = at - int(ends[hit] - len(frames[hit])) >= 64 + 4 * 600 * hit
    assert seen == (5 if in_padding else hit)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_walk_of_any_bytes_ends(data: bytes, shift: int) -> None:
    frame = nvme_format.frame(FrameType.GONE, 7, 0, 1, b"abcd")
    for memory in (data, frame[:64] + data, frame[: 64 - shift] + data + frame):
        walk = FrameWalk(memoryview(memory), 7)
        assert walk.wanted(len(memory)) >= 0
        while (step := walk.step()) is not None:
            Replay().add(*step)


@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=3))
def test_notes_of_any_bytes_are_refused_or_are_what_would_be_written(
    junk: bytes, at: int, change: bytes
) -> None:
    for whole in (write_namespace(3, NOTE), write_kind(3, kind_of(256))):
        for payload in (junk, whole[:at] + change + whole[at + len(change) :], whole[:at]):
            space = read_namespace(payload)
            assert space is None or write_namespace(*space) == _without_gap(payload)
            kind = read_kind(payload)
            assert kind is None or write_kind(*kind) == payload


def _without_gap(payload: bytes) -> bytes:
    """Two bytes of a namespace's note mean nothing."""
    return payload[:10] + bytes(2) + payload[12:]


def test_notes_come_back_as_they_were() -> None:
    space = NamespaceNote(Namespace("d", "m", bytes(range(32)), "lora", 128, b"\1\2"), 255)
    for note in (space, dataclasses.replace(space, enabled=False)):
        assert read_namespace(write_namespace(7, note)) == (7, note)
    senseless = write_namespace(7, space)
    assert read_namespace(senseless[:9] + b"\2" + senseless[10:]) is None
    for layout in (kind_of(256), BIG):
        assert read_kind(write_kind(9, layout)) == (9, layout)


# -- on a file


SMALL = dataclasses.replace(OPTIONS, journal_bytes=MIB)


def test_journal_under_churn_is_compacted_and_loses_nothing(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path, options=SMALL)
    number, kind = device.namespace_number(NOTE), device.kind_number(kind_of(3968))
    meant: dict[int, int] = {}
    random = np.random.default_rng(4)
    for turn in range(300):
        units = np.unique(random.integers(0, device.units, 40)).astype(np.uint32)
        entries = entries_of(units.tolist(), generation=turn, seed=turn)
        entries["namespace"], entries["kind"] = number, kind
        device.note_blocks(entries)
        device.note_gone(units[::3])
        meant |= dict.fromkeys(units.tolist(), turn)
        for unit in units[::3].tolist():
            del meant[unit]
        if turn % 10 == 0:
            device.flush().result(30)
    device.flush().result(30)
    assert device.journal is not None
    assert device.journal.counters["journal_compactions"] >= 2
    assert device.journal.counters["journal_entries_dropped"] == 0
    device.close()
    device = open_device(tmp_path, options=SMALL)
    found = device.recover()
    assert dict(found.entries[["unit", "generation"]].tolist()) == meant
    device.close()


def test_journal_too_small_for_what_lives_forgets_the_newest_and_serves_on(
    tmp_path: pathlib.Path,
) -> None:
    options = dataclasses.replace(OPTIONS, journal_bytes=64 * 1024)
    device = open_device(tmp_path, options=options)
    number, kind = device.namespace_number(NOTE), device.kind_number(kind_of(3968))
    for turn in range(60):
        entries = entries_of(list(range(turn * 30, turn * 30 + 30)), seed=turn)
        entries["namespace"], entries["kind"] = number, kind
        device.note_blocks(entries)
        device.flush().result(30)
    assert device.journal is not None
    dropped = device.journal.counters["journal_entries_dropped"]
    assert dropped and device.journal.counters["journal_compactions"] < 30
    device.close()
    device = open_device(tmp_path, options=options)
    found = device.recover().entries["unit"].tolist()
    assert found == list(range(len(found))) and 300 < len(found) < 60 * 30 - dropped + 1
    device.close()


def test_uses_that_a_full_journal_has_no_room_for_are_no_fault(tmp_path: pathlib.Path) -> None:
    options = dataclasses.replace(OPTIONS, journal_bytes=64 * 1024)
    device = open_device(tmp_path, options=options)
    number, kind = device.namespace_number(NOTE), device.kind_number(kind_of(3968))
    entries = entries_of(list(range(500)))
    entries["namespace"], entries["kind"] = number, kind
    device.note_blocks(entries)
    for _ in range(20):
        device.note_used(np.arange(500, dtype=np.uint32))
        device.flush().result(30)
    assert device.health.state == State.HEALTHY and device.journal is not None
    assert device.journal.counters["journal_compactions"] > 0
    device.close()
    device = open_device(tmp_path, options=options)
    assert device.recover().entries["unit"].tolist() == list(range(500))
    device.close()


def test_region_of_an_earlier_use_is_no_continuation(tmp_path: pathlib.Path) -> None:
    """A crash in a compaction leaves whole frames where the next one writes."""
    device = open_device(tmp_path, options=SMALL)
    assert device.journal is not None
    superblock = device.journal.superblock
    device.close()
    file = open_direct(tmp_path, print)
    other = superblock.region_offset(1 - superblock.active)
    stale = RegionWriter(file, other, superblock.journal_bytes, superblock.journal_id + 2)
    stale.append([blocks(entries_of([at])) for at in range(9)])
    file.close()
    device = open_device(tmp_path, options=SMALL)
    assert not len(device.recover().entries)
    device.close()


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 3700])
def test_torn_tail_is_counted_and_the_rest_stands(tmp_path: pathlib.Path, cut: int) -> None:
    device = open_device(tmp_path, options=SMALL)
    number, kind = device.namespace_number(NOTE), device.kind_number(kind_of(3968))
    device.flush().result(10)
    entries = entries_of([1, 2, 3] + [5] * 40)
    entries["namespace"], entries["kind"] = number, kind
    device.note_blocks(entries[:3])
    device.flush().result(10)
    device.note_blocks(entries[3:])
    device.flush().result(10)
    assert device.journal is not None
    superblock = device.journal.superblock
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())  # as a crash leaves it: no clean end
    device.close()
    last = data.rindex(nvme_format.FRAME_MAGIC, 0, superblock.data_offset)
    data[last + cut : last + 4096] = bytes(4096 - cut)
    path.write_bytes(data)
    device = open_device(tmp_path, options=SMALL)
    found = device.recover()
    assert found.entries["unit"].tolist() == [1, 2, 3]
    assert found.dropped == ({"torn_tail": 1} if cut >= 16 else {})
    device.close()


def test_unused_namespaces_and_kinds_are_forgotten_at_the_next_start(
    tmp_path: pathlib.Path,
) -> None:
    device = open_device(tmp_path)
    for at in range(3):
        note = NamespaceNote(Namespace("default", f"model-{at}", bytes(32)), at)
        number = device.namespace_number(note)
        assert number == device.namespace_number(note) == at
        assert device.kind_number(kind_of(128 * (at + 1))) == at
    changed = dataclasses.replace(note, max_lineage=9)
    assert device.namespace_number(changed) == 2
    entries = entries_of([4], kind=2)
    entries["namespace"] = 2
    device.note_blocks(entries)
    device.close()
    device = open_device(tmp_path)
    found = device.recover()
    assert (found.namespaces, found.kinds) == ([changed], [kind_of(384)])
    assert found.entries[["namespace", "kind"]].tolist() == [(0, 0)]
    assert device.namespace_number(NOTE) == 1
    device.close()


def test_namespace_that_is_off_is_remembered_without_blocks_until_it_is_on(
    tmp_path: pathlib.Path,
) -> None:
    off = dataclasses.replace(NOTE, enabled=False)
    device = open_device(tmp_path)
    device.namespace_number(NamespaceNote(Namespace("default", "first", bytes(32)), 16))
    device.namespace_number(off)
    device.close()
    for _ in range(2):
        device = open_device(tmp_path)
        assert device.recover().namespaces == [off]
        device.close()
    device = open_device(tmp_path)
    device.namespace_number(NOTE)
    device.close()
    device = open_device(tmp_path)
    assert device.recover().namespaces == []
    device.close()


@pytest.mark.parametrize("copy", [0, 1])
def test_superblock_torn_while_it_was_written_leaves_the_other_copy(
    tmp_path: pathlib.Path, copy: int
) -> None:
    device = open_device(tmp_path)
    if copy == 0:  # the first start wrote copy 1
        device.close()
        device = open_device(tmp_path)
    number, kind = device.namespace_number(NOTE), device.kind_number(kind_of(3968))
    entries = entries_of([4], kind=kind)
    entries["namespace"] = number
    device.note_blocks(entries)
    device.close()
    open_device(tmp_path).close()  # writes the other copy, and its region
    path = tmp_path / FILE_NAME
    with path.open("r+b") as file:
        file.seek((1 - copy) * UNIT_BYTES + 16)
        file.write(bytes(200))
    device = open_device(tmp_path)
    assert device.recover().entries["unit"].tolist() == [4]
    device.close()


def test_superblock_of_a_newer_version_is_refused(tmp_path: pathlib.Path) -> None:
    open_device(tmp_path).close()
    path = tmp_path / FILE_NAME
    with path.open("r+b") as file:
        body = bytearray(file.read(2 * UNIT_BYTES)[UNIT_BYTES:])
        body[8] = 2
        body[-8:] = nvme_format.xxh3(bytes(body[:-8])).to_bytes(8, "little")
        file.seek(0)
        file.write(body)
    with pytest.raises(ConfigError, match="format version 2"):
        open_device(tmp_path)


def test_superblocks_both_damaged_start_an_empty_device(tmp_path: pathlib.Path) -> None:
    open_device(tmp_path).close()
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(nvme_format.MAGIC + bytes(4088) + nvme_format.MAGIC + bytes(4088))
    log: list[str] = []
    device = open_device(tmp_path, log=log)
    assert not len(device.recover().entries) and "damaged" in log[0]
    device.close()


@given(st.binary(min_size=100, max_size=100), st.integers(0, 4088))
def test_superblock_with_any_fields_is_sound_or_none(fields: bytes, at: int) -> None:
    sound = nvme_format.geometry(16 * MIB, MIB, 0, bytes(16)).encoded()
    assert nvme_format.superblock_of(sound) is not None
    body = bytearray(sound[:-8])
    body[16 : 16 + len(fields)] = fields
    forged = bytes(body) + nvme_format.xxh3(bytes(body)).to_bytes(8, "little")
    found = nvme_format.superblock_of(forged)
    assert found is None or found.is_sound
    body[at % len(body)] ^= 1
    assert nvme_format.superblock_of(bytes(body) + forged[-8:]) is None


@given(st.binary(min_size=128, max_size=128), st.integers(0, 127), st.integers(1, 255))
def test_footer_of_any_or_changed_bytes_is_none(junk: bytes, at: int, change: int) -> None:
    assert not nvme_format.is_footer(junk, 5)
    footers = np.zeros(1, nvme_format.FOOTER)
    footers["device_key"], footers["path_hash"], footers["page"] = 5, 77, 3
    nvme_format.seal_footers(footers)
    whole = footers.tobytes()
    assert nvme_format.is_footer(whole, 5) and not nvme_format.is_footer(whole, 6)
    changed = bytearray(whole)
    changed[at] ^= change
    assert not nvme_format.is_footer(bytes(changed), 5)


def test_read_region_beyond_a_short_file_is_torn(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    assert device.journal is not None
    superblock = device.journal.superblock
    device.close()
    file = open_direct(tmp_path, print)
    file.resize(superblock.region_offset(superblock.active))
    found = read_region(file, superblock)
    assert found.dropped == {"torn_tail": 1} and not len(found.entries)
    file.close()


def recency_of(device: NvmeDevice) -> list[int]:
    """Units from the one used longest ago on."""
    found = device.recover()
    return [int(unit) for unit in found.entries["unit"][np.argsort(found.recency)]]


def test_order_of_use_is_the_order_in_which_units_were_named_last(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    device.kind_number(kind_of(128))
    device.namespace_number(NOTE)
    device.note_blocks(entries_of([7, 3, 9]))
    device.note_used(np.array([5, 3], np.uint32))  # nothing lies at 5 yet
    device.note_blocks(entries_of([5, 1], seed=2))
    device.flush().result(10)
    device.note_used(np.array([9], np.uint32))
    device.note_gone(np.array([7], np.uint32))
    device.close()
    for _ in range(2):  # the second time from the snapshot that the first start wrote
        device = open_device(tmp_path)
        assert recency_of(device) == [3, 5, 1, 9]
        device.close()


def test_uses_of_nothing_and_of_anything_do_no_harm(tmp_path: pathlib.Path) -> None:
    device = open_device(tmp_path)
    device.note_used(np.array([2**32 - 1, 0, 0], np.uint32))
    device.close()
    device = open_device(tmp_path)
    assert recency_of(device) == []
    device.close()
