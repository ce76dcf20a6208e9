"""The report as a picture: a panel a trace; memory from left to right, caches as marks.

::

    spared   ___________________  what is ever shared
      %           -     -         belady
                  #     #         anchorstore, its best policy; the others as small dots
                  x     x         exact states on a grid; placed, or told the future: small
             1/8   1/2   1/8+1/2

matplotlib is imported when a picture is asked for, never before.
"""

from __future__ import annotations

import importlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trace.lab import GRID

SUFFIXES = (".png", ".svg")
PANEL_INCHES = (3.4, 2.7)
COLUMNS = 3
OURS, RIVAL, INK, PALE = "#1f5fa8", "#c8452b", "#222222", "#8a8a8a"
STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "anchorstore",  # the same document gives the same file
}


class PlotError(Exception):
    """Why there is no picture."""


def check_plot(path: pathlib.Path) -> None:
    """PlotError where a picture could not be drawn to `path`: said before hours of work."""
    if path.suffix not in SUFFIXES:
        raise PlotError(f"--plot {path}: the file's name must end with {' or '.join(SUFFIXES)}")
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
    columns = min(COLUMNS, len(traces))
    rows = math.ceil(len(traces) / columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.7)
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained"
        )
        for panel in list(axes.flat)[len(traces) :]:
            panel.set_visible(False)
        for panel, trace in zip(axes.flat, traces, strict=False):
            _panel(panel, trace)
        for panel in axes[-1]:
            panel.set_xlabel("dram, or dram + nvme, of the working set")
        for row in axes:
            row[0].set_ylabel("prompt pages spared, %")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
        except OSError as error:
            raise PlotError(f"cannot write {path}: {error.strerror}") from error
        finally:
            pyplot.close(figure)


def _panel(panel: Any, trace: Mapping[str, Any]) -> None:
    """One trace."""
    sizes = {line["capacity"]: line["capacity_bytes"] for line in trace["caches"]}
    capacities = sorted(sizes, key=lambda capacity: (sizes[capacity], capacity))
    infinite = 100 * trace["infinite"]["hit_rate"]
    panel.axhline(infinite, color=PALE, lw=1, ls=(0, (4, 3)), label="memory without end", zorder=1)
    for at, capacity in enumerate(capacities):
        lines = [line for line in trace["caches"] if line["capacity"] == capacity]
        _marks(panel, at, lines)
    panel.set_xticks(range(len(capacities)), [c.replace("+", "\n+ ") for c in capacities])
    panel.set_xlim(-0.5, len(capacities) - 0.5)
    panel.set_ylim(-3, 103)
    panel.set_title(trace["trace"], loc="left", fontweight="bold", color=INK)
    panel.grid(axis="y", color=PALE, alpha=0.25, lw=0.7)
    panel.tick_params(length=0, colors=INK)


def _marks(panel: Any, at: int, lines: Sequence[Mapping[str, Any]]) -> None:
    """What caches of one capacity spare; labels once, for the legend."""
    rates = {line["cache"]: 100 * line["hit_rate"] for line in lines}
    ours = [rate for name, rate in rates.items() if name.startswith("anchorstore")]
    rivals = [rate for name, rate in rates.items() if name.startswith("checkpoints")]
    grid = [rate for name, rate in rates.items() if name == GRID]
    told = [rate for name, rate in rates.items() if name == "belady"]
    here, there = at - 0.13, at + 0.17
    for place, values, label, style in (
        (here, told, "Belady's optimum", {"marker": "_", "s": 170, "color": INK, "lw": 1.6}),
        (here, ours, "every policy", {"marker": "o", "s": 9, "color": OURS, "alpha": 0.45}),
        (here, ours and [max(ours)], "anchorstore, best policy", {"s": 42, "color": OURS}),
        (there, rivals, "placed, told the future", {"s": 9, "color": RIVAL, "alpha": 0.55}),
        (there, grid, "states on a grid", {"marker": "X", "s": 42, "color": RIVAL}),
    ):
        panel.scatter(
            [place] * len(values), values, label=label if not at else None, zorder=3, **style
        )
