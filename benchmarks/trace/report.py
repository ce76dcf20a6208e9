"""The report for people; the document it is made from is what --json prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anchorstore.units import format_bytes
from benchmarks.engine.report import aligned, share
from benchmarks.trace.caches import MEANING
from benchmarks.trace.lab import GRID

NOTES = (
    "depth: tokens spared of a request that hits, the middle one's and the upper tenth's least",
    "to belady: points below the optimum, told the future; x grid: pages hit over those of",
    "checkpoints grid: a state each 8192 tokens, at request ends, at branches when seen twice",
    "checkpoints placed: as many, where the workload's requests share most often, told beforehand",
    "checkpoints told: as many, where the later requests of this very prompt will leave it",
)
WAYS = ("dram read", "dram written", "nvme read", "nvme written", "daemon read")


def _points(value: float, best: float | None) -> str:
    """Distance to another rate in points of a percent."""
    return "-" if best is None else f"{100 * (value - best):+.1f}"


def _rates(lines: Sequence[Mapping[str, Any]], cache: str) -> dict[str, float]:
    """The hit rate of one cache by capacity."""
    return {line["capacity"]: line["hit_rate"] for line in lines if line["cache"] == cache}


def _rows(trace: Mapping[str, Any]) -> Iterator[list[str]]:
    """The table of one trace: its head, then a line a cache."""
    lines = trace["caches"]
    everything = [trace["infinite"], *lines]
    reasons = [r for r in MEANING if any(r.value in line["lost_pages"] for line in everything)]
    ways = [way for way in WAYS if any(way in line["moved_bytes"] for line in lines)]
    yield [
        *("capacity", "cache", "hit rate", "of infinite", "to belady", "x grid", "depth"),
        *(reason.value for reason in reasons),
        *ways,
    ]
    optimum, grid = _rates(lines, "belady"), _rates(lines, GRID)
    ceiling = trace["infinite"]["hit_rate"]
    for line in [*sorted(lines, key=lambda one: one.get("capacity_bytes", 0)), trace["infinite"]]:
        rate, moved, capacity = line["hit_rate"], line["moved_bytes"], line.get("capacity", "")
        yield [
            capacity or ("its own" if line is not trace["infinite"] else "endless"),
            line["cache"],
            share(rate),
            share(rate / ceiling if ceiling else None),
            _points(rate, optimum.get(capacity)),
            f"{rate / grid[capacity]:.2f}" if grid.get(capacity) else "-",
            "{p50}, {p90}".format(**line["hit_depth_tokens"]),
            *(share(line["lost_pages"].get(r.value, 0) / trace["usable_pages"]) for r in reasons),
            *(format_bytes(moved[way]) if way in moved else "-" for way in ways),
        ]


def trace_report(trace: Mapping[str, Any]) -> str:
    """One trace: what it is, and its table."""
    usable = max(1, trace["usable_pages"])
    about = (
        f"{trace['trace']}: {trace['requests']} requests, {trace['usable_pages']} usable pages of "
        f"{trace['page_tokens']} tokens; {share(trace['new_pages'] / usable)} of them new\n"
        f"working set {format_bytes(trace['working_set_bytes'])} in {trace['pages']} pages; "
        f"{trace['margin_pages']} page(s) of each hit are computed again"
    )
    return f"{about}\n\n{aligned(list(_rows(trace)))}"


def render(document: Mapping[str, Any]) -> str:
    """The whole report."""
    sizes = document["sizes"]
    found = {
        reason
        for trace in document["traces"]
        for line in trace["caches"]
        for reason in line["lost_pages"]
    }
    words = [f"  {reason.value}: {text}" for reason, text in MEANING.items() if reason in found]
    head = (
        f"{sizes['model']}: a page takes {format_bytes(sizes['kv_bytes'])} of kv and "
        f"{format_bytes(sizes['anchor_bytes'])} of anchors, a checkpoint "
        f"{format_bytes(sizes['state_bytes'])}"
    )
    parts = [head, *(trace_report(trace) for trace in document["traces"])]
    about = "\n".join(NOTES)
    legend = "shares are of the usable pages; pages seen before and computed again, by reason:"
    return "\n\n".join([*parts, about, "\n".join([legend, *words])])
