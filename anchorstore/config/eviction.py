"""What the tiers' sections share: who may take how much, when pages go, in which order.  Pure."""

from __future__ import annotations

from typing import Any

from anchorstore.config import values
from anchorstore.config.fields import setting

POLICIES = (*("lru", "lfu", "slru", "priority", "fifo", "flop-aware", "segment-length", "ttl"),)
"""Names of anchorstore.server.core.policies.POLICIES."""

ADMISSIONS = ("always", "second-sight", "size")
"""Names of anchorstore.server.core.admission.ADMISSIONS."""


def policy_setting() -> Any:
    """The key `policy` of a tier."""
    return setting(
        values.choice(*POLICIES),
        "lru",
        "Which pages go first, leaves before the pages that they continue: used least recently "
        "(lru), least often (lfu), once only (slru), of the lowest priority, come first (fifo), "
        "cheapest to compute again for their bytes (flop-aware; the last tier's is tuned by its "
        "first requests), at the end of short private prefixes (segment-length), or sealed longer "
        "than `ttl` ago.",
        "`python -m benchmarks.trace` compares them on a trace of your own.",
    )


def ttl_setting() -> Any:
    """The key `ttl` of a tier."""
    return setting(
        values.duration("1s", "8760h"),
        "1h",
        'Age from which pages go first where `policy` is "ttl".',
        "By how long conversations pause.",
    )


def share_setting(default: float, what: str, when: str) -> Any:
    """The key of a component's share of a tier."""
    return setting(
        values.fraction(),
        default,
        f"Largest part of the tier's segments that {what} may take (at least one segment).",
        when,
    )


def high_watermark_setting(default: float, when: str) -> Any:
    """The key `high_watermark` of a tier."""
    return setting(
        values.fraction(),
        default,
        "Part of a component's capacity above which blocks are evicted from the tier ahead of "
        "need.",
        when,
    )


def low_watermark_setting(default: float) -> Any:
    """The key `low_watermark` of a tier."""
    return setting(
        values.fraction(),
        default,
        "Part of a component's capacity at which such an eviction stops.",
        "Together with high_watermark.",
    )
