"""Qwen3.5 and 3.6, mixture of experts."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
)

from engine_adapter.vllm.install import install


class AnchoredQwen3_5MoeForCausalLM(Qwen3_5MoeForCausalLM):
    """vLLM's own, tapped."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        install(self, vllm_config)


class AnchoredQwen3_5MoeForConditionalGeneration(Qwen3_5MoeForConditionalGeneration):
    """vLLM's own, with a vision tower beside the tapped language model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        install(self, vllm_config)
