"""What Prometheus sees of the daemon.

::

    core, tiers    --StatusResponse--> StatusCollector --+
    configuration  --every limit-----> LimitsCollector --+--> CollectorRegistry --> /metrics
    mover          --its counts------> MoverCollector ---+    (passed in)
    carriers       --as it happens---> Metrics ----------+

The state of the store is read when somebody scrapes, from the same StatusResponse that operators
get; only what has no state to read (calls, their times) is counted as it happens.  Base units.
Labels are few and bounded: tier, component, device, outcome, carrier, method ...; never a key, a
client, a domain or a model.  docs/operations.md lists every metric, and a test compares.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from anchorstore.config import Config
from anchorstore.config.schema import SETTINGS, value_of
from anchorstore.server.counters import (
    COUNTERS,
    GAUGES_AMONG_COUNTERS,
    HITS_BY_LINEAGE,
    LINEAGE_PREFIX,
    OTHER_COUNTERS,
    CounterSpec,
)
from anchorstore.wire.v1 import admin_pb2, store_pb2

PREFIX = "anchorstore_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMED_METHODS = ("lookup", "seal")

# A lookup takes tens of microseconds, a seal of many MiB tens of milliseconds.
SECONDS_BUCKETS = (
    25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

LIMIT_SECTIONS = (
    "tiers.dram", "tiers.nvme", "tiers.hbm", "lease", "limits", "deadlines", "namespaces", "node",
)  # fmt: skip
_LIMIT_UNITS = {"count": "", "fraction": "_ratio", "bytes": "_bytes", "seconds": "_seconds"}


@dataclasses.dataclass(frozen=True, slots=True)
class GaugeSpec:
    """A gauge read from a StatusResponse."""

    name: str
    text: str
    read: Callable[[admin_pb2.StatusResponse], float]


GAUGES = (
    GaugeSpec("uptime_seconds", "Seconds since the daemon's start.", lambda s: s.uptime_ms / 1e3),
    GaugeSpec("draining", "1 while the daemon takes no new work.", lambda s: s.draining),
    GaugeSpec("sessions", "Sessions open.", lambda s: s.sessions),
    GaugeSpec("leases", "Read leases held.", lambda s: s.leases),
    GaugeSpec("reservations", "Reservations open.", lambda s: s.reservations),
    GaugeSpec("pages", "Pages with at least one block.", lambda s: s.pages),
    GaugeSpec("index_bytes", "Memory of the index.", lambda s: s.index_bytes),
    GaugeSpec("namespaces", "Namespaces known.", lambda s: len(s.namespaces)),
    GaugeSpec(
        "namespaces_disabled",
        "Namespaces whose kill switch is on.",
        lambda s: sum(not space.enabled for space in s.namespaces),
    ),
)

TIER_GAUGES: Mapping[str, str] = {
    "capacity_bytes": "Memory of the tier.",
    "used_bytes": "Bytes of slots in use.",
    "segments": "Segments of the tier.",
    "segments_free": "Segments that belong to no domain.",
    "huge_pages": "1 where the tier lies on huge pages.",
}

DEVICE_STATES = ("healthy", "read-only", "offline")


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A metric of nvme devices; `samples` by direction, "" where it has none."""

    name: str
    text: str
    is_counter: bool
    samples: Mapping[str, Callable[[admin_pb2.DeviceStatus], float]]


def _both_ways(read: str, written: str) -> Mapping[str, Callable[[admin_pb2.DeviceStatus], float]]:
    return {"read": operator.attrgetter(read), "write": operator.attrgetter(written)}


DEVICE_METRICS = (
    DeviceSpec(
        "device_state",
        "What a device can do: 0 all, 1 read alone, 2 nothing.",
        False,
        {"": lambda device: DEVICE_STATES.index(device.state)},
    ),
    DeviceSpec(
        "device_stalled",
        "1 while a call of the device has not come back within tiers.nvme.deadline.",
        False,
        {"": operator.attrgetter("stalled")},
    ),
    DeviceSpec(
        "device_capacity_bytes",
        "Bytes of a device's segments.",
        False,
        {"": operator.attrgetter("capacity_bytes")},
    ),
    DeviceSpec(
        "device_queued_blocks",
        "Blocks that wait at a device or move.",
        False,
        _both_ways("reads_waiting", "writes_waiting"),
    ),
    DeviceSpec(
        "device_bytes",
        "Bytes of blocks moved.",
        True,
        _both_ways("bytes_read", "bytes_written"),
    ),
    DeviceSpec(
        "device_blocks",
        "Blocks moved.",
        True,
        _both_ways("blocks_read", "blocks_written"),
    ),
    DeviceSpec(
        "device_errors",
        "Calls that a device answered with an error.",
        True,
        _both_ways("read_errors", "write_errors"),
    ),
    DeviceSpec(
        "device_late_blocks",
        "Blocks given up before a device had begun them.",
        True,
        {"": operator.attrgetter("late_blocks")},
    ),
)

