"""Boundary arithmetic against the sentence that defines it.

Goal: the vectorised search finds exactly the largest boundary that the definition allows, and
each need reads exactly the pages it says.  Method: a brute-force reading of the definition, random
presence arrays and needs by Hypothesis, and the corners as a table.
"""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from anchorstore.server.core.boundary import largest_boundary, pages_read, rows_needed
from anchorstore.server.core.types import Need, NeedAll, NeedLast, NeedWindow

PAGE_TOKENS = 64


def valid(need: Need, present: list[bool], boundary: int, resume: int) -> bool:
    """The definition, word by word."""
    if isinstance(need, NeedAll):
        return all(present[need.first_page : boundary])
    if isinstance(need, NeedLast):
        return present[resume - 1]
    rows = math.ceil(need.ratio * (resume * PAGE_TOKENS))
    rows = min(rows, need.max_rows, resume * need.rows_per_page)
    accepted = min(rows, need.min_rows) if need.min_rows else rows
    run = 0
    while run < resume and present[resume - 1 - run]:
        run += 1
    return run * need.rows_per_page >= accepted


needs = st.one_of(
    st.builds(NeedAll, st.just(0), st.integers(0, 12)),
    st.builds(
        NeedWindow,
        layout=st.just(0),
        ratio=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
        max_rows=st.sampled_from([0, 1, 6, 512]),
        rows_per_page=st.sampled_from([1, 4, 64]),
        min_rows=st.sampled_from([0, 0, 1, 5, 100]),
    ),
    st.just(NeedLast(0)),
)


@given(st.data())
def test_largest_boundary_random_needs_equals_definition(data: st.DataObject) -> None:
    pages = data.draw(st.integers(1, 14))
    asked = data.draw(st.lists(needs, min_size=1, max_size=3))
    margin = data.draw(st.integers(0, 3))
    likely = st.sampled_from([True, True, True, False])
    present = [data.draw(st.lists(likely, min_size=pages, max_size=pages)) for _ in asked]
    expected = 0
    for boundary in range(margin + 1, pages + 1):
        resume = boundary - margin
        if all(valid(n, p, boundary, resume) for n, p in zip(asked, present, strict=True)):
            expected = boundary
    arrays = [np.array(p) for p in present]
    assert largest_boundary(arrays, asked, PAGE_TOKENS, margin) == expected
    if expected:
        for need, array in zip(asked, arrays, strict=True):
            start, stop = pages_read(need, array, expected - margin, PAGE_TOKENS)
            assert 0 <= start <= stop == expected - margin
            assert array[start:stop].all()


@pytest.mark.parametrize(
    ("need", "present", "margin", "boundary", "read"),
    [
        (NeedAll(0, 0), "####.", 0, 4, (0, 4)),
        (NeedAll(0, 0), "####.", 1, 4, (0, 3)),
        (NeedAll(0, 2), "..##.", 0, 4, (2, 4)),
        (NeedAll(0, 0), ".####", 0, 0, None),
        (NeedAll(0, 0), "#....", 1, 0, None),
        (NeedLast(0), "..#..", 0, 3, (2, 3)),
        (NeedLast(0), "..#..", 2, 5, (2, 3)),
        (NeedLast(0), "....#", 1, 0, None),
        (NeedWindow(0, 1.0, 8, 4), "#.###", 0, 5, (3, 5)),
        (NeedWindow(0, 1.0, 8, 4), "#.#.#", 0, 1, (0, 1)),
        (NeedWindow(0, 1.0, 8, 4, min_rows=4), "#.#.#", 0, 5, (4, 5)),
        (NeedWindow(0, 1.0, 8, 4, min_rows=5), "#.#.#", 0, 1, (0, 1)),
        (NeedWindow(0, 0.0, 8, 4), ".....", 0, 5, (5, 5)),
        (NeedWindow(0, 0.05, 512, 4), "#####", 1, 5, (0, 4)),
    ],
)
def test_largest_boundary_corner_cases(
    need: Need, present: str, margin: int, boundary: int, read: tuple[int, int] | None
) -> None:
    array = np.array([mark == "#" for mark in present])
    assert largest_boundary([array], [need], PAGE_TOKENS, margin) == boundary
    if read:
        assert pages_read(need, array, boundary - margin, PAGE_TOKENS) == read


@pytest.mark.parametrize(
    ("resume_pages", "rows"), [(1, 4), (2, 7), (20, 64), (157, 503), (160, 512), (10_000, 512)]
)
def test_rows_needed_follows_the_budget(resume_pages: int, rows: int) -> None:
    assert rows_needed(NeedWindow(0, 0.05, 512, 4), resume_pages, PAGE_TOKENS) == rows
