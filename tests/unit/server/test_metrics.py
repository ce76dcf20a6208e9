"""Goal: what Prometheus reads is the daemon's state, in base units, and nothing it must not show.
Method: a registry of its own, statuses made by hand, samples read back by name and labels.
"""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client.parser
import pytest
from prometheus_client import CollectorRegistry

from anchorstore.config import load, parse_override
from anchorstore.server.counters import COUNTERS
from anchorstore.server.metrics import LIMIT_SECTIONS, Metrics, component_name
from anchorstore.wire.v1 import admin_pb2, store_pb2
from tests.tidy.checkout import ROOT

CORE = ROOT / "anchorstore" / "server" / "core"
LABELS = {
    "tier", "component", "outcome", "reason", "carrier", "method", "limit", "lineage", "event",
    "version", "le", "device", "direction", "age", "kind",
}  # fmt: skip


def status() -> admin_pb2.StatusResponse:
    return admin_pb2.StatusResponse(
        version="1.2.3",
        uptime_ms=1500,
        sessions=2,
        pages=7,
        tiers=[
            admin_pb2.TierStatus(
                name="dram",
                capacity_bytes=1000,
                used_bytes=10,
                segments=4,
                segments_free=3,
                huge_pages=True,
                components=[
                    admin_pb2.ComponentStatus(
                        component=store_pb2.COMPONENT_ANCHOR, used_bytes=10, blocks=5
                    )
                ],
            ),
            admin_pb2.TierStatus(
                name="nvme",
                devices=[
                    admin_pb2.DeviceStatus(
                        path="/mnt/nvme0", state="read-only", bytes_read=5, bytes_written=6
                    )
                ],
            ),
        ],
        namespaces=[
            admin_pb2.NamespaceStatus(domain="team-a", model="qwen", enabled=True),
            admin_pb2.NamespaceStatus(domain="team-a", model="olmo", enabled=False),
        ],
        counters={
            "lookups_hit": 3,
            "blocks_declined_quota": 4,
            "hits_lineage_2": 1,
            "staging_used_bytes": 8,
            "pages_left_dram_age_60": 3,
            "of_tomorrow": 9,
        },
    )


class Mover:
    """Counts as the mover's."""

    queued, queued_bytes, bytes_copied, blocks_copied = 4, 1, 2, 3


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    sets = ["lease.read_ttl=1500ms", "limits.sessions=7", "tiers.dram.capacity=8MiB"]
    config = load(None, {}, [parse_override(item) for item in sets]).config
    metrics.add_store(status, config)
    metrics.add_mover(Mover())
    metrics.call_ended("lookup", "ok", 0.0002)
    metrics.call_ended("lookup", "UnknownSession", 0.0002)
    metrics.call_ended("reserve", "ok", 1.0)
    metrics.connection_opened("unix")
    metrics.connection_refused("tcp", "limit")
    metrics.set_ready(True)
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("build_info", {"version": "1.2.3"}, 1),
        ("uptime_seconds", {}, 1.5),
        ("sessions", {}, 2),
        ("pages", {}, 7),
        ("namespaces", {}, 2),
        ("namespaces_disabled", {}, 1),
        ("tier_capacity_bytes", {"tier": "dram"}, 1000),
        ("tier_huge_pages", {"tier": "dram"}, 1),
        ("component_blocks", {"tier": "dram", "component": "anchor"}, 5),
        ("lookups_total", {"outcome": "hit"}, 3),
        ("lookups_total", {"outcome": "margin"}, 0),
        ("blocks_declined_total", {"reason": "quota"}, 4),
        ("lookup_hits_by_lineage_total", {"lineage": "2"}, 1),
        ("core_events_total", {"event": "of_tomorrow"}, 9),
        ("core_events_total", {"event": "lookups_hit"}, None),
        ("staging_used_bytes", {}, 8),
        ("limit_seconds", {"limit": "lease.read_ttl"}, 1.5),
        ("limit", {"limit": "limits.sessions"}, 7),
        ("limit", {"limit": "limits.sessions_per_domain"}, 3),
        ("limit", {"limit": "limits.leased_blocks"}, 2**22),
        ("limit_bytes", {"limit": "tiers.dram.segment"}, 4 * 2**20),
        ("limit_ratio", {"limit": "tiers.dram.high_watermark"}, 0.95),
        ("mover_copied_bytes_total", {}, 2),
        ("calls_total", {"method": "lookup", "outcome": "ok"}, 1),
        ("calls_total", {"method": "lookup", "outcome": "UnknownSession"}, 1),
        ("call_seconds_count", {"method": "lookup"}, 2),
        ("call_seconds_bucket", {"method": "lookup", "le": "0.00025"}, 2),
        ("call_seconds_bucket", {"method": "lookup", "le": "0.0001"}, 0),
        ("call_seconds_count", {"method": "seal"}, 0),
        ("call_seconds_count", {"method": "reserve"}, None),
        ("connections", {"carrier": "unix"}, 1),
        ("connections_refused_total", {"carrier": "tcp", "reason": "limit"}, 1),
        ("ready", {}, 1),
        ("device_state", {"device": "/mnt/nvme0"}, 1),
        ("device_bytes_total", {"device": "/mnt/nvme0", "direction": "write"}, 6),
        ("device_bytes_total", {"device": "/mnt/nvme0", "direction": "read"}, 5),
        ("pages_left_total", {"tier": "nvme", "reason": "room"}, 0),
        ("pages_left_by_age_total", {"tier": "dram", "age": "60"}, 3),
        ("limit_bytes", {"limit": "tiers.nvme.segment"}, 4 * 2**20),
    ],
)
def test_metric_of_the_state_has_its_value(
    name: str, labels: dict[str, str], value: float | None, registry: CollectorRegistry
) -> None:
    assert registry.get_sample_value(f"anchorstore_{name}", labels) == value


def test_metrics_carry_no_label_beyond_the_bounded_ones(registry: CollectorRegistry) -> None:
    for family in registry.collect():
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, sample
            assert not {"team-a", "qwen", "olmo"} & set(sample.labels.values()), sample


def test_exposition_parses_and_covers_every_limit() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    config = load(None, {}).config
    metrics.add_store(admin_pb2.StatusResponse, config)
    text = metrics.exposition().decode()
    families = prometheus_client.parser.text_string_to_metric_families(text)
    limits = {s.labels["limit"] for f in families for s in f.samples if "limit" in s.labels}
    for key in ("limits.staging_total", "lease.session_ttl", "deadlines.http", "node.drain"):
        assert key in limits
    assert {limit.rpartition(".")[0] for limit in limits} == set(LIMIT_SECTIONS)


def test_counters_of_the_core_have_their_metric() -> None:
    """Names written out in the core; those made from an enum are covered by the table."""
    placed = {key for spec in COUNTERS for key in spec.samples}
    text = "".join(path.read_text() for path in Path(CORE).glob("*.py"))
    written = set(re.findall(r'counters\["(\w+)"\]', text))
    assert len(written) > 5, "the core counts in another way now: mend this test"
    assert written <= placed, written - placed


@pytest.mark.parametrize(("number", "name"), [(1, "anchor"), (2, "kv"), (3, "state"), (9, "9")])
def test_component_name_is_the_word_of_the_schema(number: int, name: str) -> None:
    assert component_name(number) == name
