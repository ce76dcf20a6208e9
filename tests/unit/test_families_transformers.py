"""Goal: what we read from a config is what transformers makes of it.

Method: for every family build the real config class, tiny and by default, save it as config.json
in each form, and compare layer kinds; then build a tiny random model, prefill it, and weigh its
cache: recurrent states, convolution windows, keys and values must have the sizes of our spec.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from anchorstore.families import AnchorSpec, groups_of_kinds, spec_from_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 12
LINEAR, FULL = "linear_attention", "full_attention"
LLLA = [LINEAR, LINEAR, LINEAR, FULL] * 2
COMMON = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8}
COMMON |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_attention_heads": 4}
GROUPED = {"num_key_value_heads": 2}
GDN = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
GDN |= {"linear_key_head_dim": 16, "linear_value_head_dim": 24}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EXPERTS |= {"shared_expert_intermediate_size": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24}
MAMBA |= {"mamba_expand": 2, "mamba_chunk_size": 16}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
ROPE_3D: dict[str, Any] = ROPE | {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
QWEN: dict[str, Any] = {**COMMON, **GROUPED, **GDN, "head_dim": 16, "layer_types": LLLA}
PATTERN = "-M-ME*EM-M*ME-"


def nemotron() -> Any:
    sizes = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 24, "n_groups": 2}
    sizes |= {"n_routed_experts": 4, "moe_intermediate_size": 32, "chunk_size": 16}
    common = {k: v for k, v in COMMON.items() if k != "num_hidden_layers"}
    return transformers.NemotronHConfig(
        **common,
        **GROUPED,
        **sizes,
        head_dim=16,
        moe_shared_expert_intermediate_size=32,
        hybrid_override_pattern=PATTERN,
    )


def kimi() -> Any:
    return transformers.KimiLinearConfig(
        **COMMON,
        num_key_value_heads=4,
        linear_attn_config={
            "full_attn_layers": [4, 7],
            "kda_layers": [1, 2, 3, 5, 6, 8],
            "head_dim": 16,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
        kv_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    )


def granite() -> Any:
    return transformers.GraniteMoeHybridConfig(
        **COMMON,
        **GROUPED,
        **MAMBA,
        layer_types=["mamba", "mamba", "attention", "mamba"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
    )


def qwen_moe() -> Any:
    sizes = {k: v for k, v in QWEN.items() if k != "intermediate_size"}
    return transformers.Qwen3_5MoeTextConfig(**sizes, **EXPERTS, rope_parameters=ROPE_3D)


TINY: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: transformers.Qwen3NextConfig(**QWEN, **EXPERTS),
    "qwen3_5_text": lambda: transformers.Qwen3_5TextConfig(**QWEN, rope_parameters=ROPE_3D),
    "qwen3_5_moe_text": qwen_moe,
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(**COMMON, **GROUPED, **GDN),
    "kimi_linear": kimi,
    "bamba": lambda: transformers.BambaConfig(
        **COMMON, **GROUPED, **MAMBA, attn_layer_indices=[2, 5]
    ),
    "granitemoehybrid": granite,
    "nemotron_h": nemotron,
    "jamba": lambda: transformers.JambaConfig(
        **COMMON, **GROUPED, attn_layer_period=4, attn_layer_offset=1, mamba_d_state=24,
        num_experts=2, num_experts_per_tok=1, use_mamba_kernels=False,
    ),
    "falcon_h1": lambda: transformers.FalconH1Config(
        **COMMON, **GROUPED, **(MAMBA | {"mamba_d_head": 12}), mamba_d_ssm=96, head_dim=16
    ),
}  # fmt: skip
DEFAULTS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: transformers.Qwen3NextConfig(),
    "qwen3_5": lambda: transformers.Qwen3_5Config(),
    "qwen3_5_text": lambda: transformers.Qwen3_5TextConfig(),
    "qwen3_5_moe": lambda: transformers.Qwen3_5MoeConfig(),
    "qwen3_5_moe_text": lambda: transformers.Qwen3_5MoeTextConfig(),
    "olmo_hybrid": lambda: transformers.OlmoHybridConfig(),
    "kimi_linear": lambda: transformers.KimiLinearConfig(),
    "jamba": lambda: transformers.JambaConfig(),
    "falcon_h1": lambda: transformers.FalconH1Config(),
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "interval": {"model_type": "qwen3_next", "full_attention_interval": 6},
    "nested-interval": {"model_type": "qwen3_5", "text_config": {"full_attention_interval": 3}},
    "nested-empty": {"model_type": "qwen3_5_moe", "text_config": {}},
    "olmo-short": {"model_type": "olmo_hybrid", "num_hidden_layers": 6},
    "kimi-default": {"model_type": "kimi_linear", "num_hidden_layers": 13},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [9, 18, 27]},
    "granite-names": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
    },
    "granite-older-key": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "attention", "mamba"],
    },
    "nemotron-pattern": {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-ME*EM"},
    "nemotron-both": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*",
        "layers_block_type": ["mamba", "attention", "mlp", "mamba", "moe"],
    },
    "jamba-period": {"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1},
    "falcon-null": {"model_type": "falcon_h1", "mamba_d_ssm": None, "num_hidden_layers": 3},
}


def kinds_of(config: Any) -> str:
    """As replay sees a config: its own layer_types, by letter."""
    letters = {LINEAR: "L", "mlp": "F", "moe": "F", "hybrid": "B"}
    types = config.get_text_config(decoder=True).layer_types
    return "".join(letters.get(name, "A") for name in types)


def saved_forms(config: Any) -> list[dict[str, Any]]:
    """What save_pretrained writes, and the same with every default spelt out."""
    return [json.loads(config.to_json_string(use_diff=diff)) for diff in (True, False)]


@pytest.mark.parametrize("name", TINY)
def test_saved_config_of_every_family_gives_its_layer_kinds(name: str) -> None:
    config = TINY[name]()
    kinds = kinds_of(config)
    for saved in saved_forms(config):
        spec = spec_from_config(saved)
        assert spec.layer_kinds == kinds
        assert spec.model_type == name
        assert spec.groups == groups_of_kinds(kinds)


@pytest.mark.parametrize("name", DEFAULTS)
def test_config_with_its_model_type_alone_gives_the_class_defaults(name: str) -> None:
    config = DEFAULTS[name]()
    specs = [spec_from_config(saved) for saved in saved_forms(config)]
    bare = spec_from_config({"model_type": name})
    assert [bare] * 2 == specs
    assert bare.layer_kinds == kinds_of(config)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_form_is_read_as_transformers_reads_it(name: str) -> None:
    written = PUBLISHED[name]
    cls = type(transformers.AutoConfig.for_model(written["model_type"]))
    config = cls.from_dict(json.loads(json.dumps(written)))
    spec = spec_from_config(written)
    assert spec.layer_kinds == kinds_of(config)
    assert spec == spec_from_config(saved_forms(config)[1])


def prefilled(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    cache = transformers.DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=torch.arange(3, 3 + TOKENS)[None], cache=cache, use_cache=True)
    return cache


def weigh(cache: Any, spec: AnchorSpec) -> tuple[int, int]:
    """Elements of all recurrent states, and of all windows without transformers' extra column."""
    recurrent = conv = 0
    for layer in spec.linear_layers:
        entry = cache.layers[layer]
        assert entry.recurrent_states[0].dtype == torch.float32
        recurrent += entry.recurrent_states[0].numel()
        window = entry.conv_states[0]
        conv += window[..., 1:].numel()
    return recurrent, conv


@pytest.mark.parametrize("name", TINY)
def test_cache_of_a_real_model_has_the_sizes_of_the_spec(name: str) -> None:
    config = TINY[name]()
    spec = spec_from_config(saved_forms(config)[0])
    cache = prefilled(config)
    recurrent, conv = weigh(cache, spec)
    assert spec.recurrent_bytes == 4 * recurrent
    assert spec.conv_bytes == 2 * conv
    assert spec.hidden == config.hidden_size
    for layer in spec.attention_layers:
        keys, values = cache.layers[layer].keys, cache.layers[layer].values
        if spec.kv_latent_width is None:
            shape = (1, spec.kv_heads, TOKENS, spec.head_dim)
            assert keys.shape == values.shape == shape
        else:
            assert keys.shape[-1] + values.shape[-1] == spec.kv_latent_width
            assert keys.numel() + values.numel() == TOKENS * spec.kv_latent_width
    page = spec.kv_layout("float32", page_tokens=TOKENS).block_bytes()
    held = sum(
        cache.layers[layer].keys.nbytes + cache.layers[layer].values.nbytes
        for layer in spec.attention_layers
    )
    assert page == held
