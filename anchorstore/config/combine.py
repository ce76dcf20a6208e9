"""Values that are right one by one and wrong together.  Pure.

Each problem names the keys, their values and the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from anchorstore.config.nvme import NvmeConfig
from anchorstore.config.schema import Config
from anchorstore.config.storage import SEGMENT_ALIGN_BYTES, DramConfig
from anchorstore.config.values import is_loopback, parse_address
from anchorstore.units import TIB, format_bytes

SEGMENTS_MIN = 2
SEGMENTS_MAX = 65_536
MEMORY_PAGE_BYTES = 4096
NVME_SEGMENTS_MIN = 2  # one, and about as much for the journal
NVME_SEGMENTS_MAX = 262_144
NVME_BYTES_MAX = 16 * TIB
HBM_SEGMENTS_MAX = 4096


def problems(config: Config) -> list[str]:
    """What keeps `config` from being started, a line each; empty where nothing does."""
    return [
        *_dram(config),
        *_nvme(config),
        *_hbm(config),
        *_listen(config),
        *_tls(config),
        *_limits(config),
        *_rules(config),
    ]


def _dram(config: Config) -> Iterator[str]:
    dram = config.tiers.dram
    segment, segments = dram.pool_segment_bytes, dram.pool_segments
    if segments < SEGMENTS_MIN:
        yield (
            f"tiers.dram.capacity is {format_bytes(dram.capacity_bytes)}, must be at least "
            f"{format_bytes(SEGMENTS_MIN * segment)}: {SEGMENTS_MIN} segments of "
            f"{format_bytes(segment)} (tiers.dram.segment)"
        )
    if segments > SEGMENTS_MAX:
        yield (
            f"tiers.dram.segment is {format_bytes(segment)}: {segments} segments in "
            f"{format_bytes(dram.capacity_bytes)}, limit {SEGMENTS_MAX}"
        )
    step = SEGMENT_ALIGN_BYTES if dram.huge_pages == "require" else MEMORY_PAGE_BYTES
    if segment % step:
        yield (
            f"tiers.dram.segment is {segment} bytes, must be a multiple of {format_bytes(step)} "
            f'with tiers.dram.huge_pages = "{dram.huge_pages}"'
        )
    yield from _marks("tiers.dram", dram)


def _nvme(config: Config) -> Iterator[str]:
    nvme = config.tiers.nvme
    segment = nvme.tier_segment_bytes
    yield from _repeated("tiers.nvme.devices", [device.path for device in nvme.devices])
    for device in nvme.devices:
        if device.capacity_bytes < NVME_SEGMENTS_MIN * segment:
            yield (
                f"tiers.nvme.devices: {device} must have at least "
                f"{format_bytes(NVME_SEGMENTS_MIN * segment)}: {NVME_SEGMENTS_MIN} segments of "
                f"{format_bytes(segment)} (tiers.nvme.segment)"
            )
    if nvme.capacity_bytes > NVME_BYTES_MAX:
        yield (
            f"tiers.nvme.devices have {format_bytes(nvme.capacity_bytes)} together, limit "
            f"{format_bytes(NVME_BYTES_MAX)} a daemon"
        )
    segments = nvme.capacity_bytes // segment
    if segments > NVME_SEGMENTS_MAX:
        yield (
            f"tiers.nvme.segment is {format_bytes(segment)}: {segments} segments in "
            f"{format_bytes(nvme.capacity_bytes)}, limit {NVME_SEGMENTS_MAX}"
        )
    if segment % MEMORY_PAGE_BYTES:
        yield (
            f"tiers.nvme.segment is {segment} bytes, must be a multiple of "
            f"{format_bytes(MEMORY_PAGE_BYTES)}"
        )
    if nvme.admission_least_bytes > nvme.admission_most_bytes:
        yield (
            f"tiers.nvme.admission_least is {format_bytes(nvme.admission_least_bytes)}, must not "
            f"exceed tiers.nvme.admission_most, {format_bytes(nvme.admission_most_bytes)}"
        )
    yield from _marks("tiers.nvme", nvme)


def _marks(section: str, tier: DramConfig | NvmeConfig) -> Iterator[str]:
    if tier.low_watermark >= tier.high_watermark:
        yield (
            f"{section}.low_watermark is {tier.low_watermark:g}, must be below "
            f"{section}.high_watermark, {tier.high_watermark:g}"
        )


def _repeated(key: str, names: Sequence[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        if name in seen:
            yield f"{key} names {name} twice"
        seen.add(name)


def _hbm(config: Config) -> Iterator[str]:
    hbm = config.tiers.hbm
    segment = hbm.tier_segment_bytes
    yield from _repeated("tiers.hbm.devices", [f"cuda:{each.ordinal}" for each in hbm.devices])
    for device in hbm.devices:
        segments = device.capacity_bytes // segment
        if not segments:
            yield (
                f"tiers.hbm.devices: {device} must have at least {format_bytes(segment)}: one "
                "segment (tiers.hbm.segment)"
            )
        if segments > HBM_SEGMENTS_MAX:
            yield (
                f"tiers.hbm.segment is {format_bytes(segment)}: {segments} segments in {device}, "
                f"limit {HBM_SEGMENTS_MAX}"
            )
    if segment % SEGMENT_ALIGN_BYTES:
        yield (
            f"tiers.hbm.segment is {segment} bytes, must be a multiple of "
            f"{format_bytes(SEGMENT_ALIGN_BYTES)}"
        )


def _listen(config: Config) -> Iterator[str]:
    listen = config.listen
    open_at = {
        key: parse_address(address)
        for key, address in (
            ("listen.tcp", listen.tcp),
            ("listen.grpc", listen.grpc),
            ("listen.http", listen.http),
        )
        if address
    }
    for (one, where), (other, there) in combinations(open_at.items(), 2):
        if where == there and where[1]:
            yield f"{one} and {other} are both {where[0]}:{where[1]}"
    missing = [
        key
        for key, value in (
            ("tls.certificate", config.tls.certificate),
            ("auth.token_file", config.auth.token_file),
        )
        if not value
    ]
    for key in ("listen.tcp", "listen.grpc"):
        host = open_at.get(key, ("localhost", 0))[0]
        if missing and not listen.insecure_bind and not is_loopback(host):
            yield (
                f"{key} binds {host}, beyond loopback, without {' and '.join(missing)}: set both, "
                "or listen.insecure_bind = true (--insecure-bind)"
            )


def _tls(config: Config) -> Iterator[str]:
    tls = config.tls
    if bool(tls.certificate) != bool(tls.key):
        has, lacks = ("certificate", "key") if tls.certificate else ("key", "certificate")
        yield f"tls.{has} is set without tls.{lacks}: TLS needs both"
    if tls.client_ca and not tls.certificate:
        yield "tls.client_ca is set without tls.certificate: there is no TLS to check clients in"


def _limits(config: Config) -> Iterator[str]:
    limits = config.limits
    if limits.staging_per_session_bytes > limits.staging_total_bytes:
        yield (
            "limits.staging_per_session is "
            f"{format_bytes(limits.staging_per_session_bytes)}, must not exceed "
            f"limits.staging_total, {format_bytes(limits.staging_total_bytes)}"
        )
    if limits.sessions > limits.connections:
        yield (
            f"limits.sessions is {limits.sessions}, must not exceed limits.connections, "
            f"{limits.connections}: a session ends with its last connection"
        )
    for key, share, whole in (
        ("sessions", limits.domain_sessions, limits.sessions),
        ("connections", limits.domain_connections, limits.connections),
    ):
        if share > whole:
            yield f"limits.{key}_per_domain is {share}, must not exceed limits.{key}, {whole}"
    for key, value in (
        ("reserved_pages", limits.reserved_pages),
        ("leased_blocks", limits.leased_blocks),
    ):
        if value < limits.pages_per_call:
            yield (
                f"limits.{key} is {value}, must be at least limits.pages_per_call, "
                f"{limits.pages_per_call}: one call may ask for as many"
            )


def _rules(config: Config) -> Iterator[str]:
    seen = set()
    for rule in config.namespaces.rules:
        if (rule.domain, rule.model) in seen:
            yield f"namespaces.rules has two rules for domain {rule.domain}, model {rule.model}"
        seen.add((rule.domain, rule.model))
    yield from _reserves(config, "", config.tiers.dram.capacity_bytes)
    if config.tiers.nvme.devices:
        yield from _reserves(config, "nvme_", config.tiers.nvme.capacity_bytes)


def _reserves(config: Config, tier: str, capacity_bytes: int) -> Iterator[str]:
    """Shares that can never be filled, or that leave nothing to anybody else."""
    total_bytes, quota_of_all = 0, getattr(config.namespaces, f"{tier}quota_bytes")
    for rule in config.namespaces.rules:
        reserve_bytes = getattr(rule, f"{tier}reserve_bytes") or 0
        quota_bytes = getattr(rule, f"{tier}quota_bytes")
        quota_bytes = quota_of_all if quota_bytes is None else quota_bytes
        total_bytes += reserve_bytes
        if 0 < quota_bytes < reserve_bytes:
            yield (
                f"namespaces.rules: {tier}reserve of domain {rule.domain}, model {rule.model} is "
                f"{format_bytes(reserve_bytes)}, must not exceed its {tier}quota, "
                f"{format_bytes(quota_bytes)}"
            )
    if total_bytes > capacity_bytes:
        yield (
            f"namespaces.rules: {tier}reserve sums to {format_bytes(total_bytes)}, must not exceed "
            f"the tier's {format_bytes(capacity_bytes)}"
        )
