"""What is known of the engines that tell of their own caches: values, no behaviour (events.py).

::

    session --1--> Engine     mask: its bit in the column `holders`; pins: path hash -> block rows
    namespace      engines    bits that are taken; page rows have them too, so 64 at a time
    Engines        deadlines  silence ends an engine; retired bits are cleared some rows at a time
"""

from __future__ import annotations

import collections
import dataclasses
import enum

from anchorstore.server.core.leases import Deadlines
from anchorstore.server.core.types import U32

ENGINES_MAX = 64
"""Engines of one namespace whose holdings are known at a time."""


class LetGo(enum.IntEnum):
    """How far a page has been given up by the engines.  Any use of it, by whomever, takes it back
    to NOT."""

    NOT = 0
    YES = 1  # none holds it, one has
    SAFE = 2  # and nvme has all of it: the first to leave dram


@dataclasses.dataclass(eq=False, slots=True)
class Engine:
    """What a session has said of its engine's cache.

    `mask` has one bit, or none where holdings are not followed or no bit was free.
    """

    mask: int
    pins: dict[bytes, U32] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, slots=True)
class Retired:
    """A bit that means nobody any more, and the first row that may still have it."""

    namespace_id: int
    mask: int
    next_row: int = 1


class Engines:
    """All of them."""

    def __init__(self, ttl_seconds: float) -> None:
        self.deadlines: Deadlines[bytes] = Deadlines(ttl_seconds)
        self.retired: collections.deque[Retired] = collections.deque()
        self.pinned_bytes = 0
        self.pinned_pages = 0
