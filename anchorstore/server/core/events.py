"""What an engine tells of its own cache, and what follows for ours.

::

    stored, touched --> the engine holds the page     touched: it is used, too
    removed         --> the engine does not           none holds it: let go (demoting.py)
    pinned          --> dram keeps it, under a count like a lease's, until unpinned

    page    holders   0 1 0 0 1 ...    a bit an engine: heat is the maximum over those attached
            let_go    NOT | YES | SAFE

A page that is let go is never deleted for it: it is written to nvme soon, and leaves dram first
once it is whole there.  Pages of engines that tell nothing are used or not, as ever.

An engine ends with its session, or after it has been silent for long; its pins end at once, its
bit is cleared from the pages in steps.  Of one batch the last word on a page counts, so a batch
costs the same whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anchorstore.errors import InvalidRequest
from anchorstore.keys import DIGEST_BYTES
from anchorstore.server.core import requests
from anchorstore.server.core.demoting import note_let_go
from anchorstore.server.core.engines import ENGINES_MAX, Engine, LetGo, Retired
from anchorstore.server.core.lookup import use_pages
from anchorstore.server.core.sessions import NamespaceRecord, Session
from anchorstore.server.core.state import State
from anchorstore.server.core.types import U8, U32, Event, EventsResult, Positions

SWEEP_ROWS = 16_384
COUNTERS = {kind: f"events_{kind.name.lower()}" for kind in Event}


def note(
    state: State, session: Session, kinds: U8, hashes: bytes, is_cleared: bool, now: float
) -> EventsResult:
    """Takes in a batch: one kind a path hash.  `is_cleared`: the engine held nothing, and had
    nothing pinned, just before it.  An empty batch says that the engine is there."""
    assert len(hashes) == DIGEST_BYTES * len(kinds), "one kind a path hash"
    if len(kinds) and not (kinds.min() >= Event.STORED and kinds.max() <= Event.UNPINNED):
        raise InvalidRequest(f"event kinds are {kinds.min()} to {kinds.max()}, must be 1 to 5")
    keys = requests.hash_columns(state.config, hashes) if len(kinds) else None
    is_new = session.engine is None
    if is_cleared:
        leave(state, session)
    engine = session.engine or _enter(state, session)
    state.engines.deadlines.use(session.session_id, now)
    if keys is None:
        return EventsResult(0, 0, is_new)
    pages = state.index.probe(session.record.namespace_id, keys)
    counts = np.bincount(kinds, minlength=len(Event) + 1).tolist()
    for kind in Event:
        state.counters[COUNTERS[kind]] += counts[kind]
    unknown = int(np.count_nonzero(pages == 0))
    state.counters["events_unknown"] += unknown
    if not session.record.enabled:
        return EventsResult(unknown, 0, is_new)
    _note_held(state, engine, kinds, pages)
    refused = _note_pins(state, engine, kinds, pages, hashes)
    state.counters["pins_refused"] += refused
    return EventsResult(unknown, refused, is_new)


def _enter(state: State, session: Session) -> Engine:
    session.engine = Engine(_free_mask(state, session.record))
    state.note("engine", session.session_id.hex(), hex(session.engine.mask))
    return session.engine


def _free_mask(state: State, record: NamespaceRecord) -> int:
    """A bit that no engine of the namespace has; 0 where none is free, or none is wanted."""
    if not state.history.follows_engines:
        return 0
    free = ~record.engines & (2**ENGINES_MAX - 1)
    mask: int = free & -free
    record.engines |= mask
    state.counters["engines_not_followed"] += not mask
    return mask


def _last_words(keys: U32) -> Positions:
    """Where each key [n] is named last."""
    _, first = np.unique(keys[::-1], return_index=True)
    return np.asarray(len(keys) - 1 - first)


# ---- held, let go ----


def _note_held(state: State, engine: Engine, kinds: U8, pages: U32) -> None:
    """Uses what was touched; then notes what the engine holds now, and what no more."""
    chosen = (pages != 0) & (kinds <= Event.TOUCHED)
    kinds, pages = kinds[chosen], pages[chosen]
    use_pages(state, pages[kinds == Event.TOUCHED])
    if not engine.mask:
        return
    last = _last_words(pages)
    kinds, pages = kinds[last], pages[last]
    held = pages[kinds != Event.REMOVED]
    state.index.holders[held] |= np.uint64(engine.mask)
    state.index.let_go[held] = LetGo.NOT
    _let_go(state, engine.mask, pages[kinds == Event.REMOVED])


def _let_go(state: State, mask: int, pages: U32) -> None:
    """An engine holds these pages no more, if it ever did."""
    index = state.index
    index.holders[pages] &= ~np.uint64(mask)
    free = (index.holders.take(pages) == 0) & (index.let_go.take(pages) == LetGo.NOT)
    if len(free := pages[free]):
        note_let_go(state, free)


def sweep(state: State) -> None:
    """Clears one retired bit from some thousand rows, from which the next call goes on."""
    retired, index = state.engines.retired, state.index
    if not retired:
        return
    bit = retired[0]
    stop = min(bit.next_row + SWEEP_ROWS, index.rows.top)
    rows = np.arange(bit.next_row, stop, dtype=np.uint32)
    has = (index.holders[rows] & np.uint64(bit.mask)) != 0
    _let_go(state, bit.mask, rows[has & (index.namespace[rows] == bit.namespace_id)])
    bit.next_row = stop
    if stop == index.rows.top:
        retired.popleft()
        record = state.registry.by_namespace_id.get(bit.namespace_id)
        if record is not None:
            record.engines &= ~bit.mask


# ---- pins ----


def _note_pins(state: State, engine: Engine, kinds: U8, pages: U32, hashes: bytes) -> int:
    """Ends and makes pins; how many were beyond a limit.  Naming a pinned page once more pins what
    it holds now."""
    wanted: dict[bytes, int] = {}
    for at in np.flatnonzero(kinds >= Event.PINNED).tolist():
        path_hash = hashes[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]
        wanted[path_hash] = int(pages[at]) if kinds[at] == Event.PINNED else 0
    _unpin(state, engine, [path_hash for path_hash in wanted if path_hash in engine.pins])
    hash_of = {page: path_hash for path_hash, page in wanted.items() if page}
    refused = 0
    most_bytes = int(state.config.pin_share * state.pool.segments * state.pool.segment_bytes)
    for page, rows in _in_dram(state, np.array(list(hash_of), np.uint32)):
        pinned_bytes = state.engines.pinned_bytes + state.dram.bytes_of(rows)
        if len(engine.pins) >= state.config.max_pins or pinned_bytes > most_bytes:
            refused += 1
            continue
        state.blocks.leases[rows] += np.uint32(1)
        engine.pins[hash_of[page]] = rows
        _count_pins(state, rows, 1)
    return refused


def _in_dram(state: State, pages: U32) -> Iterator[tuple[int, U32]]:
    """The block rows in dram of each of these pages, distinct, that has any."""
    rows = state.blocks.of_pages(state.index, pages)
    rows = rows[state.dram.holds(rows)]
    owners = state.blocks.page.take(rows)
    rows = rows[np.argsort(owners, kind="stable")]
    found, counts = np.unique(owners, return_counts=True)
    parts = np.split(rows, np.cumsum(counts)[:-1])
    yield from zip(found.tolist(), parts, strict=False)  # of nothing there is one empty part


def _unpin(state: State, engine: Engine, path_hashes: list[bytes]) -> None:
    if not path_hashes:
        return
    rows = np.concatenate([engine.pins[path_hash] for path_hash in path_hashes])
    _count_pins(state, rows, -len(path_hashes))
    for path_hash in path_hashes:
        del engine.pins[path_hash]
    state.unlease(rows.astype(np.intp))


def _count_pins(state: State, rows: U32, pages: int) -> None:
    """So many pages more, or fewer, and these blocks of theirs."""
    state.engines.pinned_pages += pages
    state.engines.pinned_bytes += state.dram.bytes_of(rows) * (1 if pages > 0 else -1)


# ---- the end ----


def leave(state: State, session: Session) -> None:
    """Ends what the session's engine has said: its pins now, its bit soon."""
    engine, session.engine = session.engine, None
    if engine is None:
        return
    _unpin(state, engine, list(engine.pins))
    state.engines.deadlines.drop(session.session_id)
    if engine.mask:
        state.engines.retired.append(Retired(session.record.namespace_id, engine.mask))
