"""The report for people; the document it is made from is what --json prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEFT_ALIGNED = 2
SHOWN = ("cache", "connector", "anchorstore", "preempt")


def aligned(rows: Sequence[Sequence[str]], left: int = LEFT_ALIGNED) -> str:
    """Rows as a table; the first is its head, the first `left` columns are words."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def told(counter: str) -> bool:
    """Whether people want to see a counter; --json has all that moved."""
    return any(word in counter for word in SHOWN) and not counter.startswith("vllm:request_")


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def ratio(found: Mapping[str, Any] | None) -> tuple[str, str]:
    """A ratio and its interval."""
    if found is None:
        return "", ""
    ends = found["interval_95"]
    return f"{found['median']:.3f}", "-" if ends is None else f"{ends[0]:.3f} .. {ends[1]:.3f}"


def _line(depth: str, variant: str, line: Mapping[str, Any]) -> list[str]:
    reused, steps = line["reused_tokens"], line["decode_step_ms"]
    return [
        depth,
        variant,
        str(line["requests"]),
        "not told" if reused is None else str(reused),
        str(line["ideal_tokens"]),
        share(line["of_ideal"]),
        f"{line['ttft_ms']['p50']:.1f}",
        f"{line['ttft_ms']['p90']:.1f}",
        *ratio(line.get("ttft_ratio")),
        "-" if steps is None else f"{steps['p50']:.2f}",
        *ratio(line.get("decode_step_ratio")),
    ]


def depth_table(depths: Sequence[Mapping[str, Any]]) -> str:
    """Reuse and times by depth, a line a variant; ratios are to the first variant."""
    head = ["shared", "variant", "requests", "reused", "ideal", "of ideal", "TTFT p50", "p90 ms"]
    head += ["x first", "95 %", "step ms", "x first", "95 %"]
    rows = [head]
    for part in depths:
        for variant, line in part["variants"].items():
            if line["requests"]:
                rows.append(_line(part["depth"], variant, line))
    return aligned(rows)


def quality_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Accuracy and bits by exam and variant; "kept" is against the exact answers."""
    rows = [["exam", "variant", "questions", "of ideal", "accuracy", "kept", "bits", "of exact"]]
    for line in lines:
        cells = [line["exam"], line["variant"], str(line["questions"]), share(line["of_ideal"])]
        for name in ("accuracy", "accuracy_kept", "bits", "bits_to_exact"):
            value = line[name]
            cells.append("-" if value is None else f"{value:.4f}")
        rows.append(cells)
    return aligned(rows)


def render(document: Mapping[str, Any]) -> str:
    """The whole report."""
    lines = []
    if "trace" in document:
        trace = document["trace"]
        lines.append(
            f"trace {trace['kind']}, seed {trace['seed']}: {trace['requests']} requests of up to "
            f"{trace['context_tokens']} tokens; ideal = pages of {trace['page_tokens']}, "
            f"W = {trace['margin_tokens']}"
        )
        for variant, seconds in trace["prefill_1024_seconds"].items():
            lines.append(f"{variant}: 1024 new tokens take {seconds:.3f} s")
        lines += ["", depth_table(document["depths"])]
        for variant, counters in document["counters"].items():
            lines += ["", f"{variant}: counters that moved"]
            lines += [f"  {name} {value:g}" for name, value in counters.items() if told(name)]
    else:
        lines.append(quality_table(document["quality"]))
    return "\n".join(lines)
