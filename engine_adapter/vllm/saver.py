"""Copied pages on their way to the daemon: a queue of bounded size and a thread that empties it.

::

    a step:  copy out of the blocks --> submit --> [queue, at most so many bytes] --> thread: put

A step never waits for the daemon.  Where the queue is full, pages are not saved, and counted: a
cache may always forget.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Mapping

import torch

from anchorstore.client.counters import MISS_REASONS
from anchorstore.errors import AnchorStoreError
from anchorstore.keys import DIGEST_BYTES
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.tally import Tally

log = logging.getLogger("anchorstore.vllm")

PAGES_PER_PUT = 64
CLOSE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """A run of pages outside of the engine's blocks.

    Attributes:
        blocks: by layout of the session, [pages, *layout.shape] in host memory, contiguous.
    """

    space: SpaceKey
    parent_hash: bytes | None
    first_page: int
    hashes: bytes
    blocks: Mapping[int, torch.Tensor]
    lineage: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(each.numel() * each.element_size() for each in self.blocks.values())


class Saver:
    """Puts pages from a thread of its own."""

    def __init__(self, spaces: Spaces, queue_bytes: int, tally: Tally) -> None:
        self._tally = tally
        self._spaces, self._room = spaces, queue_bytes
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Copied | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="anchorstore-saver", daemon=True)
        self._thread.start()

    def submit(self, copied: Copied) -> None:
        """Leaves the pages to the thread, or drops them where too much waits."""
        size = copied.size_bytes
        with self._lock:
            if size > self._room:
                self._unsaved(copied, "queue_full")
                return
            self._room -= size
        self._queue.put(copied)

    def _work(self) -> None:
        while (copied := self._queue.get()) is not None:
            try:
                self._put(copied)
            except AnchorStoreError as error:
                self._unsaved(copied, "refused")
                log.warning("pages were not saved: %s", error)
            with self._lock:
                self._room += copied.size_bytes
        self._spaces.close()

    def _put(self, copied: Copied) -> None:
        client = self._spaces.get(copied.space)
        if isinstance(client, str):
            self._unsaved(copied, client)
            return
        hashes, pages = copied.hashes, len(copied.hashes) // DIGEST_BYTES
        batch = min(PAGES_PER_PUT, client.max_pages or PAGES_PER_PUT)
        for first in range(0, pages, batch):
            stop = min(first + batch, pages)
            before = hashes[(first - 1) * DIGEST_BYTES : first * DIGEST_BYTES]
            outcome = client.put(
                before if first else copied.parent_hash,
                copied.first_page + first,
                hashes[first * DIGEST_BYTES : stop * DIGEST_BYTES],
                {layout: list(each[first:stop]) for layout, each in copied.blocks.items()},
                lineage=copied.lineage,
            )
            for kind in ("sealed", "known", "declined", "mismatched"):
                self._tally.add("blocks", getattr(outcome, kind), kind)
            if outcome.reason in MISS_REASONS:  # nobody was asked
                self._tally.add("pages_unsaved", stop - first, outcome.reason)

    def _unsaved(self, copied: Copied, reason: str) -> None:
        self._tally.add("pages_unsaved", len(copied.hashes) // DIGEST_BYTES, reason)

    def close(self) -> None:
        """Lets the thread finish what waits, for a while."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
