"""What an endpoint's counters did during a run: /metrics before and after, parsed and subtracted.

::

    text -> parse -> {"name{label=value}": value}      after - before -> what moved

Counters only, with the sums and counts of histograms: a gauge has no difference worth telling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.engine.events import EndpointError, shortened

LABELS_LEFT_OUT = frozenset({"engine", "model_name"})
"""The same on every line of a vLLM server."""

PROCESS = ("http_", "process_", "python_")
"""Families that every web server has."""


def _families(text: str) -> Iterable[Metric]:
    """The families of a page; EndpointError where it is none."""
    try:
        return list(text_string_to_metric_families(text))
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        said = shortened(str(error)) or type(error).__name__
        raise EndpointError(f"/metrics cannot be read: {said}") from error


def parse(page: bytes) -> dict[str, float]:
    """Counters by name and labels; EndpointError for what is no page of metrics."""
    try:
        text = page.decode()
    except UnicodeDecodeError as error:
        raise EndpointError(f"/metrics is not UTF-8: {error.reason}") from error
    found: dict[str, float] = {}
    for family in _families(text):
        if family.name.startswith(PROCESS):
            continue
        for sample in family.samples:
            ending = sample.name.rpartition("_")[2]
            wanted = {"counter": {"total"}, "histogram": {"sum", "count"}}.get(family.type, set())
            if ending not in wanted:
                continue
            labels = ",".join(
                f"{name}={value}"
                for name, value in sorted(sample.labels.items())
                if name not in LABELS_LEFT_OUT
            )
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            found[key] = found.get(key, 0.0) + float(sample.value)
    return found


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Counters that grew, by how much; one that fell was started anew and counts from zero."""
    grown: dict[str, float] = {}
    for name, value in sorted(after.items()):
        earlier = before.get(name, 0.0)
        grown[name] = value - earlier if value >= earlier else value
    return {name: value for name, value in grown.items() if value > 0}