COMPONENT_GAUGES: Mapping[str, str] = {
    "capacity_bytes": "Most that the component may take of the tier.",
    "used_bytes": "Bytes of slots in use by the component.",
    "blocks": "Sealed blocks of the component.",
}


class StatusCollector(Collector):
    """Reads the store at every scrape.

    Args:
        status: gives the status that operators see; called in the scraper's thread.
    """

    def __init__(self, status: Callable[[], admin_pb2.StatusResponse]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are fixed, and registering must not ask the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        status = self._status()
        info = GaugeMetricFamily(f"{PREFIX}build_info", "Always 1.", labels=["version"])
        info.add_metric([status.version], 1)
        yield info
        for spec in GAUGES:
            yield GaugeMetricFamily(PREFIX + spec.name, spec.text, value=float(spec.read(status)))
        yield from self._tiers(status)
        yield from self._devices(status)
        yield from self._components(status)
        yield from self._counters(status.counters)

    @staticmethod
    def _tiers(status: admin_pb2.StatusResponse) -> Iterable[Metric]:
        for name, text in TIER_GAUGES.items():
            family = GaugeMetricFamily(f"{PREFIX}tier_{name}", text, labels=["tier"])
            for tier in status.tiers:
                family.add_metric([tier.name], float(getattr(tier, name)))
            yield family

    @staticmethod
    def _devices(status: admin_pb2.StatusResponse) -> Iterable[Metric]:
        devices = [device for tier in status.tiers for device in tier.devices]
        for spec in DEVICE_METRICS:
            labels = ["device"] if "" in spec.samples else ["device", "direction"]
            family = CounterMetricFamily if spec.is_counter else GaugeMetricFamily
            found = family(PREFIX + spec.name, spec.text, labels=labels)
            for device in devices:
                for direction, read in spec.samples.items():
                    values = [device.path, direction] if direction else [device.path]
                    found.add_metric(values, float(read(device)))
            yield found

    @staticmethod
    def _components(status: admin_pb2.StatusResponse) -> Iterable[Metric]:
        for name, text in COMPONENT_GAUGES.items():
            labels = ["tier", "component"]
            family = GaugeMetricFamily(f"{PREFIX}component_{name}", text, labels=labels)
            for tier in status.tiers:
                for component in tier.components:
                    label = component_name(component.component)
                    family.add_metric([tier.name, label], float(getattr(component, name)))
            yield family

    @staticmethod
    def _counters(counters: Mapping[str, int]) -> Iterable[Metric]:
        for name, text in GAUGES_AMONG_COUNTERS.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=float(counters.get(name, 0)))
        known = set(GAUGES_AMONG_COUNTERS)
        for spec in COUNTERS:
            family = _family(spec)
            for key, label_values in spec.samples.items():
                known.add(key)
                family.add_metric(list(label_values), float(counters.get(key, 0)))
            yield family
        lineages, rest = _family(HITS_BY_LINEAGE), _family(OTHER_COUNTERS)
        for key in sorted(set(counters) - known):
            family = lineages if key.startswith(LINEAGE_PREFIX) else rest
            family.add_metric([key.removeprefix(LINEAGE_PREFIX)], float(counters[key]))
        yield lineages
        yield rest


def _family(spec: CounterSpec) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + spec.name, spec.text, labels=list(spec.labels))


