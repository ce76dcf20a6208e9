"""The staging memory: blocks on their way to the daemon, and who owns which bytes of it.

::

    +--------+--------------+------------+----------------------+
    | a's    | free         | quarantine | free                 |
    +--------+--------------+------------+----------------------+

A block's bytes belong to its reservation until the reply to the Seal that names them.  Where that
reply does not come, the daemon may still read them, now or later, under the old block's key: they
rest in quarantine until the reply comes late or the session ends.  Arithmetic only, safe from any
thread; the memory itself is a mapped memfd (same host) or plain memory whose bytes are sent.
"""

from __future__ import annotations

import bisect
import threading

ALIGN_BYTES = 64  # a cache line: copies of neighbours never share one


def aligned(size: int) -> int:
    """`size` rounded up to ALIGN_BYTES."""
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


class Staging:
    """First-fit allocator of extents (offset, size); neighbours that are free are one."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.quarantine_bytes = 0
        usable = size_bytes // ALIGN_BYTES * ALIGN_BYTES
        self._starts = [0] if usable else []  # of the free extents, ascending
        self._sizes = [usable] if usable else []
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Sum of the free extents."""
        with self._lock:
            return sum(self._sizes)

    def take(self, size: int) -> int | None:
        """Offset of `size` bytes; None where no extent holds them."""
        size = aligned(size)
        assert size > 0, size
        with self._lock:
            for position, free in enumerate(self._sizes):
                if free >= size:
                    return self._cut(position, size)
        return None

    def _cut(self, position: int, size: int) -> int:
        start = self._starts[position]
        if self._sizes[position] == size:
            del self._starts[position], self._sizes[position]
        else:
            self._starts[position] += size
            self._sizes[position] -= size
        return start

    def give(self, offset: int, size: int) -> None:
        """Takes back what take() gave."""
        with self._lock:
            self._insert(offset, aligned(size))

    def _insert(self, offset: int, size: int) -> None:
        position = bisect.bisect_left(self._starts, offset)
        end_before = self._starts[position - 1] + self._sizes[position - 1] if position else 0
        start_after = self._starts[position] if position < len(self._starts) else self.size_bytes
        assert end_before <= offset and offset + size <= start_after, (
            f"extent {offset}+{size} overlaps what is free: given back twice"
        )
        self._starts.insert(position, offset)
        self._sizes.insert(position, size)
        self._join(position)
        if position:
            self._join(position - 1)

    def _join(self, position: int) -> None:
        """Makes one of the free extent at `position` and the next, where they touch."""
        following = position + 1
        if following == len(self._starts):
            return
        if self._starts[position] + self._sizes[position] == self._starts[following]:
            self._sizes[position] += self._sizes[following]
            del self._starts[following], self._sizes[following]

    def hold(self, size: int) -> None:
        """`size` bytes go from their reservation into quarantine."""
        with self._lock:
            self.quarantine_bytes += aligned(size)

    def give_held(self, offset: int, size: int) -> None:
        """They come out of quarantine: the daemon has answered."""
        with self._lock:
            self.quarantine_bytes -= aligned(size)
            assert self.quarantine_bytes >= 0, self.quarantine_bytes
            self._insert(offset, aligned(size))
