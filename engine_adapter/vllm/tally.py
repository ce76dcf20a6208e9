"""Counts that threads add to and that leave, from time to time, for vLLM's metrics.  Pure.

::

    requests/hit, requests/<reason>      one a request that was looked up
    reused_tokens                        brought in from the store
    lost_tokens/<reason>                 could have been at most, and were not
    rows_replayed, pages_loaded          by the workers, summed over them
    blocks/<outcome>                     sealed, known, declined, mismatched
    pages_unsaved/<reason>               full pages that were not put
    events/<kind>                        in vLLM's own cache, to be told, a page each: stored,
                                         removed, touched, pinned, unpinned; events_dropped of these
    thread_errors/<thread>               defects or no memory: loader, saver

A name is a metric, or a metric and one label.
"""

from __future__ import annotations

import threading

METRICS: dict[str, tuple[str, str]] = {
    "requests": ("outcome", "Requests that were looked up, by outcome: hit, or why not."),
    "reused_tokens": ("", "Prompt tokens brought in from the store."),
    "lost_tokens": ("reason", "Prompt tokens in whole pages that were computed, by reason."),
    "rows_replayed": ("", "Kept rows replayed, summed over workers."),
    "pages_loaded": ("", "Pages copied into the paged cache, summed over workers."),
    "loads": ("outcome", "Prefixes on their way in, by how that ended: done, dropped, refused."),
    "blocks": ("outcome", "Blocks offered to the store, by what became of them."),
    "pages_unsaved": ("reason", "Full pages that were not offered to the store, by reason."),
    "events": ("kind", "What happened to pages in vLLM's own cache, for the daemon to be told."),
    "events_dropped": ("", "Of these events, not told: the daemon was absent or too slow."),
    "thread_errors": ("thread", "Unexpected errors; each cost one load or save, by thread."),
}
"""Metric -> its label ("" for none) and what it counts."""


class Tally:
    """Counts by name; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, metric: str, count: int = 1, label: str = "") -> None:
        """Adds to `metric`, or to its part `label`."""
        assert bool(METRICS[metric][0]) == bool(label), (metric, label)
        if not count:
            return
        name = f"{metric}/{label}" if label else metric
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def take(self) -> dict[str, int]:
        """What was counted since the last time."""
        if not self._counts:
            return {}  # as after most steps
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


def together(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """The sum of two takes."""
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
