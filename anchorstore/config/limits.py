"""Configuration of the fixed pools: sessions, calls, rights, staging memory, threads.

Every key states its meaning and when to change it (anchorstore/config/fields.py).  Pure.
"""

from __future__ import annotations

import dataclasses

from anchorstore.config import values
from anchorstore.config.fields import setting


@dataclasses.dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Fixed pools: each is refused with a clear error when it is used up."""

    sessions: int = setting(
        values.count(1, 65_536),
        256,
        "Sessions open at once.",
        "More than this many engines on the host and beyond.",
    )
    sessions_per_domain: int | None = setting(
        values.count_or_auto(1, 65_536),
        "auto",
        "Sessions that one domain may have open at once.  auto = half of limits.sessions.",
        "As limits.sessions where the host serves one domain; lower where many share it.",
    )
    namespaces: int = setting(
        values.count(1, 65_535),
        1024,
        "Namespaces known at once (domain, model, weights, adapter, page size and salt).",
        "With many LoRA adapters or caller's salts.",
    )
    layouts_per_session: int = setting(
        values.count(1, 64),
        16,
        "Layouts that a session may name: one a component and shard.  An engine names up to nine.",
        "When one process reads every shard of a tensor-parallel engine.",
    )
    pages_per_call: int = setting(
        values.count(1, 131_072),
        16_384,
        "Pages in one Lookup or Reserve; 16384 pages of 64 tokens are a million tokens.",
        "For longer contexts or smaller pages.",
    )
    reservations_per_session: int = setting(
        values.count(1, 65_536),
        64,
        "Reservations open at once in a session.",
        "Engines that write more than this many requests at once.",
    )
    leases_per_session: int = setting(
        values.count(1, 1_048_576),
        1024,
        "Read leases held at once by a session.",
        "Engines that look up more requests than this within lease.read_ttl.",
    )
    reserved_pages: int = setting(
        values.count(1, 2**30),
        2**20,
        "Pages in open reservations, all sessions together; each takes some 50 bytes of the "
        "daemon's memory.",
        "Many engines that reserve long prompts at once.",
    )
    leased_blocks: int = setting(
        values.count(1, 2**30),
        2**22,
        "Blocks under read leases, all sessions together, counted once a need that names them; "
        "each takes some 10 bytes of the daemon's memory.",
        "Many engines that look up long prompts within lease.read_ttl.",
    )
    pins_per_session: int = setting(
        values.count(1, 1_048_576),
        4096,
        "Pages that a session's engine may pin in memory at once.",
        "Engines that serve more requests than this at once.",
    )
    staging_per_session_bytes: int = setting(
        values.size("1MiB", "1TiB"),
        "256MiB",
        "Memory in which a session writes blocks before they are sealed.",
        "Larger for longer runs in one seal; a client asks for what it wants, up to this.",
    )
    staging_total_bytes: int = setting(
        values.size("1MiB", "16TiB"),
        "2GiB",
        "Staging memory of all sessions together.  It comes on top of the pool.",
        "Number of writers times what each asks for.",
    )
    connections: int = setting(
        values.count(1, 65_536),
        1024,
        "Connections open at once, all carriers together.",
        "Engines times their processes.",
    )
    connections_per_domain: int | None = setting(
        values.count_or_auto(1, 65_536),
        "auto",
        "Connections that one domain may have open at once; operators' count to none.  auto = half "
        "of limits.connections.",
        "As limits.connections where the host serves one domain; lower where many share it.",
    )
    calls_per_connection: int = setting(
        values.count(1, 4096),
        32,
        "Calls of one connection in progress at once; further ones wait unread.",
        "Seldom.",
    )
    mover_threads: int = setting(
        values.count(1, 256),
        2,
        "Threads that copy blocks from staging into the pool.",
        "One thread copies several GB/s; more where many engines prefill at once.",
    )
    mover_queue: int = setting(
        values.count(1, 65_536),
        256,
        "Seals whose blocks wait to be copied, or are being copied; a further one is told to come "
        "back.",
        "Seldom: a longer queue is a longer wait.",
    )
    waiting_lookups: int = setting(
        values.count(1, 65_536),
        1024,
        "Lookups that wait for blocks from nvme at once, at most half of them one namespace's; a "
        "further one is answered by what memory holds.",
        "Many engines that look up cold prefixes at once.",
    )
    evict_step_blocks: int = setting(
        values.count(1, 1_048_576),
        32,
        "Blocks or pages evicted in one go before other calls are served again.",
        "Seldom.",
    )
    list_pages: int = setting(
        values.count(1, 100_000),
        1000,
        "Pages in one answer to `anchorstore ls`.",
        "Seldom.",
    )
    http_connections: int = setting(
        values.count(1, 4096),
        64,
        "Connections of listen.http open at once.",
        "Seldom.",
    )

    @property
    def domain_sessions(self) -> int:
        """Sessions of one domain, "auto" worked out."""
        if self.sessions_per_domain is not None:
            return self.sessions_per_domain
        return max(1, self.sessions // 2)

    @property
    def domain_connections(self) -> int:
        """Connections of one domain, "auto" worked out."""
        if self.connections_per_domain is not None:
            return self.connections_per_domain
        return max(1, self.connections // 2)
