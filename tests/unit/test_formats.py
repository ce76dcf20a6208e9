"""Goal: docs/formats.md and the code say the same bytes.

Method: read every golden vector from the page; compute it with the library, and once more with
hashlib, cbor2, struct and numpy alone, so that both cannot be wrong in the same way.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import struct

import cbor2
import numpy as np
import pytest
import xxhash

from anchorstore.keys import Namespace, path_hashes, token_array
from anchorstore.layout import (
    AnchorLayout,
    KvLatentLayout,
    KvLayout,
    Layout,
    StateLayout,
    layout_from_cbor,
)
from anchorstore.transport import frames, hints
from anchorstore.transport.segment import SegmentShape, SegmentView, format_segment, layout_key
from anchorstore.weights import weights_digest
from anchorstore.wire.v1 import store_pb2

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats.md"
BLOCK = re.compile(r"^```golden ([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_vectors() -> dict[str, dict[str, str]]:
    vectors = {}
    for name, body in BLOCK.findall(PAGE.read_text()):
        pairs = (line.split("=", 1) for line in body.splitlines())
        vectors[name] = {key.strip(): value.strip() for key, value in pairs}
    return vectors


VECTORS = read_vectors()
LAYOUT_CLASSES = {
    "layout-anchor": AnchorLayout,
    "layout-kv": KvLayout,
    "layout-kv-latent": KvLatentLayout,
    "layout-state": StateLayout,
}
CHECKED = {
    "namespace",
    "namespace-salted",
    "path",
    "path-short-page",
    *LAYOUT_CLASSES,
    "block-anchor",
    "block-kv",
    "segment",
    "hints",
    "frame-request",
    "frame-error",
    "weights",
    "nvme-superblock",  # these in test_formats_nvme.py
    "nvme-frame",
    "nvme-namespace",
    "nvme-kind",
    "nvme-footer",
}


def raw(vector: dict[str, str], key: str) -> bytes:
    return bytes.fromhex(vector[key])


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_vectors_on_the_page_are_all_checked_here() -> None:
    assert set(VECTORS) == CHECKED


@pytest.mark.parametrize("name", ["namespace", "namespace-salted"])
def test_namespace_on_the_page_has_this_root(name: str) -> None:
    v = VECTORS[name]
    weights, salt, page_tokens = raw(v, "weights"), raw(v, "salt"), int(v["page_tokens"])
    space = Namespace(v["domain"], v["model"], weights, v["adapter"], page_tokens, salt)
    assert space.root_digest() == raw(v, "root") == sha256(raw(v, "cbor"))
    assert cbor2.loads(raw(v, "cbor")) == {
        "format": "anchorstore/namespace/1",
        "domain": v["domain"],
        "model": v["model"],
        "weights": weights,
        "adapter": v["adapter"],
        "page_tokens": page_tokens,
        "salt": salt,
    }


def test_path_on_the_page_has_these_hashes() -> None:
    v = VECTORS["path"]
    hashes = path_hashes(raw(v, "parent"), range(128), int(v["page_tokens"]))
    assert hashes == raw(v, "hash_0") + raw(v, "hash_1")
    assert raw(v, "parent") == raw(VECTORS["namespace"], "root")
    assert raw(v, "hash_1") == sha256(raw(v, "hash_0") + struct.pack("<64I", *range(64, 128)))


def test_short_page_on_the_page_has_this_hash() -> None:
    v = VECTORS["path-short-page"]
    tokens = [int(token) for token in v["tokens"].split()]
    assert token_array(tokens).tobytes() == raw(v, "page") == struct.pack("<4I", *tokens)
    assert path_hashes(raw(v, "parent"), tokens, 4) == raw(v, "hash_0")
    assert raw(v, "hash_0") == sha256(raw(v, "parent") + raw(v, "page"))


def layout_of(vector: dict[str, str]) -> Layout:
    heads = int(vector.get("heads", 0))
    return layout_from_cbor(int(vector["component"]), raw(vector, "cbor"), 0, heads)


@pytest.mark.parametrize("name", LAYOUT_CLASSES)
def test_layout_on_the_page_has_this_digest(name: str) -> None:
    v = VECTORS[name]
    layout = layout_of(v)
    assert type(layout) is LAYOUT_CLASSES[name]
    assert layout.encoded() == raw(v, "cbor")
    assert layout.digest() == raw(v, "digest") == sha256(raw(v, "cbor"))
    assert layout.block_bytes() == int(v["block_bytes"])
    fields = cbor2.loads(raw(v, "cbor"))
    assert fields.pop("format") == layout.format  # type: ignore[attr-defined]
    computed = {"component", "cbor", "digest", "block_bytes"}
    assert {k: str(x) for k, x in fields.items()} == {
        k: x for k, x in v.items() if k not in computed
    }


def test_anchor_block_on_the_page_is_group_then_ascending_row() -> None:
    v = VECTORS["block-anchor"]
    layout = AnchorLayout(2, 2, 3, v["dtype"], int(v["page_tokens"]))
    expected = bytes(
        16 * group + 4 * token + column
        for group in (0, 1)
        for token in (2, 3)
        for column in range(3)
    )
    assert raw(v, "block") == expected
    assert layout.block_bytes() == len(expected)
    found = np.frombuffer(raw(v, "block"), np.uint8).reshape(layout.shape)
    assert found[1, 0].tolist() == [16 + 8, 16 + 9, 16 + 10], (
        "row 0 is the page's second last token"
    )


def test_kv_block_on_the_page_is_cut_by_heads() -> None:
    v = VECTORS["block-kv"]
    full = KvLayout(2, 4, 2, v["dtype"], 0, 4, int(v["page_tokens"]))
    shard = full.with_heads(1, 3)
    block = np.frombuffer(raw(v, "block"), np.uint8).reshape(full.shape)
    part = np.frombuffer(raw(v, "heads_1_to_3"), np.uint8).reshape(shard.shape)
    assert block.ravel().tolist() == list(range(64))
    for layer, side, token, head, dim in np.ndindex(*shard.shape):
        assert part[layer, side, token, head, dim] == block[layer, side, token, head + 1, dim]
    assert (full.shard(), shard.shard()) == (
        int(v["shard_of_all"], 16),
        int(v["shard_of_1_to_3"], 16),
    )
    assert xxhash.xxh3_64_intdigest(raw(v, "block")) == int(v["xxh3_of_block"], 16)


def test_segment_on_the_page_has_this_header() -> None:
    v = VECTORS["segment"]
    memory = memoryview(bytearray(int(v["segment_bytes"])))
    boot, ident, slot_bytes = raw(v, "boot_id"), int(v["segment_id"]), int(v["slot_bytes"])
    generation, slots = int(v["first_generation"]), int(v["slots"])
    format_segment(memory, boot, ident, slot_bytes, generation)
    first = int(v["first_slot_offset"])
    assert memory[:64] == raw(v, "header")
    assert memory[64 : 64 + 64 * slots] == raw(v, "records") * slots
    assert SegmentShape(len(memory), slot_bytes).first_slot_offset == first
    header = b"ANCHSEG2" + boot + struct.pack("<IIQII", ident, slots, slot_bytes, first, 0)
    assert raw(v, "header") == header.ljust(64, b"\x00")
    view = SegmentView(memory, boot, ident)
    assert view.slots == slots
    memory[64:128] = raw(v, "sealed_record")
    digests = (raw(v, "sealed_root_digest"), raw(v, "sealed_layout_digest"))
    key = layout_key(*digests, int(v["sealed_shard"], 16))
    numbers = (int(v["sealed_generation"]), int(v["sealed_lineage"]), key)
    last = (int(v["sealed_checksum"], 16), raw(v, "sealed_path_hash"))
    assert view.record(0) == (*numbers, *last)


def test_hints_on_the_page_have_these_bytes() -> None:
    v = VECTORS["hints"]
    buckets, boot, key = int(v["buckets"]), raw(v, "boot_id"), int(v["layout_key"], 16)
    memory = memoryview(bytearray(hints.table_bytes(buckets)))
    entries = hints.format_table(memory, boot, buckets)
    assert memory[:64] == raw(v, "header")
    place = (int(v["segment_id"]), int(v["slot"]))
    homes = [int(number) for number in v["buckets_at_home"].split()]
    for home in homes:
        entries[:] = 0
        entries[home, 5] = int(v["entry"], 16)
        assert hints.HintView(memory, boot).find(raw(v, "path_hash"), key) == [place]
    word = np.frombuffer(raw(v, "path_hash")[:8], np.uint64)
    found, tag = hints.places(word, np.array([key], np.uint64), buckets)
    position = hints.positions(*(np.array([number], np.uint32) for number in place))
    assert (found.tolist(), tag[0] | position[0]) == ([homes], int(v["entry"], 16))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frame-request", store_pb2.ReleaseRequest(session_id=bytes(range(16)), lease_ids=[5])),
        ("frame-error", store_pb2.ErrorReply(code="UnknownSession", message="gone")),
    ],
)
def test_frame_on_the_page_has_these_bytes(
    name: str, message: store_pb2.ReleaseRequest | store_pb2.ErrorReply
) -> None:
    v = VECTORS[name]
    kind, method, call = int(v["kind"]), int(v["method"]), int(v["call_id"])
    body = raw(v, "body")
    assert type(message).FromString(body) == message
    assert frames.encode(frames.Kind(kind), frames.Method(method), call, body) == raw(v, "frame")
    header = b"AS" + struct.pack("<BBHHIIQ", 1, kind, method, 0, call, len(body), 0)
    assert raw(v, "frame") == header + body


def test_methods_on_the_page_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\w+) \| `(\w+)` \| `(\w+)` \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [
        (
            str(method.value),
            "".join(word.capitalize() for word in method.name.split("_")),
            request.DESCRIPTOR.name,
            reply.DESCRIPTOR.name,
        )
        for method, (request, reply) in frames.MESSAGES.items()
    ]
    assert len(rows) == len(frames.Method)


def test_weights_on_the_page_have_this_digest(tmp_path: pathlib.Path) -> None:
    v = VECTORS["weights"]
    file = raw(v, "file")
    (tmp_path / "model.safetensors").write_bytes(file)
    assert weights_digest(tmp_path) == raw(v, "digest") == sha256(raw(v, "cbor"))
    size = int.from_bytes(file[:8], "little")
    header, data = json.loads(file[8 : 8 + size]), file[8 + size :]
    tensors = [
        [name, entry["dtype"], entry["shape"], sha256(data[slice(*entry["data_offsets"])])]
        for name, entry in sorted(header.items())
    ]
    assert cbor2.loads(raw(v, "cbor")) == {"format": "anchorstore/weights/1", "tensors": tensors}
