"""Goal: docs/formats.md, section 7, and the code say the same bytes.

Method: read its golden vectors from the page; compute them with the library, and once more with
struct and xxhash alone, so that both cannot be wrong in the same way.
"""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
import xxhash

from anchorstore.keys import Namespace
from anchorstore.layout import layout_from_cbor
from anchorstore.tiers.nvme import format as nvme_format
from anchorstore.tiers.nvme.notes import NamespaceNote, read_kind, write_kind, write_namespace
from tests.unit.test_formats import PAGE, VECTORS, raw


def number(vector: dict[str, str], key: str) -> int:
    """A decimal number, or 16 digits of a hexadecimal one."""
    text = vector[key]
    return int(text, 16 if len(text) == 16 else 10)


def xxh3(data: bytes) -> bytes:
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def table(heading: str, nth: int = 0) -> dict[int, int]:
    """Offset to bytes in the nth table whose head starts so."""
    section = PAGE.read_text().partition("## 7. NVMe devices")[2]
    rows = section.split(heading)[nth + 1].split("\n\n")[0]
    found = re.findall(r"^\| (\d+) \| (\d+)", rows, re.MULTILINE)
    return {int(offset): int(size) for offset, size in found}


def test_superblock_on_the_page_has_these_bytes() -> None:
    v = VECTORS["nvme-superblock"]
    names = [name for name in v if name not in ("device_id", "start", "xxh3")]
    superblock = nvme_format.Superblock(
        device_id=raw(v, "device_id"), **{name: number(v, name) for name in names}
    )
    page = superblock.encoded()
    assert page[:112] == raw(v, "start") and page[-8:] == raw(v, "xxh3")
    assert nvme_format.superblock_of(page) == superblock
    again = b"ANCHNVM1" + struct.pack("<IIQ", 1, 0, 5) + raw(v, "device_id")
    again += struct.pack("<QQII", 2**30, 2**26, 14, 1)
    again += struct.pack("<QQQQQQ", 2**20, 2**25, 65 * 2**20, 0x0123456789ABCDEF, 3, 2)
    assert again == raw(v, "start") and xxh3(page[:4088]) == raw(v, "xxh3")


def test_frame_on_the_page_has_these_bytes() -> None:
    v = VECTORS["nvme-frame"]
    entry = np.zeros(1, nvme_format.ENTRY)
    for name in ("checksum", "unit", "generation", "page", "namespace", "kind", "lineage"):
        entry[name] = number(v, name)
    for name in ("path_hash", "parent_hash"):
        entry[name] = np.frombuffer(raw(v, name), "<u8")
    assert entry.tobytes() == raw(v, "entry")
    frame = nvme_format.frame(
        nvme_format.FrameType.BLOCKS, number(v, "journal_id"), 9, 1, entry.tobytes(), 8
    )
    assert frame[:64] == raw(v, "header") and len(frame) == number(v, "frame_bytes")
    assert frame[64:160] == raw(v, "entry") and not any(frame[160:])
    again = raw(v, "path_hash") + raw(v, "parent_hash")
    again += struct.pack("<QIIIIHB5x", number(v, "checksum"), 513, 4, 7, 0, 1, 2)
    assert again == raw(v, "entry")
    head = b"ANJF" + struct.pack("<HHQQIIQ", 1, 0, 0x0123456789ABCDEF, 9, 1, 0, 96)
    head += xxh3(again) + struct.pack("<Q", 8)
    assert head + xxh3(head) == raw(v, "header")


def test_namespace_and_layout_on_the_page_have_these_bytes() -> None:
    v = VECTORS["nvme-namespace"]
    space = Namespace(v["domain"], v["model"], raw(v, "weights"), "", number(v, "page_tokens"))
    note = NamespaceNote(space, number(v, "max_lineage"))
    assert write_namespace(0, note) == raw(v, "payload")
    again = struct.pack("<IIB3xHHHH", 0, 64, 16, 7, 9, 0, 0) + raw(v, "weights")
    assert again + b"default" + b"tiny-text" == raw(v, "payload")
    v = VECTORS["nvme-kind"]
    layout = layout_from_cbor(2, raw(v, "layout"), 0, 2)
    assert write_kind(1, layout) == raw(v, "payload")
    assert read_kind(raw(v, "payload")) == (1, layout)
    head = struct.pack("<IHHHH", 1, 2, 0, 2, len(raw(v, "layout")))
    assert head + raw(v, "layout") == raw(v, "payload")


def test_footer_on_the_page_has_these_bytes() -> None:
    v = VECTORS["nvme-footer"]
    footers = np.zeros(1, nvme_format.FOOTER)
    for name in ("generation", "page", "block_bytes", "lineage", "checksum", "layout_key"):
        footers[name] = number(v, name)
    for name in ("namespace", "kind"):
        footers[name] = number(v, name)
    for name in ("path_hash", "parent_hash"):
        footers[name] = np.frombuffer(raw(v, name), "<u8")
    key = nvme_format.device_key_of(raw(v, "device_id"))
    footers["device_key"] = key
    nvme_format.seal_footers(footers)
    assert footers.tobytes() == raw(v, "footer")
    assert nvme_format.is_footer(raw(v, "footer"), key)
    assert nvme_format.slot_bytes_of(number(v, "block_bytes")) == number(v, "slot_bytes")
    again = b"ANCHFTR1" + struct.pack("<IIIB3x", 4, 7, 2**20, 2)
    again += struct.pack("<QQ", number(v, "checksum"), number(v, "layout_key"))
    again += raw(v, "path_hash") + raw(v, "parent_hash") + raw(v, "device_id")[:8]
    again += struct.pack("<IHH", 0, 1, 0)
    assert again + xxh3(again) == raw(v, "footer")


@pytest.mark.parametrize(
    ("heading", "nth", "total"),
    [
        ("| offset | bytes | content |", 1, 4096),
        ("| offset | bytes | content |", 2, 64),
        ("| offset | bytes | content of an entry |", 0, 96),
        ("| offset | bytes | content of a footer |", 0, 128),
    ],
)
def test_tables_on_the_page_have_no_gap(heading: str, nth: int, total: int) -> None:
    at = 0
    for offset, size in table(heading, nth).items():
        if offset == total:
            break
        assert offset == at, f"{offset} comes after {at}"
        at += size
    assert at == total
