"""What a cache is to the lab: it serves requests in order and says what it spared each.

::

    usable pages   |<- hit ->|<- lost, by reason ->|<- new: nobody has computed them before ->|
                   |<------------- seen ---------->|

`hit` and `lost` together are always the pages seen before, which the lab counts itself, so a cache
can neither forget a loss nor count a page twice.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Protocol


class Loss(enum.StrEnum):
    """Why a page that was computed before had to be computed again."""

    EVICTED = "evicted"
    DECLINED = "declined"
    WINDOW = "window"
    CHECKPOINT = "checkpoint"
    MARGIN = "margin"


MEANING = {
    Loss.EVICTED: "it was stored, and room was needed, or it was kept back for want of it",
    Loss.DECLINED: "the store did not take it when it was last offered",
    Loss.WINDOW: "its keys and values are there, the anchors that a replay needs are not",
    Loss.CHECKPOINT: "its keys and values are there, and no state behind the last checkpoint",
    Loss.MARGIN: "the newest tokens of a hit are computed again on purpose",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """What a cache did for one request.

    Attributes:
        hit_pages: leading pages that need not be computed.
        lost: pages seen before and not spared, by reason; reasons left out count 0.
    """

    hit_pages: int
    lost: Mapping[Loss, int]


class Cache(Protocol):
    """One cache of a trace, served from the first request to the last."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    def serve(self, request: int, seen: int) -> Served:
        """Request number `request`, of whose usable pages the first `seen` were seen before: what
        it is spared; then its pages are offered."""

    def moved(self) -> Mapping[str, int]:
        """Bytes moved so far, by way, e.g. "dram read"; only ways that the cache has."""
