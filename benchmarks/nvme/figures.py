"""Rates of rounds, and what is reported of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One timed stretch."""

    moved_bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def gb_per_s(self) -> float:
        """Decimal gigabytes a second."""
        return self.moved_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds, of all cores, for a decimal gigabyte."""
        return self.cpu_seconds / (self.moved_bytes / 1e9)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of the report: medians over the rounds.

    `ratio_to_fio` is a ratio of blocks a second within one round, 1.0 = as fast; what the slots'
    footers take is on our account.  `ratio_to_fio_slots` is the same to fio moving whole slots,
    where it is on both: what the format costs is the difference.
    """

    case: str
    block_bytes: int
    engine: str
    depth: int
    gb_per_s: float
    cpu_s_per_gb: float
    fio_gb_per_s: float | None = None
    fio_cpu_s_per_gb: float | None = None
    ratio_to_fio: float | None = None
    ratio_to_fio_spread: tuple[float, float] | None = None
    ratio_to_fio_slots: float | None = None
    rounds: int = 0


def line(
    case: str,
    block_bytes: int,
    engine: str,
    depth: int,
    ours: Sequence[Round],
    fio: Sequence[Round],
    fio_slots: Sequence[float],
) -> Line:
    """Medians; `fio` and `fio_slots`, slots a second, are empty, or as long as `ours`."""
    found = Line(
        case=case,
        block_bytes=block_bytes,
        engine=engine,
        depth=depth,
        gb_per_s=_median([taken.gb_per_s for taken in ours]),
        cpu_s_per_gb=_median([taken.cpu_s_per_gb for taken in ours]),
        rounds=len(ours),
    )
    if not fio:
        return found
    ratios = [mine.gb_per_s / theirs.gb_per_s for mine, theirs in zip(ours, fio, strict=True)]
    return dataclasses.replace(
        found,
        fio_gb_per_s=_median([taken.gb_per_s for taken in fio]),
        fio_cpu_s_per_gb=_median([taken.cpu_s_per_gb for taken in fio]),
        ratio_to_fio=_median(ratios),
        ratio_to_fio_spread=(round(min(ratios), 3), round(max(ratios), 3)),
        ratio_to_fio_slots=_median(
            [
                mine.gb_per_s * 1e9 / block_bytes / theirs
                for mine, theirs in zip(ours, fio_slots, strict=True)
            ]
        ),
    )


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


def table(lines: Sequence[Line]) -> str:
    """The report for people."""
    head = ["case", "block", "engine", "depth", "GB/s", "CPU s/GB", "fio GB/s", "fio CPU s/GB"]
    rows = [[*head, "x fio", "spread", "x fio slots"]]
    for item in lines:
        row = [item.case, f"{item.block_bytes >> 10} KiB", item.engine, str(item.depth)]
        for value in (
            *(item.gb_per_s, item.cpu_s_per_gb, item.fio_gb_per_s, item.fio_cpu_s_per_gb),
            item.ratio_to_fio,
        ):
            row.append("" if value is None else f"{value:.2f}")
        spread = item.ratio_to_fio_spread
        row.append("" if spread is None else f"{spread[0]:.2f}-{spread[1]:.2f}")
        slots = item.ratio_to_fio_slots
        rows.append([*row, "" if slots is None else f"{slots:.2f}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([shown[0], "-" * len(shown[0]), *shown[1:]])
