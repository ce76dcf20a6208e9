"""From path hashes and needs to a plan: which boundary, which blocks, where they lie.

::

    hashes --find--> page rows --chains--> block rows a need --lineage--> presence
                                                                 |
               plan: columns <-- pages each need reads <-- largest boundary

Numpy statements over the whole path, no loop over pages.  A plan says nothing about time, leases or
heat, so it holds until a page or a block comes or goes; an engine asks for the same path again and
again while a request waits, and `Plans` then answers without looking.  Making a plan changes
nothing but parent links that had been lost.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from anchorstore.server.core.boundary import largest_boundary, pages_read
from anchorstore.server.core.sessions import Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import ANY_LINEAGE, U32, U64, BlockColumns, Bools, Miss, Need

PAGES_PLANNED_MAX = 2**16
"""Pages in all remembered plans together: some 5 MB."""

Key = tuple[int, tuple[int, ...], tuple[Need, ...], int, int, bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The answer to one question, but for the lease.

    `pages` are the rows of [0, boundary), `held` the blocks to lease, each once, `blocks` the rows
    a need; all empty for a miss.  `seen` are the versions of index and blocks that it saw.
    """

    hashes: bytes
    seen: tuple[int, int]
    miss: Miss
    boundary: int
    resume: int
    lineage: int
    pages: U32
    held: U32
    blocks: tuple[U32, ...]
    layouts: tuple[int, ...]
    first_pages: tuple[int, ...]
    columns: list[BlockColumns]


class Plans:
    """The last plans made, by question."""

    def __init__(self) -> None:
        self._by_key: collections.OrderedDict[Key, Plan] = collections.OrderedDict()
        self._pages = 0

    def pages_remembered(self) -> int:
        """Pages in all remembered plans together."""
        return sum(len(plan.hashes) // 32 for plan in self._by_key.values())

    def get(
        self,
        state: State,
        session: Session,
        hashes: bytes,
        keys: U64,
        needs: Sequence[Need],
        max_lineage: int,
        margin_pages: int,
    ) -> Plan:
        """The plan for this question: remembered, if nothing has come or gone since, or made."""
        key = (
            session.record.namespace_id,
            session.kind_ids,
            tuple(needs),
            max_lineage,
            margin_pages,
            hashes[-32:],
        )
        plan = self._by_key.get(key)
        seen = (state.index.version, state.blocks.version)
        if plan is not None and plan.seen == seen and plan.hashes == hashes:
            return plan
        if plan is not None:
            del self._by_key[key]
            self._pages -= len(plan.hashes) // 32
        plan = make_plan(state, session, hashes, keys, needs, max_lineage, margin_pages)
        self._by_key[key] = plan
        self._pages += len(keys)
        while self._pages > PAGES_PLANNED_MAX:
            _, oldest = self._by_key.popitem(last=False)
            self._pages -= len(oldest.hashes) // 32
        return plan


def make_plan(
    state: State,
    session: Session,
    hashes: bytes,
    keys: U64,
    needs: Sequence[Need],
    max_lineage: int,
    margin_pages: int,
) -> Plan:
    """Looks; see the module's drawing."""
    record = session.record
    page_tokens = record.namespace.page_tokens
    pages = state.index.find(record.namespace_id, keys)
    state.index.settle(pages)
    seen = (state.index.version, state.blocks.version)
    blocks = _blocks_of_needs(state, session, pages, needs)
    stored = [rows != 0 for rows in blocks]
    accepted = stored
    if max_lineage < ANY_LINEAGE:
        lineage = state.blocks.lineage
        accepted = [
            there & (lineage.take(rows) <= max_lineage)
            for there, rows in zip(stored, blocks, strict=True)
        ]
    boundary = largest_boundary(accepted, needs, page_tokens, margin_pages)
    if not boundary:
        miss = _why(stored, accepted, needs, page_tokens, margin_pages)
        nothing = np.zeros(0, np.uint32)
        return Plan(hashes, seen, miss, 0, 0, 0, nothing, nothing, (), (), (), [])
    resume = boundary - margin_pages
    spans = [
        pages_read(need, there, resume, page_tokens)
        for need, there in zip(needs, accepted, strict=True)
    ]
    read = tuple(rows[start:stop] for rows, (start, stop) in zip(blocks, spans, strict=True))
    layouts = tuple(need.layout for need in needs)
    held = np.concatenate(read)
    if len(set(layouts)) < len(layouts):
        held = np.unique(held)
    deepest = int(state.blocks.lineage.take(held).max()) if len(held) else 0
    starts = tuple(start for start, _ in spans)
    columns = columns_of_needs(state, session, layouts, starts, read)
    return Plan(
        hashes,
        seen,
        Miss.HIT,
        boundary,
        resume,
        deepest,
        pages[:boundary],
        held,
        read,
        layouts,
        starts,
        columns,
    )


def columns_of_needs(
    state: State,
    session: Session,
    layouts: Sequence[int],
    first_pages: Sequence[int],
    blocks: Sequence[U32],
) -> list[BlockColumns]:
    """Where the block rows of each need lie.  Gathered for all needs at once, then cut; read-only,
    since several answers may share them."""
    table = state.blocks
    rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    segments, generations = table.segment.take(rows), table.generation.take(rows)
    checksums, offsets = table.checksum.take(rows), table.slot.take(rows).astype(np.uint64)
    for array in (segments, generations, checksums):
        array.flags.writeable = False
    columns, stop = [], 0
    for layout, first_page, part in zip(layouts, first_pages, blocks, strict=True):
        cut = slice(stop, stop := stop + len(part))
        kind = session.kinds[layout]
        here = offsets[cut]
        here *= np.uint64(kind.slot_bytes)
        here += np.uint64(kind.first_slot_offset)
        here.flags.writeable = False
        columns.append(
            BlockColumns(layout, first_page, segments[cut], here, generations[cut], checksums[cut])
        )
    return columns


def _blocks_of_needs(
    state: State, session: Session, pages: U32, needs: Sequence[Need]
) -> list[U32]:
    """Block rows [n] of each need's layout."""
    layouts = list(dict.fromkeys(need.layout for need in needs))
    kinds = [session.kind_ids[layout] for layout in layouts]
    found = dict(zip(layouts, state.blocks.find(state.index, pages, kinds), strict=True))
    return [found[need.layout] for need in needs]


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
