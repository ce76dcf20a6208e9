"""Goal: a wrong argument is told before anything is sent, with thing, value and limit.
Method: one wrong value at a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.client import ClientOptions, NamespaceSpec, NeedAll, NeedLast, NeedWindow
from anchorstore.client.options import check_hashes, check_layouts
from anchorstore.errors import InvalidKey, InvalidRequest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"deadline_seconds": 0}, "deadline_seconds is 0"),
        ({"retry_seconds": float("nan")}, "retry_seconds is nan"),
        ({"release_linger_seconds": -1.0}, "release_linger_seconds is -1.0"),
        ({"staging_bytes": -1}, "staging_bytes is -1"),
        ({"max_lineage": 256}, "max_lineage is 256, must be 0 to 255"),
    ],
)
def test_options_out_of_range_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ClientOptions(**arguments)


def test_options_shown_keep_the_token_secret() -> None:
    assert "hush" not in repr(ClientOptions(token="hush"))


def test_namespace_with_a_short_digest_is_refused() -> None:
    with pytest.raises(InvalidKey, match="weights_digest has 3 bytes"):
        NamespaceSpec("model", b"abc")


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (NeedAll(0, first_page=-1), "first_page is -1"),
        (NeedWindow(0, ratio=1.5, max_rows=1, rows_per_page=1), "ratio is 1.5"),
        (NeedWindow(0, ratio=0.1, max_rows=0, rows_per_page=1), "max_rows is 0"),
        (NeedWindow(0, ratio=0.1, max_rows=1, rows_per_page=0), "rows_per_page is 0"),
        (NeedWindow(0, ratio=0.1, max_rows=1, rows_per_page=1, min_rows=-1), "min_rows is -1"),
    ],
)
def test_need_out_of_range_is_refused(need: NeedAll | NeedWindow, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        need.message()


def test_needs_as_messages_keep_their_numbers() -> None:
    window = NeedWindow(3, ratio=0.25, max_rows=512, rows_per_page=4, min_rows=8).message()
    assert (window.layout, window.window.max_rows, window.window.min_rows) == (3, 512, 8)
    assert NeedAll(1, first_page=7).message().all.first_page == 7
    assert NeedLast(2).message().WhichOneof("kind") == "last"


def test_hashes_of_odd_length_or_too_many_are_refused() -> None:
    assert check_hashes(bytes(64), 2) == 2
    with pytest.raises(InvalidRequest, match="33 bytes, must be a multiple of 32"):
        check_hashes(bytes(33), None)
    with pytest.raises(InvalidRequest, match="3 pages, limit 2"):
        check_hashes(bytes(96), 2)


def test_layouts_unknown_or_twice_are_refused() -> None:
    check_layouts([0, 1], 2)
    with pytest.raises(InvalidRequest, match="layout 2 is unknown, this client has 2"):
        check_layouts([0, 2], 2)
    with pytest.raises(InvalidRequest, match="twice"):
        check_layouts([1, 1], 2)