class LimitsCollector(Collector):
    """Every limit of the configuration, so that a dashboard can draw use against limit."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        worked_out = {
            "tiers.dram.segment": self._config.tiers.dram.pool_segment_bytes,
            "tiers.nvme.segment": self._config.tiers.nvme.tier_segment_bytes,
            "tiers.hbm.segment": self._config.tiers.hbm.tier_segment_bytes,
            "limits.sessions_per_domain": self._config.limits.domain_sessions,
            "limits.connections_per_domain": self._config.limits.domain_connections,
        }
        for unit, suffix in _LIMIT_UNITS.items():
            text = f"Configured limits ({unit}), by key of the configuration."
            family = GaugeMetricFamily(f"{PREFIX}limit{suffix}", text, labels=["limit"])
            for item in SETTINGS:
                value = worked_out.get(item.key, value_of(self._config, item))
                if item.section in LIMIT_SECTIONS and item.kind.unit == unit:
                    assert isinstance(value, (int, float)), (item.key, value)
                    family.add_metric([item.key], float(value))
            yield family


class MoverCounts(Protocol):
    """What the mover counts by itself."""

    queued: int
    queued_bytes: int
    bytes_copied: int
    blocks_copied: int


class MoverCollector(Collector):
    """Reads the mover's counts at every scrape."""

    def __init__(self, mover: MoverCounts) -> None:
        self._mover = mover

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        mover = self._mover
        yield GaugeMetricFamily(
            f"{PREFIX}mover_queued", "Seals being copied or waiting for it.", value=mover.queued
        )
        yield GaugeMetricFamily(
            f"{PREFIX}mover_queued_bytes", "Bytes waiting to be copied.", value=mover.queued_bytes
        )
        yield CounterMetricFamily(
            f"{PREFIX}mover_copied_bytes",
            "Bytes copied from staging into the pool.",
            value=mover.bytes_copied,
        )
        yield CounterMetricFamily(
            f"{PREFIX}mover_copied_blocks",
            "Blocks copied from staging into the pool.",
            value=mover.blocks_copied,
        )


class Metrics:
    """What the shell counts as it happens, and the exposition of everything in `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._calls = Counter(
            f"{PREFIX}calls",
            "Calls answered, by method and outcome: ok, or the error's name.",
            ["method", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}call_seconds",
            "Time from a call's arrival to its answer.",
            ["method"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._connections = Gauge(
            f"{PREFIX}connections", "Connections open.", ["carrier"], registry=registry
        )
        self._refused = Counter(
            f"{PREFIX}connections_refused",
            "Connections turned away or cut off.",
            ["carrier", "reason"],
            registry=registry,
        )
        self._ready = Gauge(f"{PREFIX}ready", "1 while readyz says yes.", registry=registry)
        self._prefaulted = Gauge(
            f"{PREFIX}prefaulted_bytes", "Bytes of the pool touched so far.", registry=registry
        )
        self._timed = {method: self._seconds.labels(method) for method in TIMED_METHODS}
        self._counted: dict[tuple[str, str], Counter] = {}
        ProcessCollector(registry=registry)

    def add_store(self, status: Callable[[], admin_pb2.StatusResponse], config: Config) -> None:
        """Exposes the store's state and the configured limits."""
        self.registry.register(StatusCollector(status))
        self.registry.register(LimitsCollector(config))

    def add_mover(self, mover: MoverCounts) -> None:
        """Exposes what the mover counts."""
        self.registry.register(MoverCollector(mover))

    def call_ended(self, method: str, outcome: str, seconds: float) -> None:
        """Counts a call: `method` in lower case, `outcome` "ok" or the name of the error."""
        child = self._counted.get((method, outcome))
        if child is None:
            child = self._counted[method, outcome] = self._calls.labels(method, outcome)
        child.inc()
        if method in self._timed:
            self._timed[method].observe(seconds)

    def connection_opened(self, carrier: str) -> None:
        """Counts a connection in; `carrier` is unix, tcp, grpc or http."""
        self._connections.labels(carrier).inc()

    def connection_closed(self, carrier: str) -> None:
        """Counts a connection out."""
        self._connections.labels(carrier).dec()

    def connection_refused(self, carrier: str, reason: str) -> None:
        """Counts a connection turned away or cut off; `reason` is one of a fixed few words."""
        self._refused.labels(carrier, reason).inc()

    def set_ready(self, ready: bool) -> None:
        """Shows what readyz says."""
        self._ready.set(1 if ready else 0)

    def set_prefaulted(self, done_bytes: int) -> None:
        """Shows how far the prefault of the pool is."""
        self._prefaulted.set(done_bytes)

    def exposition(self) -> bytes:
        """Everything in the registry, in Prometheus' text format."""
        return generate_latest(self.registry)


def component_name(number: int) -> str:
    """The label of a component, e.g. "kv"; the number itself where it has no name."""
    try:
        return store_pb2.Component.Name(number).removeprefix("COMPONENT_").lower()
    except ValueError:
        return str(number)
