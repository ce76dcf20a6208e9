"""Runs of pages that an engine keeps as one node of its radix tree.

::

    stored in one go     a - b - c - d - e         one run: onward a>b>c>d>e
    a use of a, b        a - b | c - d - e         cut behind b: two runs
    stored behind b      a - b | c - d - e
                             \\ x - y              a run of its own

SGLang moves the *rest* of a node that it splits (c, d, e) up to the present, though only what is
before the cut was asked for.  A store whose order shall equal the engine's does the same, so it
has to know where nodes end: one u32 a page.  A run once cut is never joined again.
"""

from __future__ import annotations

import numpy as np

from anchorstore.server.core.policies import Pages
from anchorstore.server.core.types import U32


class Runs:
    """The runs of a table of pages.

    `table.onward` is a column of page rows: the page that continues a page's run, 0 behind its
    last.  It may be replaced by a longer one, as growing tables do.
    """

    def __init__(self, table: Pages) -> None:
        self._table = table

    def grow(self, rows: U32) -> None:
        """New pages [n], each the child of the one before it: a run of their own."""
        onward = self._table.onward
        onward[rows[:-1]] = rows[1:]
        onward[rows[-1:]] = 0

    def cut(self, page: int) -> U32:
        """Ends a run behind `page`; returns the rest of it, in order, which is now a run of its
        own and counts as used."""
        onward = self._table.onward
        rest = []
        current = int(onward[page])
        onward[page] = 0
        while current:
            rest.append(current)
            current = int(onward[current])
        return np.array(rest, np.uint32)

    def forget(self, page: int, parent: int) -> None:
        """`page`, the last of its run, is gone; `parent` came before it (0: none is known)."""
        onward = self._table.onward
        assert not onward[page], f"runs: page {page} goes before the rest of its run"
        if onward[parent] == page:
            onward[parent] = 0
