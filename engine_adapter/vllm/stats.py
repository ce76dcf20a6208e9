"""Counts under vLLM's connector metrics: in its log, and at /metrics as anchorstore:*.

::

    Tally in each half --take--> AdapterStats --aggregate over workers and scheduler--> log, Prom
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from engine_adapter.vllm.tally import METRICS, together


class AdapterStats(KVConnectorStats):
    """Counts of one interval."""

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        return AdapterStats(together(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        return dict(sorted(self.data.items()))

    def is_empty(self) -> bool:
        return not self.data


class AdapterMetrics(KVConnectorPromMetrics):
    """Counters, one a metric of tally.py, with its label beside vLLM's own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        make = metric_types[Counter]
        self._counters = {
            name: make(
                name=f"anchorstore:{name}",
                documentation=words,
                labelnames=[*labelnames, label] if label else labelnames,
            )
            for name, (label, words) in METRICS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        own = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data.items():
            metric, _, label = name.partition("/")
            values = [*own, label] if label else own
            self._counters[metric].labels(*values).inc(count)
