"""Caches of exact states at a few places, as engines keep them today.

::

    pages    [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ][ 6 ]      a state is worth some 25 pages of kv
    kv         #    #    #    #    #    #               kept up to the last state, no further
    states               S              S
    request  ->|->|->|->|->|->| shares five pages, resumes behind page 2: three are computed again

What is kept is a set of states and the kv of every page on the way to one of them, under one byte
budget.  The state least recently resumed from goes first, and the kv that nothing else needs with
it.  This is kind to checkpoints: no kv is ever kept that no state can use, a state resumes at the
exact end of a page without a margin, and bytes go where they are wanted between kv and states.

Which states a request leaves behind is the placement's affair.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.trace.caches import Loss, Served
from benchmarks.trace.placement import Floats, place
from benchmarks.trace.sizes import Sizes
from benchmarks.trace.trace import U32, Trace, future_uses

GRID_TOKENS = 8192
"""How often engines keep a state within a long prompt."""


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """What a placement sees of a request: it resumed behind `resume` pages, `held` leading pages
    have their kv in the cache, `pages` are there in the end."""

    request: int
    resume: int
    held: int
    pages: int


class Placement(Protocol):
    """Decides after which pages the states are kept."""

    def depths(self, computed: Computed) -> list[int]:
        """Ascending depths in pages, above `resume` and at most `pages`."""


class GridPlacement:
    """Every 8192 tokens, at the request's end, and where it left a prefix that is held: a branch
    is worth a state when it is seen for the second time."""

    def __init__(self, page_tokens: int) -> None:
        self.step = max(1, GRID_TOKENS // page_tokens)

    def depths(self, computed: Computed) -> list[int]:
        """See the class."""
        first = computed.resume // self.step + 1
        grid = range(first * self.step, computed.pages + 1, self.step)
        wanted = {*grid, computed.pages, computed.held}
        return sorted(depth for depth in wanted if computed.resume < depth <= computed.pages)


class _Sparse:
    """As many states as the grid and the end would have, placed by the program of placement.py."""

    def __init__(self, page_tokens: int) -> None:
        self.step = max(1, GRID_TOKENS // page_tokens)

    def place(self, computed: Computed, shared_by: Floats) -> list[int]:
        """`shared_by` [pages]: requests that share 1 .. pages pages."""
        room = computed.pages - computed.resume
        chosen = place(shared_by[computed.resume :], room // self.step + 1)
        return [computed.resume + depth for depth in chosen]


class WorkloadPlacement(_Sparse):
    """Told beforehand how deep the requests of this workload share, all entries together; and a
    state where a request left a prefix that is held, as the grid's."""

    def __init__(self, trace: Trace, seen: U32) -> None:
        super().__init__(trace.page_tokens)
        longest = int(np.diff(trace.starts).max())
        self._shared_by = np.bincount(seen, minlength=longest + 1).astype(np.float64)

    def depths(self, computed: Computed) -> list[int]:
        """By the workload's depths; those beyond the entry share all of it."""
        shared_by = self._shared_by[1 : computed.pages + 1].copy()
        if len(shared_by):
            shared_by[-1] += self._shared_by[computed.pages + 1 :].sum()
        chosen = self.place(computed, shared_by)
        return sorted({*chosen, computed.held} if computed.held > computed.resume else chosen)


class ToldPlacement(_Sparse):
    """Told the future: how deep each later request shares this very entry."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.page_tokens)
        self._starts = trace.starts
        self._future = future_uses(trace)

    def depths(self, computed: Computed) -> list[int]:
        """By the later uses of the request's own pages."""
        start = int(self._starts[computed.request])
        users = self._future[start : start + computed.pages].astype(np.float64)
        return self.place(computed, -np.diff(users, append=0.0))


class CheckpointCache:
    """States and the kv on the way to them, the state least recently used goes first."""

    def __init__(
        self, name: str, trace: Trace, sizes: Sizes, capacity_bytes: int, placement: Placement
    ) -> None:
        self.name = name
        self.trace = trace
        self.sizes = sizes
        self.capacity_bytes = capacity_bytes
        self.placement = placement
        self.bytes_kept = 0
        self._needed_by = np.zeros(trace.distinct, np.int32)  # states at or behind each page
        self._ever = np.zeros(trace.distinct, np.bool_)  # pages whose kv was kept once
        self._state_of = np.zeros(trace.distinct, np.int64)  # when last used; 0: no state
        self._end_of: dict[int, tuple[int, int]] = {}  # where a state's path lies in the trace
        self._heap: list[tuple[int, int]] = []  # (when last used, page)
        self._clock = 0
        self._moved: collections.Counter[str] = collections.Counter()

    @property
    def states(self) -> int:
        """States kept."""
        return len(self._end_of)

    def moved(self) -> dict[str, int]:
        """Bytes read from and written to the memory that keeps them."""
        return dict(self._moved)

    def serve(self, request: int, seen: int) -> Served:
        """Resumes behind the deepest state on the way, then keeps new ones."""
        start, path = int(self.trace.starts[request]), self.trace.path(request)
        asked = path[: int(self.trace.usable[request])]
        held = int(np.count_nonzero(self._needed_by[asked]))
        states = np.flatnonzero(self._state_of[asked])
        resume = int(states[-1]) + 1 if len(states) else 0
        ever = max(held, int(np.count_nonzero(self._ever[asked])))
        lost = {Loss.CHECKPOINT: held - resume + seen - ever, Loss.EVICTED: ever - held}
        if resume:
            self._use(int(path[resume - 1]))
            self._moved["dram read"] += resume * self.sizes.kv_bytes + self.sizes.state_bytes
        for depth in self.placement.depths(Computed(request, resume, held, len(path))):
            self._keep(start, path, depth)
        while self.bytes_kept > self.capacity_bytes:
            self._drop_oldest()
        return Served(resume, lost)

    def _use(self, page: int) -> None:
        self._clock += 1
        self._state_of[page] = self._clock
        heapq.heappush(self._heap, (self._clock, page))

    def _keep(self, start: int, path: U32, depth: int) -> None:
        """A state behind the first `depth` pages of the path."""
        page = int(path[depth - 1])
        if not self._state_of[page]:
            self._end_of[page] = (start, start + depth)
            fresh = self._count(path[:depth], 0)
            self._needed_by[path[:depth]] += 1
            self._ever[path[:depth]] = True
            size = self.sizes.state_bytes + fresh * self.sizes.kv_bytes
            self.bytes_kept += size
            self._moved["dram written"] += size
        self._use(page)

    def _drop_oldest(self) -> None:
        """Drops the state least recently used, and the kv that only it needs."""
        while True:
            used, page = heapq.heappop(self._heap)
            if self._state_of[page] == used:
                break
        first, stop = self._end_of.pop(page)
        path = self.trace.pages[first:stop]
        self._needed_by[path] -= 1
        self._state_of[page] = 0
        self.bytes_kept -= self.sizes.state_bytes + self._count(path, 0) * self.sizes.kv_bytes

    def _count(self, path: npt.NDArray[np.uint32], needed_by: int) -> int:
        """Pages of the path that so many states need."""
        return int(np.count_nonzero(self._needed_by[path] == needed_by))
