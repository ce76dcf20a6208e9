"""Movement between dram and nvme in simulated time: what the daemon's shell would do with work.

::

    between two requests   begin_demote -> written in the meantime -> finish_demote
    within a lookup        promotion    -> read at once            -> finish_promote

Writes take their time: no more bytes go to nvme between two requests than the devices write in the
seconds that lie between them.  Reads are waited for, so they only count.
"""

from __future__ import annotations

import collections

import numpy as np

from anchorstore.server.core.store import Store
from anchorstore.server.core.work import Promotion

WRITE_BYTES_PER_SECOND = 2 * 10**9
"""What two ordinary data-centre devices write together when they also read."""
UNSPENT_SECONDS = 1.0
"""A device does not save up the time in which there was nothing to write."""
DEMOTE_BLOCKS = 512


class Movement:
    """The devices of one store.  `moved` counts bytes by way."""

    def __init__(self, store: Store, moved: collections.Counter[str]) -> None:
        self._store = store
        self._moved = moved
        self._room_bytes = 0.0  # what may be written by now
        self._now = 0.0

    def promote(self, promotion: Promotion, now: float) -> None:
        """Reads what a lookup waits for."""
        work = promotion.work
        assert work is not None, "nobody else reads here"
        read_bytes = int(work.block_bytes.sum())
        self._moved["nvme read"] += read_bytes
        self._moved["dram written"] += read_bytes
        count = len(work)
        self._store.finish_promote(
            work.ticket, np.ones(count, np.bool_), np.zeros(count, np.bool_), now
        )

    def demote(self, now: float) -> None:
        """Writes what waits, as far as the devices had time for it since the last call."""
        store, elapsed = self._store, now - self._now
        saved_bytes = UNSPENT_SECONDS * WRITE_BYTES_PER_SECOND
        self._room_bytes = min(self._room_bytes, saved_bytes) + elapsed * WRITE_BYTES_PER_SECOND
        self._now = now
        while self._room_bytes > 0:
            works = store.begin_demote(DEMOTE_BLOCKS, now)
            if not works:
                break
            for work in works:
                written_bytes = int(work.block_bytes.sum())
                self._room_bytes -= written_bytes
                self._moved["nvme written"] += written_bytes
                store.take_cold_gone()
                store.finish_demote(work.ticket, np.ones(len(work), np.bool_), now)
