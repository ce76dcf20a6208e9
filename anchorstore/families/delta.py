"""The delta-rule families: qwen3_next, qwen3_5, qwen3_5_moe, olmo_hybrid (GDN), kimi_linear (KDA).

::

    GDN  state [value heads][key dim][value dim], window over q, k, v
    KDA  state [heads][dim][dim], window over q, k, v, beside MLA

Defaults are those of the families' own config classes: a config.json may leave a key out.  Both
the published forms (`full_attention_interval`, `linear_attn_config`) and the saved one
(`layer_types`) are read.  Pure.
"""

from __future__ import annotations

from anchorstore.families.build import (
    Attention,
    Defaults,
    State,
    attention_of,
    build,
    heads_of,
    hidden_of,
    layers_of,
)
from anchorstore.families.fields import DIM_MAX, HEADS_MAX, KERNEL_MAX, LAYERS_MAX, Fields
from anchorstore.families.spec import AnchorSpec, kinds_of_types


def _gdn_state(
    fields: Fields, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> State:
    """State of a gated delta net; the arguments are defaults."""
    key_heads = fields.integer("linear_num_key_heads", key_heads, HEADS_MAX)
    value_heads = fields.integer("linear_num_value_heads", value_heads, HEADS_MAX)
    key_dim = fields.integer("linear_key_head_dim", key_dim, DIM_MAX)
    value_dim = fields.integer("linear_value_head_dim", value_dim, DIM_MAX)
    kernel = fields.integer("linear_conv_kernel_dim", 4, KERNEL_MAX)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return State(value_heads * key_dim * value_dim, channels * (kernel - 1))


def _interval_kinds(fields: Fields, layers: int) -> str:
    """From `layer_types`, else every n-th layer is attention, n = full_attention_interval."""
    types = fields.texts("layer_types", layers)
    if types is not None:
        return kinds_of_types(types, f"{fields.path}layer_types")
    interval = fields.integer("full_attention_interval", 4, LAYERS_MAX)
    return "".join("L" if (i + 1) % interval else "A" for i in range(layers))


_QWEN = {
    "qwen3_next": Defaults(2048, 48, 16, 2, 256),
    "qwen3_5_text": Defaults(4096, 32, 16, 4, 256),
    "qwen3_5_moe_text": Defaults(2048, 40, 16, 2, 256),
}


def qwen(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Qwen3-Next, Qwen3.5 and 3.6, dense and mixture of experts."""
    defaults = _QWEN[model_type]
    kinds = _interval_kinds(fields, layers_of(fields, defaults))
    return build(
        model_type,
        hidden_of(fields, defaults),
        kinds,
        "reset",
        attention_of(fields, defaults),
        _gdn_state(fields, 16, 32, 128, 128),
        dtype,
    )


def olmo_hybrid(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """OLMo-Hybrid: head widths follow from the hidden size where they are not given."""
    defaults = Defaults(3840, 32, 30, None)
    layers, heads = layers_of(fields, defaults), heads_of(fields, defaults)
    hidden = hidden_of(fields, defaults)
    types = fields.texts("layer_types", layers)
    if types is not None:
        kinds = kinds_of_types(types, "layer_types")
    else:
        kinds = "".join("A" if i % 4 == 3 else "L" for i in range(layers))
        if "A" not in kinds:
            kinds = kinds[:-1] + "A"
    key_heads = fields.integer("linear_num_key_heads", heads, HEADS_MAX)
    key_dim = fields.integer("linear_key_head_dim", max(1, 3 * hidden // (4 * key_heads)), DIM_MAX)
    state = _gdn_state(fields, heads, heads, key_dim, 2 * key_dim)
    return build(model_type, hidden, kinds, "reset", attention_of(fields, defaults), state, dtype)


# ---- KDA -------------------------------------------------------------------------------------


def _kimi_kinds(fields: Fields, layers: int) -> str:
    """From `layer_types`, else the published lists (numbered from 1), else every fifth layer."""
    types = fields.texts("layer_types", layers)
    if types is not None:
        return kinds_of_types(types, "layer_types")
    inner = fields.mapping("linear_attn_config")
    if inner is None or not (inner.has("full_attn_layers") and inner.has("kda_layers")):
        return "".join("A" if i and i % 4 == 0 else "L" for i in range(layers))
    full = inner.integers("full_attn_layers", 1, layers) or []
    linear = inner.integers("kda_layers", 1, layers) or []
    if sorted(full + linear) != list(range(1, layers + 1)):
        raise inner.fail("kda_layers", f"must name, with full_attn_layers, 1 to {layers} once")
    return "".join("A" if i + 1 in full else "L" for i in range(layers))


def kimi_linear(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Kimi-Linear: KDA beside MLA, whose latent row is what attention keeps of a token."""
    defaults = Defaults(2304, 27, 32, 32)
    layers = layers_of(fields, defaults)
    inner = fields.mapping("linear_attn_config") or Fields({})
    heads = inner.integer("num_heads", fields.integer("linear_num_heads", 32, HEADS_MAX), HEADS_MAX)
    dim = inner.integer("head_dim", fields.integer("linear_head_dim", 128, DIM_MAX), DIM_MAX)
    kernel = inner.integer(
        "short_conv_kernel_size",
        fields.integer("linear_conv_kernel_dim", 4, KERNEL_MAX),
        KERNEL_MAX,
    )
    width = fields.integer("kv_lora_rank", 512, DIM_MAX)
    width += fields.integer("qk_rope_head_dim", 64, DIM_MAX, low=0)
    state = State(heads * dim * dim, 3 * heads * dim * (kernel - 1))
    return build(
        model_type,
        hidden_of(fields, defaults),
        _kimi_kinds(fields, layers),
        "reset",
        Attention(1, width, width),
        state,
        dtype,
    )
