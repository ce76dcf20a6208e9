"""Writes the generated tables of docs/operations.md: every configuration key, every metric.

    python scripts/operations.py            rewrite the page
    python scripts/operations.py --check    exit with 1 where the page is not current

The tables stand between marks in the page; everything else there is written by hand.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from prometheus_client import CollectorRegistry, Metric

from anchorstore.config import Config
from anchorstore.config.render import reference_markdown
from anchorstore.server.metrics import Metrics
from anchorstore.wire.v1 import admin_pb2, store_pb2

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "operations.md"
_SUFFIX = {"counter": "_total"}


class _Mover:
    """Counts of a mover that has done nothing."""

    queued = queued_bytes = bytes_copied = blocks_copied = 0


def metric_families() -> list[Metric]:
    """Every metric of ours, each with at least one sample where it has labels."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    status = admin_pb2.StatusResponse(
        tiers=[
            admin_pb2.TierStatus(
                name="dram",
                components=[admin_pb2.ComponentStatus(component=store_pb2.COMPONENT_KV)],
                devices=[admin_pb2.DeviceStatus(path="/mnt/nvme0", state="healthy")],
            )
        ],
        counters={"hits_lineage_0": 1, "another": 1},
    )
    metrics.add_store(lambda: status, Config())
    metrics.add_mover(_Mover())
    metrics.call_ended("lookup", "ok", 0.0)
    metrics.connection_opened("unix")
    metrics.connection_refused("unix", "limit")
    found = [family for family in registry.collect() if family.name.startswith("anchorstore_")]
    return sorted(found, key=lambda family: family.name)


def metric_names() -> list[str]:
    """Names as dashboards write them, without the histograms' suffixes."""
    return [family.name + _SUFFIX.get(family.type, "") for family in metric_families()]


def metrics_markdown() -> str:
    """The table of metrics."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family, name in zip(metric_families(), metric_names(), strict=True):
        assert family.samples, f"{name} has no sample to read its labels from"
        labels = ", ".join(sorted(set(family.samples[0].labels) - {"le"})) or "-"
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def renewed(page: str) -> str:
    """`page` with its tables as the code has them; ValueError where a mark is missing."""
    for name, table in (("config", reference_markdown()), ("metrics", metrics_markdown())):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found_begin, rest = page.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{PAGE.name}: lacks the marks {begin} and {end}")
        page = f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"
    return page


def main() -> int:
    """Renews the page, or says that it needs it."""
    parser = argparse.ArgumentParser(description="Tables of docs/operations.md")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if old")
    args = parser.parse_args()
    page = PAGE.read_text()
    fresh = renewed(page)
    if args.check:
        return int(page != fresh)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
