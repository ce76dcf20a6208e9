"""Rates of rounds, and what is reported of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from anchorstore.tiers.nvme.format import slot_bytes_of


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
    where it is on both: what the format costs is the difference.  `ratio_to_fio_checked`, of reads,
    is to fio that verifies checksums, too: what those cost is the difference.
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
    ratio_to_fio_checked: float | None = None
    rounds: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One round of each side; of fio: of blocks, of slots, and of blocks that are checked."""

    ours: Round
    blocks: Round | None = None
    slots: Round | None = None
    checked: Round | None = None


def line(case: str, block_bytes: int, engine: str, depth: int, rounds: Sequence[Turn]) -> Line:
    """Medians over the rounds."""
    blocks = [turn.blocks for turn in rounds if turn.blocks is not None]
    to_blocks = _ratios(rounds, [turn.blocks for turn in rounds])
    slot_part = block_bytes / slot_bytes_of(block_bytes)
    to_slots = _ratios(rounds, [turn.slots for turn in rounds])
    return Line(
        case=case,
        block_bytes=block_bytes,
        engine=engine,
        depth=depth,
        gb_per_s=round(statistics.median(turn.ours.gb_per_s for turn in rounds), 3),
        cpu_s_per_gb=round(statistics.median(turn.ours.cpu_s_per_gb for turn in rounds), 3),
        fio_gb_per_s=_median([taken.gb_per_s for taken in blocks]),
        fio_cpu_s_per_gb=_median([taken.cpu_s_per_gb for taken in blocks]),
        ratio_to_fio=_median(to_blocks),
        ratio_to_fio_spread=(
            (round(min(to_blocks), 3), round(max(to_blocks), 3)) if to_blocks else None
        ),
        ratio_to_fio_slots=_median([ratio / slot_part for ratio in to_slots]),
        ratio_to_fio_checked=_median(_ratios(rounds, [turn.checked for turn in rounds])),
        rounds=len(rounds),
    )


def _ratios(rounds: Sequence[Turn], others: Sequence[Round | None]) -> list[float]:
    """Of bytes a second, ours to the others', where there are any."""
    return [
        turn.ours.gb_per_s / other.gb_per_s
        for turn, other in zip(rounds, others, strict=True)
        if other is not None
    ]


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def table(lines: Sequence[Line]) -> str:
    """The report for people."""
    head = ["case", "block", "engine", "depth", "GB/s", "CPU s/GB", "fio GB/s", "fio CPU s/GB"]
    rows = [[*head, "x fio", "spread", "x fio slots", "x fio checked"]]
    for item in lines:
        row = [item.case, f"{item.block_bytes >> 10} KiB", item.engine, str(item.depth)]
        for value in (
            *(item.gb_per_s, item.cpu_s_per_gb, item.fio_gb_per_s, item.fio_cpu_s_per_gb),
            item.ratio_to_fio,
        ):
            row.append("" if value is None else f"{value:.2f}")
        spread = item.ratio_to_fio_spread
        row.append("" if spread is None else f"{spread[0]:.2f}-{spread[1]:.2f}")
        others = (item.ratio_to_fio_slots, item.ratio_to_fio_checked)
        rows.append([*row, *("" if other is None else f"{other:.2f}" for other in others)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([shown[0], "-" * len(shown[0]), *shown[1:]])
