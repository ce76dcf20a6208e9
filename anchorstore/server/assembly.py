"""From the configuration to what the daemon's parts are made with."""

from __future__ import annotations

import pathlib
import ssl

from anchorstore.config import Config
from anchorstore.errors import ConfigError
from anchorstore.layout import Component
from anchorstore.server.auth import Authenticator, read_admin_tokens, read_tokens
from anchorstore.server.core.policies import POLICIES, Lru, Policy, Ttl
from anchorstore.server.core.types import NvmeShape, StoreConfig
from anchorstore.server.limits import ServiceLimits, TcpLimits


def store_config(config: Config, nvme: NvmeShape | None = None) -> StoreConfig:
    """The core's part of the configuration; `nvme` as the devices turned out to be."""
    dram, limits, spaces = config.tiers.dram, config.limits, config.namespaces
    return StoreConfig(
        segments=dram.pool_segments,
        segment_bytes=dram.pool_segment_bytes,
        component_share={
            Component.ANCHOR: dram.anchor_share,
            Component.KV: dram.kv_share,
            Component.STATE: dram.state_share,
        },
        high_watermark=dram.high_watermark,
        low_watermark=dram.low_watermark,
        read_ttl_seconds=config.lease.read_ttl_seconds,
        write_ttl_seconds=config.lease.write_ttl_seconds,
        session_ttl_seconds=config.lease.session_ttl_seconds,
        max_sessions=limits.sessions,
        max_sessions_per_domain=limits.domain_sessions,
        max_namespaces=limits.namespaces,
        max_layouts=limits.layouts_per_session,
        max_pages=limits.pages_per_call,
        max_reservations=limits.reservations_per_session,
        max_leases=limits.leases_per_session,
        max_reserved_pages=limits.reserved_pages,
        max_leased_blocks=limits.leased_blocks,
        default_quota_bytes=spaces.quota_bytes,
        quotas=spaces.quotas(),
        reserves=spaces.reserves(),
        default_max_lineage=spaces.max_lineage,
        policy=policy_of(dram.policy, dram.ttl_seconds),
        mirrors_engines=dram.mirror_engines,
        engine_ttl_seconds=config.lease.engine_ttl_seconds,
        max_pins=limits.pins_per_session,
        pin_share=dram.pin_share,
        nvme=nvme,
    )


def policy_of(name: str, ttl_seconds: float) -> Policy | None:
    """The order in which a tier's pages go; None for the core's own, which is lru."""
    if name == Lru.name:
        return None
    return Ttl(ttl_seconds) if name == Ttl.name else POLICIES[name]()


def service_limits(config: Config) -> ServiceLimits:
    """The service's part of the configuration."""
    return ServiceLimits(
        pages_per_call=config.limits.pages_per_call,
        layouts_per_session=config.limits.layouts_per_session,
        read_ttl_seconds=config.lease.read_ttl_seconds,
        write_ttl_seconds=config.lease.write_ttl_seconds,
        session_ttl_seconds=config.lease.session_ttl_seconds,
        lookup_wait_seconds=config.deadlines.lookup_wait_seconds,
        waiting_lookups=config.limits.waiting_lookups,
        evict_step_blocks=config.limits.evict_step_blocks,
        max_lineages=config.namespaces.max_lineages(),
    )


def authenticator(config: Config) -> Authenticator:
    """Who is whom, by the configuration and its token files."""
    auth = config.auth
    tokens = read_tokens(pathlib.Path(auth.token_file)) if auth.token_file else []
    if auth.admin_token_file:
        tokens += read_admin_tokens(pathlib.Path(auth.admin_token_file))
    default = None if auth.deny_unknown_uids else auth.default_domain
    return Authenticator(auth.uids, default, tokens, auth.admin_uids)


def tcp_limits(config: Config) -> TcpLimits:
    """How long framed TCP waits for a peer."""
    deadlines = config.deadlines
    return TcpLimits(
        handshake_seconds=deadlines.handshake_seconds,
        frame_seconds=deadlines.frame_seconds,
        idle_write_seconds=deadlines.idle_write_seconds,
        keepalive_seconds=deadlines.keepalive_seconds,
    )


def tls_context(config: Config) -> ssl.SSLContext | None:
    """TLS of framed TCP; None where no certificate is configured."""
    tls = config.tls
    if not tls.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: cannot use {tls.certificate}, {tls.key}: {error}") from error
    return context
