"""A memory without end: what is ever shared.  The ceiling of every cache, at any size."""

from __future__ import annotations

from benchmarks.trace.caches import Loss, Served


class InfiniteCache:
    """Keeps every page for ever; `margin_pages` of each hit are computed again all the same."""

    name = "infinite"

    def __init__(self, margin_pages: int) -> None:
        self.margin_pages = margin_pages

    def serve(self, request: int, seen: int) -> Served:
        """All that was seen before is there."""
        margin = min(seen, self.margin_pages)
        return Served(seen - margin, {Loss.MARGIN: margin})

    def moved(self) -> dict[str, int]:
        """Nothing that would say anything."""
        return {}
