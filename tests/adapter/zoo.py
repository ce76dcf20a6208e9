"""One tiny random model of every supported family, for tests.

Random weights forget within a token, which would hide mistakes far from the end: `lively` gives
every matrix unit gain and every decay a half-life of 8 to 8192 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

LINEAR, ATTENTION = "linear_attention", "full_attention"
PATTERN = [LINEAR, LINEAR, ATTENTION, LINEAR, LINEAR, LINEAR, ATTENTION, LINEAR]
VOCABULARY = 512

_COMMON: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=8,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_HEADS: dict[str, Any] = dict(num_attention_heads=4, num_key_value_heads=2)
_GDN: dict[str, Any] = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)
_MOE: dict[str, Any] = dict(
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)
_MAMBA: dict[str, Any] = dict(
    mamba_n_heads=8,
    mamba_d_head=16,
    mamba_n_groups=1,
    mamba_d_state=16,
    mamba_expand=2,
    mamba_chunk_size=64,
)
_ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.25,
    "mrope_section": [1, 1, 2],
    "mrope_interleaved": True,
}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _COMMON.items() if key != name}


CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3_5": lambda: transformers.Qwen3_5TextConfig(
        **_COMMON, **_HEADS, **_GDN, head_dim=32, layer_types=PATTERN, rope_parameters=_ROPE
    ),
    "qwen3_5_moe": lambda: transformers.Qwen3_5MoeTextConfig(
        **_without("intermediate_size"),
        **_HEADS,
        **_GDN,
        **_MOE,
        head_dim=32,
        layer_types=PATTERN,
        rope_parameters=_ROPE,
    ),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **_COMMON, **_HEADS, **_GDN, **_MOE, head_dim=32, layer_types=PATTERN
    ),
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(
        **_COMMON,
        **_HEADS,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=12,
        linear_value_head_dim=24,
        layer_types=PATTERN,
    ),
    "kimi_linear": lambda: transformers.KimiLinearConfig(
        **_COMMON,
        num_attention_heads=4,
        num_key_value_heads=4,
        layer_types=PATTERN,
        linear_head_dim=16,
        linear_num_heads=4,
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    ),
    "bamba": lambda: transformers.BambaConfig(
        **_COMMON, **_HEADS, **_MAMBA, attn_layer_indices=[2, 6]
    ),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        **_COMMON,
        **_HEADS,
        **_MAMBA,
        layer_types=PATTERN,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
        embedding_multiplier=3.0,
        position_embedding_type="rope",
    ),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **_without("num_hidden_layers"),
        **_HEADS,
        head_dim=16,
        layers_block_type=[
            *(LINEAR, "mlp", LINEAR, "moe", ATTENTION, "mlp"),
            *(LINEAR, "mlp", LINEAR, ATTENTION, LINEAR),
        ],
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        chunk_size=64,
        n_routed_experts=4,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
    ),
    "jamba": lambda: transformers.JambaConfig(
        **_COMMON,
        **_HEADS,
        attn_layer_period=3,
        attn_layer_offset=2,
        num_experts=2,
        num_experts_per_tok=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
    ),
    "falcon_h1": lambda: transformers.FalconH1Config(
        **(_COMMON | dict(num_hidden_layers=4)),
        **_HEADS,
        **_MAMBA,
        mamba_d_ssm=128,
        head_dim=16,
        embedding_multiplier=2.0,
    ),
}
FAMILY_NAMES = sorted(CONFIGS)


def lively(model: nn.Module, seed: int) -> None:
    """Unit gain in every matrix and half-lives log-uniform in 8..8192 tokens, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "A_log" in name or name.endswith(".D"):
                continue
            if parameter.ndim >= 2:
                gain = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(0.0, gain, generator=generator)
        for module in model.modules():
            decay = getattr(module, "A_log", None)
            if decay is None:
                continue
            half_lives = torch.exp(
                torch.empty(decay.shape).uniform_(math.log(8), math.log(8192), generator=generator)
            )
            step = math.log1p(math.exp(-3.0))
            decay.copy_(torch.log(math.log(2) / half_lives / step))
            named = dict(module.named_parameters())
            named["dt_bias" if "dt_bias" in named else "dt_proj.bias"].fill_(-3.0)


def tiny_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model of family `name` with lively random weights, in eval mode."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype).eval()
    lively(model, seed)
    return model


def random_tokens(count: int, seed: int = 1) -> list[int]:
    """Token ids 3..VOCABULARY-1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()
