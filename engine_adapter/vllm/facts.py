"""What vLLM's configuration says of the facts that decide whether the adapter can work (checks.py).

Asked twice: when the model is built, before its weights are read, and when its cache is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from engine_adapter.vllm.checks import Facts


def facts_of(vllm_config: Any, cache_groups: Sequence[Any] | None = None) -> Facts:
    """All of them; without the groups of the cache, those are taken for what they ought to be."""
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    speculative = vllm_config.speculative_config
    attention_groups, others = 1, list[str]()
    if cache_groups is not None:
        kinds = [group.kv_cache_spec for group in cache_groups]
        attention_groups = sum(type(spec) is FullAttentionSpec for spec in kinds)
        others = [
            type(spec).__name__
            for spec in kinds
            if not isinstance(spec, MambaSpec) and type(spec) is not FullAttentionSpec
        ]
    return Facts(
        speculative_method="" if speculative is None else str(speculative.method),
        pipeline_parallel=parallel.pipeline_parallel_size,
        context_parallel=max(
            parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
        ),
        hash_algorithm=cache.prefix_caching_hash_algo,
        cache_dtype=cache.cache_dtype,
        has_prefix_caching=bool(cache.enable_prefix_caching),
        attention_groups=attention_groups,
        other_groups=tuple(others),
        is_sequence_parallel=bool(getattr(parallel, "use_sequence_parallel_moe", False)),
        load_format=str(vllm_config.load_config.load_format),
        expert_ranks=parallel.data_parallel_size if vllm_config.model_config.is_moe else 1,
    )
