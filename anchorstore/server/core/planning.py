"""From path hashes and needs to a plan: which boundary, which blocks, where they lie.

::

    hashes --find--> page rows --chains--> block rows a need --lineage--> presence
                                                                 |
               plan: columns <-- pages each need reads <-- largest boundary

Numpy statements over the whole path, no loop over pages.  A plan says nothing about time, leases or
heat, so it holds until a page or a block comes or goes; an engine asks for the same path again and
again while a request waits, and `Plans` then answers without looking.  It keeps a plan from the
second time on that a path is asked for: most are asked for once, and to keep theirs would only
push warm memory out.  Making a plan changes nothing but parent links that had been lost.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY
from anchorstore.server.core.boundary import largest_boundary, pages_read
from anchorstore.server.core.sessions import Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import (
    U32,
    U64,
    BlockColumns,
    Bools,
    Miss,
    Need,
    NeedAll,
    Positions,
)
from anchorstore.transport.segment import Places

PAGES_PLANNED_MAX = 2**13
"""Pages in all remembered plans together: some 800 kB, which are still warm when they are used."""

PATHS_NOTED_MAX = 1024
"""Paths whose last hash is noted, so that a second question about one is known as such."""


class Reach(enum.Enum):
    """Which blocks a plan may name."""

    ALL = "all tiers"
    DRAM = "dram alone"


Question = tuple[int, tuple[int, ...], list[Need], int, int, Reach]
NO_PAGES: U32 = np.zeros(0, np.uint32)
NO_ROWS: Positions = np.zeros(0, np.intp)


@dataclasses.dataclass(slots=True)  # not frozen: that makes one a microsecond dearer
class Plan:
    """The answer to one question, but for the lease.

    `pages` are the rows of [0, boundary), `held` the blocks to lease, each once, `blocks` the rows
    a need; all empty for a miss.  `seen` are the versions of index and blocks that it saw.
    `is_cold` says that some block is not in dram: then `columns` mean nothing.
    """

    hashes: bytes
    seen: tuple[int, int]
    miss: Miss
    boundary: int
    resume: int
    lineage: int
    pages: U32
    held: Positions
    blocks: Sequence[U32]
    layouts: Sequence[int]
    first_pages: Sequence[int]
    columns: list[BlockColumns]
    is_cold: bool


class Plans:
    """The last plans made for paths asked for more than once, found by the path's last hash."""

    def __init__(self) -> None:
        self._by_end: collections.OrderedDict[bytes, tuple[Question, Plan]]
        self._by_end = collections.OrderedDict()
        self._noted: dict[bytes, None] = {}  # last hashes of paths, oldest first
        self._pages = 0

    def pages_remembered(self) -> int:
        """Pages in all remembered plans together."""
        return sum(len(plan.hashes) // DIGEST_BYTES for _, plan in self._by_end.values())

    def get(
        self,
        state: State,
        session: Session,
        hashes: bytes,
        keys: U64,
        needs: Sequence[Need],
        max_lineage: int,
        margin_pages: int,
        reach: Reach,
    ) -> Plan:
        """The plan for this question: remembered, if nothing has come or gone since, or made."""
        end = hashes[-DIGEST_BYTES:]
        namespace_id = session.record.namespace_id
        question = (namespace_id, session.kind_ids, list(needs), max_lineage, margin_pages, reach)
        kept = self._by_end.pop(end, None)
        if kept is not None:
            plan = kept[1]
            seen = (state.index.version, state.blocks.version)
            if plan.seen == seen and kept[0] == question and plan.hashes == hashes:
                self._by_end[end] = kept
                return plan
            self._pages -= len(plan.hashes) // DIGEST_BYTES
        plan = make_plan(state, session, hashes, keys, needs, max_lineage, margin_pages, reach)
        if kept is None and end not in self._noted:
            self._noted[end] = None
            if len(self._noted) > PATHS_NOTED_MAX:
                del self._noted[next(iter(self._noted))]
            return plan
        self._by_end[end] = question, plan
        self._pages += len(keys)
        while self._pages > PAGES_PLANNED_MAX:
            _, (_, oldest) = self._by_end.popitem(last=False)
            self._pages -= len(oldest.hashes) // DIGEST_BYTES
        return plan


def make_plan(
    state: State,
    session: Session,
    hashes: bytes,
    keys: U64,
    needs: Sequence[Need],
    max_lineage: int,
    margin_pages: int,
    reach: Reach,
) -> Plan:
    """Looks; see the module's drawing."""
    record = session.record
    page_tokens = record.namespace.page_tokens
    pages = state.index.find(record.namespace_id, keys)
    known = state.settle(pages)
    for need in needs:
        if isinstance(need, NeedAll) and need.first_page <= known:
            pages = pages[:known]  # no boundary lies behind
            break
    seen = (state.index.version, state.blocks.version)
    if not len(pages):
        return _nothing(hashes, seen, Miss.NOT_STORED)
    blocks = _blocks_of_needs(state, session, pages, needs)
    stored = [rows != 0 for rows in blocks]
    accepted = stored
    if max_lineage < LINEAGE_ANY:
        lineage = state.blocks.lineage
        accepted = [
            there & (lineage.take(rows) <= max_lineage)
            for there, rows in zip(stored, blocks, strict=True)
        ]
    beyond = accepted
    if reach is Reach.DRAM and not state.dram.alone:
        accepted = [
            there & state.dram.holds(rows) for there, rows in zip(accepted, blocks, strict=True)
        ]
    boundary = largest_boundary(accepted, needs, page_tokens, margin_pages)
    if not boundary:
        if beyond is not accepted and largest_boundary(beyond, needs, page_tokens, margin_pages):
            return _nothing(hashes, seen, Miss.COLD)
        return _nothing(hashes, seen, _why(stored, accepted, needs, page_tokens, margin_pages))
    resume = boundary - margin_pages
    read, starts = [], []
    for need, rows, there in zip(needs, blocks, accepted, strict=True):
        start, stop = pages_read(need, there, resume, page_tokens)
        read.append(rows[start:stop])
        starts.append(start)
    layouts = [need.layout for need in needs]
    held = np.concatenate(read).astype(np.intp)  # numpy's own index type: gathers twice as fast
    lineages = state.blocks.lineage.take(held)
    places = state.blocks.place.take(held)
    is_cold = not state.dram.alone and bool((places["segment"] == 0).any())
    return Plan(
        hashes,
        seen,
        Miss.HIT,
        boundary,
        resume,
        int(lineages.max()) if np.count_nonzero(lineages) else 0,
        pages[:boundary],
        held if len(set(layouts)) == len(layouts) else np.unique(held),
        read,
        layouts,
        starts,
        columns_of_needs(layouts, starts, read, places),
        is_cold,
    )


def _nothing(hashes: bytes, seen: tuple[int, int], miss: Miss) -> Plan:
    return Plan(hashes, seen, miss, 0, 0, 0, NO_PAGES, NO_ROWS, (), (), (), [], False)


def columns_of_needs(
    layouts: Sequence[int],
    first_pages: Sequence[int],
    blocks: Sequence[U32],
    places: Places,
) -> list[BlockColumns]:
    """Where the block rows of each need lie; `places` are those of all needs, back to back.

    Gathered for all needs at once, then cut; read-only, since several answers may share them.
    """
    stop = 0
    places.flags.writeable = False
    found = []
    for layout, first_page, part in zip(layouts, first_pages, blocks, strict=True):
        start, stop = stop, stop + len(part)
        found.append(BlockColumns(layout, first_page, places[start:stop]))
    return found


def _blocks_of_needs(
    state: State, session: Session, pages: U32, needs: Sequence[Need]
) -> list[U32]:
    """Block rows [n] of each need's layout."""
    kinds = [session.kind_ids[need.layout] for need in needs]
    distinct = list(dict.fromkeys(kinds))
    found = state.blocks.find(state.index, pages, distinct)
    if len(distinct) == len(kinds):
        return found
    return [found[distinct.index(kind)] for kind in kinds]


def _why(
    stored: Sequence[Bools],
    accepted: Sequence[Bools],
    needs: Sequence[Need],
    page_tokens: int,
    margin_pages: int,
) -> Miss:
    """The first of these that explains a miss."""
    if not any(there.any() for there in stored):
        return Miss.NOT_STORED
    if largest_boundary(stored, needs, page_tokens, margin_pages):
        return Miss.LINEAGE
    if margin_pages and largest_boundary(accepted, needs, page_tokens, 0):
        return Miss.MARGIN
    return Miss.INCOMPLETE
