"""Timed rights, in order of their end: read leases, reservations, sessions without connection.

::

    renewed, new ------------------------------------> end of the line
    | a: 12.0 s | b: 12.4 s | c: 13.1 s | ... |
    ^ first to expire

All rights of one kind last equally long and time never runs backwards, so the order of use *is*
the order of the deadlines: a line instead of a heap, every operation O(1).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from anchorstore.server.core.types import U32, Positions

Key = TypeVar("Key")


class Deadlines(Generic[Key]):
    """Keys that each end `ttl_seconds` after their last use."""

    def __init__(self, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._line: collections.OrderedDict[Key, float] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, key: Key) -> bool:
        return key in self._line

    def use(self, key: Key, now: float) -> None:
        """Starts or extends: the key goes to the end of the line."""
        self._line[key] = now + self.ttl_seconds
        self._line.move_to_end(key)

    def drop(self, key: Key) -> None:
        """Ends the key's time; nothing happens where it has none."""
        self._line.pop(key, None)

    def due(self, now: float) -> Iterator[Key]:
        """Takes out, one by one, every key whose time is over."""
        while self._line:
            key, deadline = next(iter(self._line.items()))
            if deadline > now:
                return
            del self._line[key]
            yield key

    def next_deadline(self) -> float | None:
        """When the first key ends."""
        return next(iter(self._line.values()), None)

    def check(self, name: str) -> list[str]:
        """Violations: the line must be in order."""
        ends = list(self._line.values())
        return [] if ends == sorted(ends) else [f"{name}: deadlines out of order"]


@dataclasses.dataclass(eq=False, slots=True)
class Lease:
    """Blocks that one reader may go on reading.

    `held` has every block row once; `blocks` one array of block rows a need, `layouts` and
    `first_pages` one entry a need.
    """

    lease_id: int
    session_id: bytes
    held: Positions
    blocks: Sequence[U32]
    layouts: Sequence[int]
    first_pages: Sequence[int]


class Leases:
    """All read leases.  The counts per block live in the block table."""

    def __init__(self, ttl_seconds: float) -> None:
        self.by_id: dict[int, Lease] = {}
        self.deadlines: Deadlines[int] = Deadlines(ttl_seconds)
        self.blocks_named = 0  # by all of them, need by need
        self._next_id = 1

    def __len__(self) -> int:
        return len(self.by_id)

    def open(
        self,
        session_id: bytes,
        held: Positions,
        blocks: Sequence[U32],
        layouts: Sequence[int],
        first_pages: Sequence[int],
        now: float,
    ) -> Lease:
        """A new lease; ids are never reused in a boot."""
        lease = Lease(self._next_id, session_id, held, blocks, layouts, first_pages)
        self._next_id += 1
        self.by_id[lease.lease_id] = lease
        self.blocks_named += sum(map(len, blocks))
        self.deadlines.use(lease.lease_id, now)
        return lease

    def of_session(self, lease_id: int, session_id: bytes) -> Lease | None:
        """The lease, if it lives and is this session's."""
        lease = self.by_id.get(lease_id)
        return lease if lease is not None and lease.session_id == session_id else None

    def close(self, lease: Lease) -> None:
        """Ends a lease; the caller lowers the blocks' counts."""
        del self.by_id[lease.lease_id]
        self.blocks_named -= sum(map(len, lease.blocks))
        self.deadlines.drop(lease.lease_id)
