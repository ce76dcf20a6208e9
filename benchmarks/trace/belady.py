"""Belady's optimum: the most pages that a memory of so many pages could spare, told the future.

What it is the optimum of, exactly.  A page is one unit: kv and anchors together, all or nothing, so
a memory of B bytes holds floor(B / page bytes) of them.  Between two requests the memory holds any
pages that the last request computed or that it held before, as many as fit; it may decline a page
that it was offered.  A request is spared the leading usable pages that are there when it comes.
No policy of such a memory, whatever it knows, spares all requests together more.

::

    requests      1    2    3    4    5
    page a        o---------o              from one use to the next: an interval
    page b             o-------------o     over capacity, the one that ends last goes
    page c             o----o

Why: to spare a page at its next use is to keep its interval, and at no time may more intervals
overlap than there are pages of memory.  Going through time and dropping the interval that ends
last keeps the most.  Who wants a page wants those before it, so along a path intervals never end
earlier; with the deeper page dropped first among equals, what is kept is always closed towards
the root, so every kept interval is a hit of a leading page.  Leaf-first costs the optimum nothing.

With a resume margin the same memory is shown, less the margin of every hit.  It is not an optimum
of policies that drop a page's anchors and keep its kv.
"""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from benchmarks.trace.caches import Loss, Served
from benchmarks.trace.sizes import Sizes
from benchmarks.trace.trace import NEVER, U32, Trace


class BeladyCache:
    """Keeps the pages that are used next.

    Pages of one request with the same next use lie together: they are a *run*, one entry of the
    heap.  `_run_of` tells which run a page is kept for now, 0 for none; what a run still names
    but does not own any more counts no longer.
    """

    name = "belady"

    def __init__(
        self, trace: Trace, uses: U32, sizes: Sizes, capacity_bytes: int, margin_pages: int
    ) -> None:
        """`uses` are the trace's `next_uses`, which several of these can share."""
        self.trace = trace
        self.uses = uses
        self.capacity_pages = capacity_bytes // sizes.page_bytes
        self.margin_pages = margin_pages
        self.pages_kept = 0
        self._run_of = np.zeros(trace.distinct, np.int64)
        self._runs: list[tuple[int, int]] = [(0, 0)]  # where each lies in the trace's pages
        self._heap: list[tuple[int, int]] = []  # (-next use, run)

    def kept(self, pages: U32) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which of these pages are kept now."""
        return self._run_of[pages] != 0

    def serve(self, request: int, seen: int) -> Served:
        """Spares what is there, then keeps of old and new pages those that are used first."""
        start = int(self.trace.starts[request])
        path = self.trace.path(request)
        there = self.kept(path)
        hit = int(np.count_nonzero(there[: int(self.trace.usable[request])]))
        self._renew(start, path, there)
        self._shrink()
        margin = min(hit, self.margin_pages)
        return Served(hit - margin, {Loss.MARGIN: margin, Loss.EVICTED: seen - hit})

    def moved(self) -> dict[str, int]:
        """Nothing: it stands for no device."""
        return {}

    def _renew(
        self, start: int, path: U32, there: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> None:
        """Keeps every page of the path that is used again, in runs of the same next use."""
        uses = self.uses[start : start + len(path)]
        again = int(np.searchsorted(uses, NEVER))  # uses never fall along a path
        self._run_of[path[again:]] = 0
        self.pages_kept += again - int(np.count_nonzero(there))
        edges = np.flatnonzero(np.diff(uses[:again])) + 1
        bounds = [0, *edges.tolist(), again] if again else [0]
        for first, stop in itertools.pairwise(bounds):
            run = len(self._runs)
            self._run_of[path[first:stop]] = run
            self._runs.append((start + first, start + stop))
            heapq.heappush(self._heap, (-int(uses[first]), run))

    def _shrink(self) -> None:
        """Drops what is used last, deepest pages first, until the rest fits.

        Of two runs with the same next use the older one is deeper: the newer one was renewed by a
        request that left the path above it.
        """
        while self.pages_kept > self.capacity_pages:
            run = self._heap[0][1]
            first, stop = self._runs[run]
            pages = self.trace.pages[first:stop]
            pages = pages[self._run_of[pages] == run]
            over = self.pages_kept - self.capacity_pages
            if len(pages) <= over:
                heapq.heappop(self._heap)
            else:
                pages = pages[-over:]
            self._run_of[pages] = 0
            self.pages_kept -= len(pages)
