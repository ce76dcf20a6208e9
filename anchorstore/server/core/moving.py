"""What is on its way between dram and nvme: tickets, what left, what waits to be written.

::

    sealed --note--> namespace 1 [ rows, places | rows, places | ... ] --take--> a ticket
                     namespace 2 [ rows, places | ... ]                 in turns
                     bounded: what comes when it is full is passed over, and counted

A block waits by row and place (segment, slot, generation: used once in a boot), so that a row that
serves another block by now is known.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from anchorstore.server.core.blocks import Blocks
from anchorstore.server.core.sessions import NamespaceRecord
from anchorstore.server.core.types import U32, Positions
from anchorstore.transport.segment import Places


@dataclasses.dataclass(eq=False)
class DemoteTicket:
    """Blocks between begin_demote and finish_demote.  Arrays [n]; `rows` are pinned meanwhile;
    places are in nvme."""

    ticket_id: int
    rows: Positions
    units: U32
    segment_ids: U32
    slots: U32


@dataclasses.dataclass(eq=False)
class PromoteTicket:
    """Blocks between lookup and finish_promote.  Arrays [n]; places are in dram.

    `rows` are pinned, and `pinned`, the blocks that the lookup found in dram, for as long.
    """

    ticket_id: int
    record: NamespaceRecord
    rows: Positions
    segment_ids: U32
    slots: U32
    generations: U32
    reserved_bytes: int
    pinned: Positions


@dataclasses.dataclass(slots=True)
class Left:
    """What left a tier: blocks `gone` for good, of those `kept` for now by leases; blocks `moved`
    that another tier holds, and pages of nothing but such blocks."""

    gone: int = 0
    kept: int = 0
    moved: int = 0
    pages_moved: int = 0


class WaitingBlocks:
    """Sealed blocks that are to be written to nvme: a line a namespace, which take turns."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: collections.OrderedDict[int, Line] = collections.OrderedDict()
        self._waiting: collections.Counter[int] = collections.Counter()  # blocks, by namespace

    def __len__(self) -> int:
        return self._waiting.total()

    def note(self, table: Blocks, namespace_id: int, rows: U32) -> int:
        """Appends sealed blocks of a namespace, as far as there is room, and as long as it leaves
        half of that to others that wait; returns how many were passed over."""
        room = self.limit - len(self)
        if self._lines.keys() - {namespace_id}:
            room = min(room, self.limit // 2 - self._waiting[namespace_id])
        taken = rows[: max(0, room)]
        if len(taken):
            line = self._lines.setdefault(namespace_id, collections.deque())
            line.append((taken, table.place.take(taken)))
            self._waiting[namespace_id] += len(taken)
        return len(rows) - len(taken)

    def take(self, table: Blocks, count: int) -> U32:
        """Up to `count` of them that still lie where they were sealed, attached to a page."""
        found = [np.zeros(0, np.uint32)]
        missing, turn = count, -(-count // max(1, len(self._lines)))
        while missing and self._lines:
            namespace_id = next(iter(self._lines))
            found.append(self._take(table, namespace_id, min(turn, missing)))
            missing -= len(found[-1])
        return np.concatenate(found)

    def _take(self, table: Blocks, namespace_id: int, count: int) -> U32:
        """The first `count` of a line, but for those that lie there no more; then it is the last
        one's turn."""
        line = self._lines[namespace_id]
        rows, places = line.popleft()
        if len(rows) > count:
            line.appendleft((rows[count:], places[count:]))
            rows, places = rows[:count], places[:count]
        self._waiting[namespace_id] -= len(rows)
        self._lines.move_to_end(namespace_id)
        if not line:
            del self._lines[namespace_id], self._waiting[namespace_id]
        stand = table.place.take(rows) == places
        stand &= (table.page.take(rows) != 0) & (table.cold.take(rows) == 0)
        standing: U32 = rows[stand]
        return standing


Line = collections.deque[tuple[U32, Places]]
"""Rows and places, seal by seal."""


class Movement:
    """All of it.

    Attributes:
        waiting: blocks to be written.
        demoting: rows being written; `demotes`, `promotes` the tickets.
        promoting: row being read -> ticket id.
        is_paused: the shell cannot write at present.
        is_refused: nvme had no room for what eviction would drop next.
        quiet_until: the tick before which it is not asked again.
        used_until: the tick up to which the journals know what was used.
    """

    def __init__(self, queue_blocks: int) -> None:
        self.waiting = WaitingBlocks(queue_blocks)
        self.demotes: dict[int, DemoteTicket] = {}
        self.promotes: dict[int, PromoteTicket] = {}
        self.demoting: set[int] = set()
        self.promoting: dict[int, int] = {}
        self.is_paused = False
        self.is_refused = False
        self.quiet_until = 0
        self.used_until = 0
