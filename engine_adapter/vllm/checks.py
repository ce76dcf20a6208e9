"""What cannot work is refused at start, with the reason.  Pure.

The facts come from vLLM's configuration (connector.py); this file says which of them do not go
together with replay, and since when vLLM's inner interfaces are the ones that the adapter uses.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from anchorstore.errors import ConfigError, ModelError

CONNECTOR = "AnchorStoreConnector"
VERSION_FIRST = (0, 32)
VERSION_STOP = (0, 33)
HASHES = ("sha256", "sha256_cbor")


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What vLLM was told.

    Attributes:
        speculative_method: "" without speculative decoding.
        pipeline_parallel, context_parallel: sizes, 1 for none.
        expert_ranks: data-parallel ranks that share a model's experts, 1 for none.
        hash_algorithm: of its prefix cache.
        cache_dtype: of keys and values; "auto" is the model's.
        has_prefix_caching: whether its own prefix cache is on.
        attention_groups: groups of full-attention layers in its cache.
        other_groups: kinds of groups that are neither full attention nor linear.
        is_sequence_parallel: whether the residual stream is cut over the workers.
        load_format: how the weights are read.
    """

    speculative_method: str
    pipeline_parallel: int
    context_parallel: int
    hash_algorithm: str
    cache_dtype: str
    has_prefix_caching: bool
    attention_groups: int
    other_groups: tuple[str, ...]
    is_sequence_parallel: bool
    load_format: str
    expert_ranks: int = 1


def refusal(facts: Facts) -> str:
    """Why the adapter cannot work here; "" where it can."""
    if facts.speculative_method:
        return f"speculative decoding ({facts.speculative_method}) rolls states back; turn it off"
    if facts.pipeline_parallel > 1:
        return f"pipeline parallel size is {facts.pipeline_parallel}, must be 1"
    if facts.context_parallel > 1:
        return f"context parallel size is {facts.context_parallel}, must be 1"
    if facts.expert_ranks > 1:
        return (
            f"data parallel size is {facts.expert_ranks}: ranks that share experts go in step, "
            "which a replay on one of them would break; must be 1"
        )
    if not facts.has_prefix_caching:
        return "prefix caching is off; leave it on (--enable-prefix-caching)"
    if facts.hash_algorithm not in HASHES:
        return (
            f"prefix-caching hash is {facts.hash_algorithm!r}, which can collide; "
            f"use one of {', '.join(HASHES)} (--prefix-caching-hash-algo)"
        )
    if facts.cache_dtype != "auto":
        return f"kv-cache-dtype is {facts.cache_dtype!r}, must be auto"
    if facts.attention_groups != 1:
        return f"vLLM keeps {facts.attention_groups} groups of full-attention layers, must be 1"
    if facts.other_groups:
        return f"the model has {facts.other_groups[0]} layers, which are not supported"
    if facts.is_sequence_parallel:
        return "sequence parallelism cuts the residual stream; turn it off"
    if facts.load_format == "dummy":
        return "load-format is 'dummy': random weights are not those that the digest names"
    return ""


def check(facts: Facts) -> None:
    """ModelError with the reason where the adapter cannot work."""
    reason = refusal(facts)
    if reason:
        raise ModelError(f"vllm: {reason}")


def is_ours(connector: str | None, extra: Mapping[str, Any]) -> bool:
    """Whether vLLM's connector is this one.  `extra`: its kv_connector_extra_config.

    ConfigError where this one is inside of it: vLLM's MultiConnector asks several in turn.
    """
    if connector == CONNECTOR:
        return True
    if _contains(extra):
        raise ConfigError(
            f"vllm: {CONNECTOR} inside of {connector} is not supported: it taps the model and "
            "decides for the whole engine where a prefix resumes; name it as the kv_connector, "
            "alone"
        )
    return False


def _contains(extra: Mapping[str, Any]) -> bool:
    """Whether this connector is among those that a connector's extra config lists."""
    return any(
        each.get("kv_connector") == CONNECTOR
        or _contains(each.get("kv_connector_extra_config", {}))
        for each in extra.get("connectors") or ()
    )


def version_refusal(version: str) -> str:
    """Why this release of vLLM is not supported; "" where it is."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if VERSION_FIRST <= found < VERSION_STOP:
        return ""
    first, stop = (".".join(map(str, each)) for each in (VERSION_FIRST, VERSION_STOP))
    return f"vLLM {version} is not supported: anchorstore knows {first} up to, not with, {stop}"
