"""Growable numpy columns: a table is a set of equally long arrays and an allocator of rows.

::

    row      0        1      2      3      4   ...  top          capacity
           +--------+------+------+------+------+--------------+
    column | nothing| live | free | live | ...  |  never used  |
           +--------+------+------+------+------+--------------+

Row 0 is "no row", in every table: links to it need no test, writes to it do no harm, and its
cells mean nothing.  An object a page would cost ten times the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32

FIRST_CAPACITY = 1024


class Rows:
    """Hands out row numbers 1, 2, ..., the freed ones first."""

    def __init__(self) -> None:
        self.top = 1
        self._stack = np.zeros(FIRST_CAPACITY, np.uint32)
        self._free = 0

    @property
    def live(self) -> int:
        """Rows in use."""
        return self.top - 1 - self._free

    def take(self, count: int) -> U32:
        """`count` rows that nobody uses, ascending: what is taken together lies together."""
        again = min(count, self._free)
        self._free -= again
        rows = np.empty(count, np.uint32)
        rows[:again] = self._stack[self._free : self._free + again]
        rows[:again].sort()
        rows[again:] = np.arange(self.top, self.top + count - again, dtype=np.uint32)
        self.top += count - again
        return rows

    def give(self, rows: U32) -> None:
        """Frees rows; each was taken and is named once."""
        count = len(rows)
        assert count <= self.live, f"{count} rows given back, {self.live} live"
        if self._free + count > len(self._stack):
            self._stack = grown(self._stack, self._free + count)
        self._stack[self._free : self._free + count] = rows
        self._free += count

    def free_rows(self) -> U32:
        """A copy of the freed rows, for check()."""
        return self._stack[: self._free].copy()

    @property
    def nbytes(self) -> int:
        """Bytes that the freed rows take."""
        return int(self._free) * 4


def grown(column: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """`column` with room for at least `rows`: doubled, zeros behind (untouched memory is free)."""
    capacity = max(FIRST_CAPACITY, len(column))
    while capacity < rows:
        capacity *= 2
    if capacity == len(column):
        return column
    larger = np.zeros((capacity, *column.shape[1:]), column.dtype)
    larger[: len(column)] = column
    return larger


Columns = tuple[tuple[str, npt.DTypeLike, int], ...]
"""(attribute, dtype, width); width 1 is a flat column."""


class Table:
    """Base of the tables: names its columns in `COLUMNS`, takes and gives rows."""

    COLUMNS: Columns = ()
    """Those that every table of the kind has."""

    def __init__(self, more: Columns = ()) -> None:
        """`more` are columns that only some stores need."""
        self.rows = Rows()
        self.columns = self.COLUMNS + more
        for name, dtype, width in self.columns:
            shape = (FIRST_CAPACITY,) if width == 1 else (FIRST_CAPACITY, width)
            setattr(self, name, np.zeros(shape, dtype))

    def __len__(self) -> int:
        return self.rows.live

    def take_rows(self, count: int) -> U32:
        """`count` rows, with columns long enough to hold them."""
        taken = self.rows.take(count)
        name, _, _ = self.columns[0]
        if self.rows.top > len(getattr(self, name)):
            for name, _, _ in self.columns:
                setattr(self, name, grown(getattr(self, name), self.rows.top))
        return taken

    def expect(self, rows: int) -> None:
        """Makes room for `rows` in all, so that the table need not grow while it is busy."""
        for name, _, _ in self.columns:
            setattr(self, name, grown(getattr(self, name), rows + 1))

    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(np.dtype(dtype).itemsize * width for _, dtype, width in self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes in use: rows that were ever touched, and the freed ones' list."""
        return self.rows.top * self.row_bytes() + self.rows.nbytes
