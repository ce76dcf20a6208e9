"""Boundary arithmetic: which boundaries satisfy the needs, and which pages each need then reads.

::

    pages     0 1 2 3 4 5 6 7 8 9        boundary b = 9, margin 1: resume point r = 8
    kv        # # # # # # # # # .        all:    every page of [first, b)     reads [first, r)
    anchors   # . . # # # # # # .        window: the trailing pages before r  reads those
    state     . . . . . . . # . .        last:   page r - 1                   reads it

Pure functions of presence arrays: no index, no blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anchorstore.server.core.types import Bools, Need, NeedAll, NeedLast, NeedWindow, Positions


def rows_needed(need: NeedWindow, resume_pages: int, page_tokens: int) -> int:
    """Anchor rows that a replay to this resume point wants."""
    wanted = math.ceil(need.ratio * (resume_pages * page_tokens))
    return min(wanted, need.max_rows, resume_pages * need.rows_per_page)


def _window_pages(need: NeedWindow, pages: int, page_tokens: int) -> Positions:
    """Fewest trailing pages acceptable at each resume point 0..pages, [pages + 1]."""
    resume = np.arange(pages + 1)
    rows = np.ceil(need.ratio * (resume * page_tokens))
    rows = np.minimum(np.minimum(rows, need.max_rows), resume * need.rows_per_page)
    if need.min_rows:
        rows = np.minimum(rows, need.min_rows)
    fewest: Positions = -(-rows.astype(np.intp) // need.rows_per_page)
    return fewest


def _run_lengths(present: Bools) -> Positions:
    """Length of the run of present pages that ends before each resume point, [n + 1]."""
    ends = np.arange(len(present) + 1)
    last_hole = np.zeros(len(present) + 1, np.intp)
    np.maximum.accumulate(np.where(present, 0, ends[1:]), out=last_hole[1:])
    runs: Positions = ends - last_hole
    return runs


def _satisfied(need: Need, present: Bools, resume_pages: int, page_tokens: int) -> bool:
    """Whether a window or last page is there at one resume point."""
    if isinstance(need, NeedAll):
        return True
    if isinstance(need, NeedLast):
        return bool(present[resume_pages - 1])
    rows = rows_needed(need, resume_pages, page_tokens)
    rows = min(rows, need.min_rows) if need.min_rows else rows
    fewest = -(-rows // need.rows_per_page)
    return int(np.count_nonzero(present[resume_pages - fewest : resume_pages])) == fewest


def largest_boundary(
    present: Sequence[Bools], needs: Sequence[Need], page_tokens: int, margin_pages: int
) -> int:
    """The largest valid boundary in pages, 0 for none.

    `present` has one array [n] a need: whether the page has an acceptable block of its layout.
    """
    pages = top = len(present[0])
    for need, there in zip(needs, present, strict=True):
        if isinstance(need, NeedAll) and need.first_page < pages:
            behind = there[need.first_page :]
            hole = int(behind.argmin())
            if not behind[hole]:
                top = min(top, need.first_page + hole)
    resume_top = top - margin_pages
    if resume_top <= 0:
        return 0
    paired = list(zip(needs, present, strict=True))
    for need, there in paired:
        if not _satisfied(need, there, resume_top, page_tokens):
            break
    else:
        return top
    valid = np.ones(resume_top + 1, np.bool_)  # by resume point
    valid[0] = False
    for need, there in paired:
        if isinstance(need, NeedWindow):
            fewest = _window_pages(need, resume_top, page_tokens)
            valid &= _run_lengths(there[:resume_top]) >= fewest
        elif isinstance(need, NeedLast):
            valid[1:] &= there[:resume_top]
    found = np.flatnonzero(valid)
    return int(found[-1]) + margin_pages if len(found) else 0


def pages_read(need: Need, present: Bools, resume_pages: int, page_tokens: int) -> tuple[int, int]:
    """First and end page that the need reads at a valid resume point."""
    if isinstance(need, NeedAll):
        return min(need.first_page, resume_pages), resume_pages
    if isinstance(need, NeedLast):
        return resume_pages - 1, resume_pages
    wanted = -(-rows_needed(need, resume_pages, page_tokens) // need.rows_per_page)
    window = present[resume_pages - wanted : resume_pages]
    run = wanted if np.count_nonzero(window) == wanted else int(window[::-1].argmin())
    return resume_pages - run, resume_pages
