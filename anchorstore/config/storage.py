"""Configuration of what the daemon holds and for how long: tiers, lease, deadlines, namespaces.

Every key states its meaning and when to change it (anchorstore/config/fields.py).  Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anchorstore.config import values
from anchorstore.config.eviction import (
    high_watermark_setting,
    low_watermark_setting,
    policy_setting,
    share_setting,
    ttl_setting,
)
from anchorstore.config.fields import setting
from anchorstore.config.hbm import HbmConfig
from anchorstore.config.nvme import NvmeConfig
from anchorstore.units import GIB, MIB

LINEAGE_ANY = 255
SEGMENT_ALIGN_BYTES = 2 * MIB  # a huge page on x86-64 and aarch64


@dataclasses.dataclass(frozen=True, slots=True)
class DramConfig:
    """The pool in this host's memory."""

    capacity_bytes: int = setting(
        values.size("0B", bounds="at least 2 of tiers.dram.segment: 8MiB where that is auto"),
        "4GiB",
        "Memory of the pool, taken from the host at start and never given back.",
        "First: what the host can spare.  `anchorstore size` says what a model needs.",
    )
    segment_bytes: int | None = setting(
        values.size_or_auto("64KiB", "64GiB"),
        "auto",
        "Region that a client maps once and that holds one domain's blocks of one size.  auto = "
        "capacity / 64 within 4MiB to 1GiB, in steps of 2MiB.",
        "Smaller with many domains or layouts in a small pool; never below the largest block.",
    )
    huge_pages: str = setting(
        values.choice("auto", "never", "require"),
        "auto",
        "Whether the pool lies on 2 MiB pages: where the host has enough reserved, never, or "
        "refuse to start without them.",
        '"require" on hosts that reserve them (vm.nr_hugepages): a device moves a block faster to '
        "and from memory in one piece.",
    )
    direct_reads: bool = setting(
        values.switch(),
        True,
        "Whether engines of this host find blocks in shared memory, without a call (get).  Costs "
        "some 10 bytes a block.",
        "false where every read of a block must show in the daemon's counts.",
    )
    prefault: bool = setting(
        values.switch(),
        True,
        "Touches the whole pool at start, so that no put pays for a page fault and a host without "
        "the memory is found at start.  readyz answers 503 until it is done.",
        "false for a quick start with a large pool on a test machine.",
    )
    anchor_share: float = share_setting(
        0.25,
        "anchor blocks",
        "By the model: anchors / (anchors + kv) of `anchorstore size`, and some room.",
    )
    kv_share: float = share_setting(
        0.75,
        "kv blocks",
        "Together with tiers.dram.anchor_share; the shares may sum to more than 1.",
    )
    state_share: float = share_setting(
        0.25,
        "exact checkpoints",
        "When engines store checkpoints: each is as large as hundreds of pages of anchors.",
    )
    high_watermark: float = high_watermark_setting(0.95, "Lower where puts come in bursts.")
    low_watermark: float = low_watermark_setting(0.9)
    mirror_engines: bool = setting(
        values.switch(),
        True,
        "Whether pages that no engine holds in its own cache any more leave memory first, once "
        "nvme has them; they are written there soon.  Engines tell (`Events`); each page takes 9 "
        "bytes more.  Without nvme this changes nothing.",
        "Off where engines should not steer each other's pages.",
    )
    pin_share: float = setting(
        values.fraction(),
        0.25,
        "Largest part of the pool that pages pinned by engines may take together.",
        "Seldom.",
    )
    policy: str = policy_setting()
    ttl_seconds: float = ttl_setting()

    @property
    def pool_segment_bytes(self) -> int:
        """Bytes of a segment, "auto" worked out."""
        if self.segment_bytes is not None:
            return self.segment_bytes
        wanted = min(max(self.capacity_bytes // 64, 4 * MIB), GIB)
        return wanted // SEGMENT_ALIGN_BYTES * SEGMENT_ALIGN_BYTES

    @property
    def pool_segments(self) -> int:
        """Whole segments in the pool."""
        return self.capacity_bytes // self.pool_segment_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class TiersConfig:
    """Media that hold blocks."""

    dram: DramConfig = dataclasses.field(default_factory=DramConfig)
    nvme: NvmeConfig = dataclasses.field(default_factory=NvmeConfig)
    hbm: HbmConfig = dataclasses.field(default_factory=HbmConfig)


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How long rights last."""

    read_ttl_seconds: float = setting(
        values.duration("100ms", "1h"),
        "10s",
        "A lookup's blocks stay where they are for this long; a client may renew.",
        "Longer where replays queue before they copy; a crashed reader holds its blocks this long.",
    )
    write_ttl_seconds: float = setting(
        values.duration("100ms", "1h"),
        "10s",
        "A reservation ends unless it is sealed within this time.",
        "Longer for slow remote writers.",
    )
    session_ttl_seconds: float = setting(
        values.duration("1s", "24h"),
        "30s",
        "A session without a connection ends after this time, so a session id handed to another "
        "process must be used within it.",
        "Longer where workers start slowly after their scheduler.",
    )
    engine_ttl_seconds: float = setting(
        values.duration("1s", "24h"),
        "60s",
        "What an engine has told of its own cache, and its pins, ends when it has told nothing for "
        "this long.  Engines say a word every third of it.",
        "Seldom: an engine whose connections close is forgotten at once.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class DeadlinesConfig:
    """How long the daemon waits for others."""

    handshake_seconds: float = setting(
        values.duration("100ms", "10m"),
        "5s",
        "A new connection must attach to a session, join one, or make an operator's call within "
        "this time (the TLS handshake included).",
        "Seldom.",
    )
    frame_seconds: float = setting(
        values.duration("100ms", "1h"),
        "30s",
        "A frame that has begun must have arrived within this time, its payload included.",
        "Longer for slow networks.",
    )
    idle_write_seconds: float = setting(
        values.duration("100ms", "1h"),
        "10s",
        "A peer that reads none of its answers for this long is cut off.",
        "Longer for engines that stop for long (debuggers).",
    )
    keepalive_seconds: float = setting(
        values.duration("1s", "2h"),
        "15s",
        "Silence after which a remote connection is probed; three probes without an answer end it.",
        "Shorter where hosts vanish without a word.",
    )
    grpc_seconds: float = setting(
        values.duration("100ms", "1h"),
        "30s",
        "A gRPC call is given up after this time, whatever its caller's deadline.",
        "Longer for `check --checksums` over gRPC on a large pool.",
    )
    lookup_wait_seconds: float = setting(
        values.duration("1ms", "1m"),
        "5s",
        "A lookup waits at most this long for blocks to come from nvme, whatever its caller asks; "
        "then it is answered by what memory holds.",
        "Seldom: callers say how long they care to wait.",
    )
    http_seconds: float = setting(
        values.duration("100ms", "1m"),
        "5s",
        "A request to listen.http must have arrived, and its answer left, within this time.",
        "Seldom.",
    )
    housekeeping_seconds: float = setting(
        values.duration("10ms", "10s"),
        "250ms",
        "Longest pause between two rounds of expiry and eviction ahead of need.",
        "Seldom.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceRule:
    """What one domain's model may use; what a rule leaves out is as for all."""

    domain: str
    model: str
    quota_bytes: int | None = None
    max_lineage: int | None = None
    nvme_quota_bytes: int | None = None
    reserve_bytes: int | None = None
    nvme_reserve_bytes: int | None = None


_RULE_KINDS: Mapping[str, tuple[str, values.Kind]] = {
    "domain": ("domain", values.text()),
    "model": ("model", values.text()),
    "quota": ("quota_bytes", values.size("0B")),
    "nvme_quota": ("nvme_quota_bytes", values.size("0B")),
    "reserve": ("reserve_bytes", values.size("0B")),
    "nvme_reserve": ("nvme_reserve_bytes", values.size("0B")),
    "max_lineage": ("max_lineage", values.count(0, LINEAGE_ANY)),
}


def _parse_rule(entry: object) -> NamespaceRule:
    if not isinstance(entry, dict):
        raise ValueError(f"is {entry!r}, must be a table with {', '.join(_RULE_KINDS)}")
    found = {}
    for key, value in entry.items():
        if key not in _RULE_KINDS:
            known = ", ".join(_RULE_KINDS)
            raise ValueError(f"has the unknown key {key!r}; a rule has {known}")
        attribute, kind = _RULE_KINDS[key]
        try:
            found[attribute] = kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    for key in ("domain", "model"):
        if key not in found:
            raise ValueError(f"lacks {key}: {entry!r}")
    return NamespaceRule(**found)


def _parse_rules(value: object) -> tuple[NamespaceRule, ...]:
    if not isinstance(value, list):
        raise ValueError(f"is {value!r}, must be a list of tables")
    rules = []
    for number, entry in enumerate(value, 1):
        try:
            rules.append(_parse_rule(entry))
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from error
    return tuple(rules)


def _show_rules(rules: tuple[NamespaceRule, ...]) -> str:
    shown = []
    for rule in rules:
        pairs = [
            f"{key} = {kind.show(getattr(rule, attribute))}"
            for key, (attribute, kind) in _RULE_KINDS.items()
            if getattr(rule, attribute) is not None
        ]
        shown.append(f"{{ {', '.join(pairs)} }}")
    return f"[{', '.join(shown)}]"


def _read_rules(written: str) -> object:
    raise ValueError(f"is {written!r}: rules can stand in a file alone")


RULES = values.Kind("tables", "", _parse_rules, _show_rules, _read_rules)


@dataclasses.dataclass(frozen=True, slots=True)
class NamespacesConfig:
    """What a namespace may use."""

    max_lineage: int = setting(
        values.count(0, LINEAGE_ANY),
        16,
        "Deepest lineage that a namespace stores: 0 = exact blocks alone, 255 = any.",
        "0 where replayed states must never feed later pages.",
    )
    quota_bytes: int = setting(
        values.size("0B"),
        "0B",
        "Bytes of slots in memory that one namespace may fill, its own oldest pages going first; "
        "0B = the pool is the limit.",
        "When one model's traffic must not evict another's.",
    )
    nvme_quota_bytes: int = setting(
        values.size("0B"),
        "0B",
        "The same of the nvme tier's slots; 0B = the devices are the limit.",
        "As namespaces.quota.",
    )
    rules: tuple[NamespaceRule, ...] = setting(
        RULES,
        [],
        "Exceptions by domain and model: [[namespaces.rules]] with domain, model and quota, "
        "reserve (bytes that others never evict), nvme_quota, nvme_reserve, max_lineage or several "
        "of them.",
        "For the models that matter most, or least.",
    )

    def _rules_of(self, attribute: str) -> dict[tuple[str, str], int]:
        """By (domain, model), what rules set of one thing."""
        found = {(rule.domain, rule.model): getattr(rule, attribute) for rule in self.rules}
        return {key: value for key, value in found.items() if value is not None}

    def quotas(self) -> dict[tuple[str, str], int]:
        """Quota in bytes by (domain, model), where a rule sets one; 0 = none."""
        return self._rules_of("quota_bytes")

    def nvme_quotas(self) -> dict[tuple[str, str], int]:
        """The same for the nvme tier."""
        return self._rules_of("nvme_quota_bytes")

    def reserves(self) -> dict[tuple[str, str], int]:
        """Bytes in memory that others never evict, by (domain, model), where a rule sets them."""
        return self._rules_of("reserve_bytes")

    def nvme_reserves(self) -> dict[tuple[str, str], int]:
        """The same for the nvme tier."""
        return self._rules_of("nvme_reserve_bytes")

    def max_lineages(self) -> dict[tuple[str, str], int]:
        """Deepest lineage stored by (domain, model), where a rule sets one."""
        return self._rules_of("max_lineage")
