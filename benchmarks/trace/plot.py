"""The report as a picture: hit rate by capacity, a panel a trace, a line a cache.

matplotlib is imported when a picture is asked for, never before.
"""

from __future__ import annotations

import importlib
import math
import pathlib
from collections.abc import Mapping
from typing import Any

PANEL_INCHES = (5.0, 4.0)
TWO_TIERS = ", dram + nvme"
STYLES = {"belady": "k--", "checkpoints": ":", "anchorstore": "-"}
"""By the first word of a cache's name."""


class PlotError(Exception):
    """Why there is no picture."""


def check_plot(path: pathlib.Path) -> None:
    """PlotError where a picture could not be drawn to `path`: said before hours of work."""
    if path.suffix != ".png":
        raise PlotError(f"--plot {path}: the file's name must end with .png")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"--plot {path}: {path.absolute().parent} is no directory")
    _pyplot()


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def draw(document: Mapping[str, Any], path: pathlib.Path) -> None:
    """Writes the picture; PlotError where it cannot."""
    pyplot = _pyplot()
    traces = document["traces"]
    columns = min(2, len(traces))
    rows = math.ceil(len(traces) / columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for panel in list(axes.flat)[len(traces) :]:
        panel.set_visible(False)
    for panel, trace in zip(axes.flat, traces, strict=False):
        _panel(panel, trace)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.suptitle(f"{document['sizes']['model']}: pages spared, by memory")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise PlotError(f"cannot write {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _panel(panel: Any, trace: Mapping[str, Any]) -> None:
    """One trace."""
    lines: dict[str, list[tuple[float, float]]] = {}
    parts = {}
    for line in trace["caches"]:
        part = line["capacity_bytes"] / trace["working_set_bytes"]
        tiers = TWO_TIERS if line["nvme_bytes"] and line["cache"].startswith("anchorstore") else ""
        lines.setdefault(line["cache"] + tiers, []).append((part, 100 * line["hit_rate"]))
        parts[round(part, 3)] = line["capacity"]
    panel.axhline(100 * trace["infinite"]["hit_rate"], color="0.7", label="infinite")
    for name, points in lines.items():
        capacities, rates = zip(*sorted(points), strict=True)
        style = "o" if name.endswith(TWO_TIERS) else f".{STYLES[name.split()[0]]}"
        panel.plot(capacities, rates, style, label=name)
    panel.set_xscale("log", base=2)
    panel.set_xticks(list(parts), list(parts.values()), rotation=45)
    panel.set_ylim(0, 100)
    panel.set_title(trace["trace"])
    panel.set_xlabel("bytes, part of the working set")
    panel.set_ylabel("usable pages spared, %")
    panel.grid(alpha=0.3)
