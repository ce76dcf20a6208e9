"""Several hits' kept rows in one rectangular batch, and the gaps between their runs.  numpy only.

A hit's kept rows are runs of neighbouring tokens (the last rows of each page).  For layers with a
short convolution each run is a sequence of its own (`reset`): so `gap` columns that hold nothing
stand before every run but the first, and shorter hits are padded on the left::

    gap = 3, two hits        columns 0 ........................ T-1
      hit 0: runs of 4,4,2   a a a a . . . b b b b . . . c c
      hit 1: runs of 4,4     . . . . . x x x x . . . y y y y        '.' is not a row

A zero row in front of a run is what the convolution sees at the start of a sequence, so one call
treats all runs of all hits; the recurrence is told to skip the columns that hold nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def kept_positions(first_page: int, pages: int, rows_per_page: int, page_tokens: int) -> Positions:
    """Token positions [pages * rows_per_page] of the last rows of `pages` pages, ascending."""
    assert 0 <= rows_per_page <= page_tokens, (rows_per_page, page_tokens)
    ends = (first_page + 1 + np.arange(pages, dtype=np.int64)) * page_tokens
    offsets = np.arange(-rows_per_page, 0, dtype=np.int64)
    return (ends[:, None] + offsets[None, :]).reshape(-1)


def columns_of(positions: Positions, gap: int) -> Positions:
    """Column [k] of each row, the first in column 0, `gap` free columns before each later run."""
    if len(positions) == 0:
        return np.empty(0, np.int64)
    steps = np.diff(positions)
    assert (steps > 0).all(), "positions must ascend"
    breaks = np.concatenate(([0], np.cumsum(steps != 1)))
    return np.arange(len(positions), dtype=np.int64) + gap * breaks


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
    """Where the rows of each hit sit in a batch [hits, length].

    Attributes:
        length: columns of the batch, T.
        columns: for each hit the column [k] of each of its rows.
    """

    length: int
    columns: tuple[Positions, ...]

    def mask(self) -> npt.NDArray[np.bool_] | None:
        """True [hits, length] where a row sits; None where every column of every hit holds one."""
        if all(len(columns) == self.length for columns in self.columns):
            return None
        mask = np.zeros((len(self.columns), self.length), np.bool_)
        for hit, columns in enumerate(self.columns):
            mask[hit, columns] = True
        return mask


def pack(positions: Sequence[Positions], gap: int) -> Packing:
    """Place the rows of several hits, all ending in the last column."""
    columns = [columns_of(each, gap) for each in positions]
    length = max((int(each[-1]) + 1 for each in columns if len(each)), default=0)
    return Packing(
        length,
        tuple(each + (length - 1 - int(each[-1])) if len(each) else each for each in columns),
    )
