"""What is known of each request: its hashes, what of it is stored, what is on its way.  Pure.

::

    tokens     [0 ................................................ known )  in flight
    computed   [0 ............................ start )[ start ........ computed )
    pages      reused or loaded: not ours to save      full, ours: saved once
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from anchorstore.keys import DIGEST_BYTES, path_hashes
from engine_adapter.vllm.jobs import SpaceKey


@dataclasses.dataclass(slots=True)
class Entry:
    """One request.

    Attributes:
        space: its adapter and salt.
        lineage: replays behind what it computes.
        loaded: tokens and lineage of the prefix that was loaded last; (0, 0) for none.
        is_awaiting: a load is under way: its blocks do not hold what it has computed.
        next_page: first page that is neither stored nor somebody else's.
        computed: tokens computed at the end of the last step that it was in; None before.
        is_barred: a load of it has failed: it is not looked up again.
        is_counted: its lookup is in the metrics already; it may be asked for many times.
        noted_blocks: of vLLM's, full, that resident.py knows of.
        waits_until: when it waits no longer for what is brought into memory; None before it has.
    """

    space: SpaceKey
    lineage: int = 0
    loaded: tuple[int, int] = (0, 0)
    is_awaiting: bool = False
    next_page: int = 0
    computed: int | None = None
    is_barred: bool = False
    is_counted: bool = False
    noted_blocks: int = 0
    waits_until: float | None = None
    _hashes: bytearray = dataclasses.field(default_factory=bytearray)

    def hashes(self, root: bytes, tokens: Sequence[int], pages: int, page_tokens: int) -> bytes:
        """Path hashes of the first `pages` pages; what was hashed before is kept."""
        done = len(self._hashes) // DIGEST_BYTES
        if done < pages:
            parent = bytes(self._hashes[-DIGEST_BYTES:]) or root
            fresh = list(tokens[done * page_tokens : pages * page_tokens])
            self._hashes += path_hashes(parent, fresh, page_tokens)
        return bytes(self._hashes[: pages * DIGEST_BYTES])

    def advance(self, start: int, scheduled: int, known: int, page_tokens: int) -> int:
        """A step computes `scheduled` tokens from `start`; pages that are full when it is done.

        `known`: tokens whose ids are known.  A start that does not follow the step before (a new
        request, a resumed one, a loaded prefix) leaves out the pages before it: they are not ours.
        """
        if start != self.computed:
            self.next_page = max(self.next_page, -(-start // page_tokens))
        self.computed = start + scheduled
        return min(self.computed, known) // page_tokens

    def take(self, stop_page: int) -> range:
        """The unsaved pages below `stop_page`: from now on they count as saved."""
        pages = range(self.next_page, max(self.next_page, stop_page))
        self.next_page = pages.stop
        return pages


@dataclasses.dataclass(slots=True)
class Ledger:
    """All requests that the scheduler knows."""

    entries: dict[str, Entry] = dataclasses.field(default_factory=dict)

    def enter(self, request_id: str, space: SpaceKey) -> Entry:
        """The entry of a request, made where it is not there."""
        return self.entries.setdefault(request_id, Entry(space))

    def leave(self, request_id: str) -> Entry | None:
        """Takes a request's entry out."""
        return self.entries.pop(request_id, None)


class Lineages:
    """Lineages above 0 of the pages that this engine has computed, the latest `limit` of them.

    vLLM's own cache knows nothing of lineage; a request that it serves from pages which a replay
    stands behind is no more exact than they are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lineages: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lineages)

    def record(self, hashes: bytes, lineage: int) -> None:
        """Pages with these path hashes were computed with `lineage`."""
        for path_hash in _split(hashes):
            self._lineages.pop(path_hash, None)
            if lineage:
                self._lineages[path_hash] = lineage
        while len(self._lineages) > self.limit:
            self._lineages.popitem(last=False)

    def deepest(self, hashes: bytes) -> int:
        """The deepest lineage among pages with these path hashes."""
        return max((self._lineages.get(each, 0) for each in _split(hashes)), default=0)


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + DIGEST_BYTES] for at in range(0, len(hashes), DIGEST_BYTES)]
