"""Goal: a name never means two prefixes, and nothing but token ids can be named.

Method: properties of the chain and of the root digest over generated prompts and namespaces;
hostile token lists must be refused with one error.  The exact bytes are pinned by test_formats.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorstore.errors import InvalidKey
from anchorstore.keys import (
    DIGEST_BYTES,
    PAGE_TOKENS_MAX,
    SALT_BYTES_MAX,
    TEXT_BYTES_MAX,
    Namespace,
    path_hashes,
    token_array,
)

ROOT = bytes(range(32))
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)
NAMESPACES = st.builds(
    Namespace,
    domain=st.text(min_size=1, max_size=20),
    model=st.text(min_size=1, max_size=20),
    weights_digest=st.binary(min_size=32, max_size=32),
    adapter=st.text(max_size=20),
    page_tokens=st.integers(1, PAGE_TOKENS_MAX),
    salt=st.binary(max_size=SALT_BYTES_MAX),
)


def split(hashes: bytes) -> list[bytes]:
    return [hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES)]


@given(TOKENS, st.integers(1, 8))
def test_path_hashes_of_any_prompt_are_the_plain_definition(
    tokens: list[int], page_tokens: int
) -> None:
    expected, parent = [], ROOT
    for page in range(len(tokens) // page_tokens):
        ids = tokens[page * page_tokens : (page + 1) * page_tokens]
        parent = hashlib.sha256(parent + b"".join(i.to_bytes(4, "little") for i in ids)).digest()
        expected.append(parent)
    assert split(path_hashes(ROOT, tokens, page_tokens)) == expected


@given(TOKENS, TOKENS, st.integers(1, 8))
def test_path_hashes_of_two_prompts_agree_exactly_on_their_shared_pages(
    one: list[int], other: list[int], page_tokens: int
) -> None:
    left, right = (split(path_hashes(ROOT, t, page_tokens)) for t in (one, other))
    for page, (a, b) in enumerate(zip(left, right, strict=False), 1):
        assert (a == b) == (one[: page * page_tokens] == other[: page * page_tokens])


@given(TOKENS, st.integers(1, 8), st.integers(0, 40))
def test_path_hashes_continued_from_a_page_equal_the_whole(
    tokens: list[int], page_tokens: int, cut_page: int
) -> None:
    whole = split(path_hashes(ROOT, tokens, page_tokens))
    cut = min(cut_page, len(whole))
    parent = whole[cut - 1] if cut else ROOT
    rest = path_hashes(parent, tokens[cut * page_tokens :], page_tokens)
    assert whole[:cut] + split(rest) == whole


@given(NAMESPACES, NAMESPACES)
def test_root_digest_of_two_namespaces_differs_unless_they_are_equal(
    one: Namespace, other: Namespace
) -> None:
    assert (one.root_digest() == other.root_digest()) == (one == other)


@given(NAMESPACES, st.data())
def test_root_digest_after_a_change_of_one_field_differs(
    namespace: Namespace, data: st.DataObject
) -> None:
    other = data.draw(NAMESPACES)
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(Namespace)]))
    changed = dataclasses.replace(namespace, **{name: getattr(other, name)})
    assert (changed.root_digest() == namespace.root_digest()) == (changed == namespace)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("domain", "", "empty"),
        ("model", "", "empty"),
        ("domain", "d" * (TEXT_BYTES_MAX + 1), str(TEXT_BYTES_MAX)),
        ("model", "\u00fc" * 513, str(TEXT_BYTES_MAX)),
        ("adapter", "a" * 1025, str(TEXT_BYTES_MAX)),
        ("weights_digest", b"short", "32"),
        ("weights_digest", bytes(33), "32"),
        ("page_tokens", 0, str(PAGE_TOKENS_MAX)),
        ("page_tokens", PAGE_TOKENS_MAX + 1, str(PAGE_TOKENS_MAX)),
        ("salt", bytes(SALT_BYTES_MAX + 1), str(SALT_BYTES_MAX)),
        ("model", "\udcff", "no text"),
    ],
)
def test_namespace_with_a_wrong_field_names_it_and_its_limit(
    field: str, value: Any, limit: str
) -> None:
    fields = {"domain": "d", "model": "m", "weights_digest": bytes(32)} | {field: value}
    with pytest.raises(InvalidKey, match=field) as caught:
        Namespace(**fields)
    assert limit in str(caught.value)


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [0, 2**31],
        [2**63],
        [2**64],
        [2**200],
        [1.0, 2.0],
        [True, False],
        ["1", "2"],
        [None],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        [b"x"],
        np.array([-5], np.int64),
        np.array([2**31], np.uint64),
        np.zeros((2, 2), np.int32),
        np.array(7),
    ],
    ids=repr,
)
def test_tokens_that_are_no_ids_are_refused(tokens: Any) -> None:
    with pytest.raises(InvalidKey):
        token_array(tokens)


@given(
    st.lists(
        st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=2)),
        max_size=6,
    )
)
def test_tokens_of_any_kind_are_taken_exactly_or_refused(tokens: list[Any]) -> None:
    try:
        array = token_array(tokens)
    except InvalidKey:
        return
    assert array.dtype == np.dtype("<i4")
    assert array.tolist() == tokens


@pytest.mark.parametrize("dtype", ["int8", "uint16", ">i4", "int64", "uint64"])
def test_tokens_in_any_integer_dtype_have_the_same_path(dtype: str) -> None:
    tokens = list(range(100))
    assert path_hashes(ROOT, np.array(tokens, dtype), 8) == path_hashes(ROOT, tokens, 8)


def test_path_of_less_than_a_page_is_empty() -> None:
    assert path_hashes(ROOT, [], 64) == path_hashes(ROOT, [1] * 63, 64) == b""


@pytest.mark.parametrize("parent", [b"", bytes(31), bytes(33)])
def test_path_after_a_parent_of_the_wrong_length_is_refused(parent: bytes) -> None:
    with pytest.raises(InvalidKey, match=f"{len(parent)} bytes"):
        path_hashes(parent, [1])


@pytest.mark.parametrize("page_tokens", [0, -1, PAGE_TOKENS_MAX + 1])
def test_path_with_an_impossible_page_is_refused(page_tokens: int) -> None:
    with pytest.raises(InvalidKey, match="page_tokens"):
        path_hashes(ROOT, [1], page_tokens)
