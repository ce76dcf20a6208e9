"""Qwen3-Next."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

from engine_adapter.vllm.install import install


class AnchoredQwen3NextForCausalLM(Qwen3NextForCausalLM):
    """vLLM's own, tapped."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        install(self, vllm_config)
