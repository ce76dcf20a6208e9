"""From the scheduler's steps to what the daemon is told of vLLM's own cache.

::

    step      a request's full blocks, with their path hashes -> resident.py
    admitted  it runs behind what was there before it         -> a pin, until it is finished
    sweep     what vLLM has given away since                  -> removed

Nothing here waits, or connects: a space without a session is told nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anchorstore.client import EventPublisher
from anchorstore.keys import DIGEST_BYTES
from engine_adapter.vllm.geometry import Geometry
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.ledger import Entry
from engine_adapter.vllm.resident import Resident
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.subject import unkeyable
from engine_adapter.vllm.tally import Tally


class Following:
    """Follows one engine's cache."""

    def __init__(
        self,
        spaces: Spaces,
        geometry: Geometry,
        settings: Settings,
        hash_of: Callable[[int], Any],
        tally: Tally,
    ) -> None:
        """`hash_of` a block's id is what vLLM's pool has it cached under, None for nothing."""
        self._spaces, self._geometry, self._tally = spaces, geometry, tally
        self._queue_pages = settings.events_queue_pages
        self._settle_seconds = settings.events_settle_seconds
        self._resident = Resident(hash_of, self._publisher, geometry.pages_per_block, tally)
        self._dropped = 0

    def _publisher(self, space: SpaceKey) -> EventPublisher | None:
        client = self._spaces.peek(space)
        if client is None:
            return None
        return client.events(self._queue_pages, self._settle_seconds)

    def step(
        self,
        request: Any,
        entry: Entry,
        pages: int,
        reused_tokens: int | None,
        blocks_of: Callable[[str], Sequence[int]],
    ) -> None:
        """A step leaves a request with so many full pages.  `reused_tokens` were there when this
        step admitted it; None where it did not."""
        if reused_tokens is not None:
            entry.noted_blocks = 0
        size, page = self._geometry.pages_per_block, self._geometry.page_tokens
        blocks, reused = pages // size, (reused_tokens or 0) // page
        if blocks <= entry.noted_blocks and not reused:
            return
        client = self._spaces.peek(entry.space)
        if client is None or client.root_digest is None or unkeyable(request, entry.space):
            return
        wanted = max(blocks * size, reused)
        hashes = entry.hashes(client.root_digest, request.all_token_ids, wanted, page)
        if reused:
            last = hashes[(reused - 1) * DIGEST_BYTES : reused * DIGEST_BYTES]
            self._resident.pin(request.request_id, entry.space, last)
        ids = blocks_of(request.request_id)
        fresh = range(entry.noted_blocks, min(blocks, len(ids)))
        self._resident.note(entry.space, hashes, ids, fresh, reused // size)
        entry.noted_blocks = max(entry.noted_blocks, fresh.stop)

    def sweep(self) -> None:
        """At the end of a step."""
        self._resident.sweep()

    def finished(self, request: Any) -> None:
        """A request has ended, in whatever way."""
        self._resident.unpin(request.request_id)

    def count(self) -> None:
        """Adds what was dropped since the last time."""
        dropped = self._spaces.events_dropped()
        if dropped != self._dropped:
            self._tally.add("events_dropped", max(0, dropped - self._dropped))
            self._dropped = dropped
