"""Goal: a layout's digest means one order of bytes, and no hostile layout gets past the decoder.

Method: round trips over generated layouts; random bytes, mutated encodings and arbitrary CBOR must
be refused with SpecMismatch or decode to a layout that encodes to the same bytes; shards are cut
with numpy and compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.errors import SpecMismatch
from anchorstore.layout import (
    BLOCK_BYTES_MAX,
    DTYPE_BYTES,
    ENCODED_BYTES_MAX,
    AnchorLayout,
    Component,
    KvLatentLayout,
    KvLayout,
    Layout,
    StateLayout,
    layout_from_cbor,
)

DTYPES = st.sampled_from(sorted(DTYPE_BYTES))
SMALL = st.integers(1, 40)
PAGES = st.integers(1, 128)


@st.composite
def anchor_layouts(draw: st.DrawFn) -> AnchorLayout:
    page = draw(PAGES)
    rows = draw(st.integers(1, page))
    return AnchorLayout(draw(SMALL), rows, draw(st.integers(1, 4096)), draw(DTYPES), page)


@st.composite
def kv_layouts(draw: st.DrawFn) -> KvLayout:
    heads = draw(SMALL)
    start = draw(st.integers(0, heads - 1))
    stop = draw(st.integers(start + 1, heads))
    return KvLayout(draw(SMALL), heads, draw(SMALL), draw(DTYPES), start, stop, draw(PAGES))


LAYOUTS = st.one_of(
    anchor_layouts(),
    kv_layouts(),
    st.builds(KvLatentLayout, SMALL, st.integers(1, 1024), DTYPES, PAGES),
    st.builds(StateLayout, st.integers(1, BLOCK_BYTES_MAX), st.text(min_size=1, max_size=60)),
)
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary()
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def decode(layout: Layout, encoded: bytes) -> Layout:
    return layout_from_cbor(layout.component, encoded, layout.head_start, layout.head_stop)


@given(LAYOUTS)
def test_layout_encoded_and_decoded_is_itself(layout: Layout) -> None:
    assert decode(layout, layout.encoded()) == layout
    assert layout.digest() == hashlib.sha256(layout.encoded()).digest()
    fields = cbor2.loads(layout.encoded())
    assert "head_start" not in fields and "head_stop" not in fields
    assert cbor2.dumps(fields, canonical=True) == layout.encoded()


@given(LAYOUTS)
def test_block_bytes_of_any_layout_are_its_shape_times_its_item(layout: Layout) -> None:
    assert layout.block_bytes() == math.prod(layout.shape) * DTYPE_BYTES[layout.dtype]
    assert layout.shard() == layout.head_start * 65536 + layout.head_stop


@given(LAYOUTS, LAYOUTS)
def test_digest_of_two_layouts_differs_unless_only_heads_do(one: Layout, other: Layout) -> None:
    def whole(layout: Layout) -> Layout:
        return layout.with_heads(0, layout.heads) if isinstance(layout, KvLayout) else layout

    assert (one.digest() == other.digest()) == (whole(one) == whole(other))


@settings(max_examples=300)
@given(st.integers(-1, 5), st.binary(max_size=200), st.integers(0, 9), st.integers(0, 9))
def test_layout_from_random_bytes_is_refused(
    component: int, encoded: bytes, start: int, stop: int
) -> None:
    with pytest.raises(SpecMismatch):
        layout_from_cbor(component, encoded, start, stop)


@settings(max_examples=300)
@given(LAYOUTS, st.data())
def test_layout_from_mutated_bytes_is_refused_or_means_those_bytes(
    layout: Layout, data: st.DataObject
) -> None:
    encoded = bytearray(layout.encoded())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        match data.draw(st.sampled_from(["change", "drop", "insert", "cut"])):
            case "change":
                encoded[at] = data.draw(st.integers(0, 255))
            case "drop" if len(encoded) > 1:
                del encoded[at]
            case "insert":
                encoded.insert(at, data.draw(st.integers(0, 255)))
            case "cut" if at:
                del encoded[at:]
    try:
        found = decode(layout, bytes(encoded))
    except SpecMismatch:
        return
    assert found.encoded() == encoded


@settings(max_examples=300)
@given(PLAIN, st.sampled_from(list(Component)), st.booleans())
def test_layout_from_arbitrary_cbor_is_refused(
    value: Any, component: Component, canonical: bool
) -> None:
    with pytest.raises(SpecMismatch):
        layout_from_cbor(component, cbor2.dumps(value, canonical=canonical), 0, 0)


@given(LAYOUTS, st.data())
def test_layout_with_one_field_of_another_value_is_refused_or_means_it(
    layout: Layout, data: st.DataObject
) -> None:
    fields = cbor2.loads(layout.encoded())
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(st.one_of(PLAIN, st.integers(-2, 2**70)))
    encoded = cbor2.dumps(fields, canonical=True)
    try:
        found = decode(layout, encoded)
    except SpecMismatch:
        return
    assert found.encoded() == encoded and type(fields[name]) in (int, str)


ANCHOR = AnchorLayout(7, 4, 2560, "bfloat16")


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (b"", "too early"),
        (b"\xbf\xff", "length code 31"),
        (b"\xbb" + b"\xff" * 8, "too early"),
        (b"\xa1\x7b" + b"\xff" * 8, "ends within a text"),
        (b"\xd9\xd9\xf7" + ANCHOR.encoded(), "major type 6"),
        (b"\x81" * 500, "major type 4"),
        (bytes(ENCODED_BYTES_MAX + 1), str(ENCODED_BYTES_MAX)),
        (ANCHOR.encoded() + b"\x00", "its map ends at"),
        (b"\xa2\x61a\x00\x61a\x00", "twice"),
        (b"\xa1\x61\xff\x00", "UTF-8"),
        (ANCHOR.encoded().replace(b"\x64rows\x04", b"\x64rows\x18\x04"), "canonical"),
        (ANCHOR.encoded().replace(b"anchor/1", b"anchor/9"), "anchorstore/anchor/9"),
        (ANCHOR.encoded().replace(b"\x64rows\x04", b"\x64rows\x00"), "rows is 0, must be 1 to 64"),
        (ANCHOR.encoded().replace(b"\x64rows\x04", b"\x64cows\x04"), "cows"),
    ],
)
def test_layout_that_is_hostile_says_what_is_wrong(encoded: bytes, message: str) -> None:
    with pytest.raises(SpecMismatch, match=message):
        layout_from_cbor(Component.ANCHOR, encoded, 0, 0)


def test_layout_sent_as_another_component_is_refused() -> None:
    with pytest.raises(SpecMismatch, match="component 1, was sent as 2"):
        layout_from_cbor(Component.KV, ANCHOR.encoded(), 0, 0)


@pytest.mark.parametrize("heads", [(0, 4), (1, 0), (-1, 0), (0, -1)])
def test_layout_without_heads_sent_with_a_range_is_refused(heads: tuple[int, int]) -> None:
    with pytest.raises(SpecMismatch, match="has no heads"):
        layout_from_cbor(Component.ANCHOR, ANCHOR.encoded(), *heads)


@pytest.mark.parametrize("heads", [(0, 0), (2, 2), (3, 1), (0, 5), (4, 5), (-1, 2), (2**40, 2**41)])
def test_kv_layout_with_a_range_outside_its_heads_is_refused(heads: tuple[int, int]) -> None:
    encoded = KvLayout(8, 4, 256, "bfloat16", 0, 4).encoded()
    with pytest.raises(SpecMismatch, match="head_st"):
        layout_from_cbor(Component.KV, encoded, *heads)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": 65}, "rows is 65, must be 1 to 64"),
        ({"rows": True}, "rows is True, must be an integer"),
        ({"rows": 4.0}, "rows is 4.0, must be an integer"),
        ({"groups": 0}, "groups is 0"),
        ({"hidden": 2**21}, "hidden is 2097152"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"groups": 4096, "rows": 64, "hidden": 2**20}, f"limit {BLOCK_BYTES_MAX}"),
    ],
)
def test_layout_with_an_absurd_number_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecMismatch, match=message):
        dataclasses.replace(ANCHOR, **fields)


@given(kv_layouts())
def test_kv_shards_of_any_cut_tile_the_full_block(layout: KvLayout) -> None:
    full = dataclasses.replace(
        layout, layers=2, page_tokens=3, head_start=0, head_stop=layout.heads, dtype="float32"
    )
    block = np.arange(math.prod(full.shape), dtype=np.float32).reshape(full.shape)
    cuts = sorted({0, layout.head_start, layout.head_stop, layout.heads})
    parts = []
    for start, stop in itertools.pairwise(cuts):
        shard = full.with_heads(start, stop)
        part = block[..., start:stop, :].tobytes()
        assert len(part) == shard.block_bytes()
        assert shard.digest() == full.digest()
        parts.append(np.frombuffer(part, np.float32).reshape(shard.shape))
    assert np.array_equal(np.concatenate(parts, axis=3), block)


def test_shards_of_one_layout_have_distinct_numbers() -> None:
    layout = KvLayout(1, 65_535, 1, "uint8", 0, 65_535, 1)
    ranges = [(0, 65_535), (0, 1), (1, 2), (65_534, 65_535), (1, 65_535)]
    assert len({layout.with_heads(*heads).shard() for heads in ranges}) == len(ranges)
    assert layout.shard() < 2**32
