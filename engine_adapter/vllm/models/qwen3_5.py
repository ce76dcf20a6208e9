"""Qwen3.5 and 3.6, dense."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
)

from engine_adapter.vllm.install import install


class AnchoredQwen3_5ForCausalLM(Qwen3_5ForCausalLM):
    """vLLM's own, tapped."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        install(self, vllm_config)


class AnchoredQwen3_5ForConditionalGeneration(Qwen3_5ForConditionalGeneration):
    """vLLM's own, with a vision tower beside the tapped language model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        install(self, vllm_config)
