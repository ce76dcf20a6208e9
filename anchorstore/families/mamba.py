"""The Mamba families: bamba, granitemoehybrid, nemotron_h, falcon_h1 (Mamba-2) and jamba (Mamba-1).

::

    Mamba-2  state [heads][head dim][state size], window over heads * head dim + 2 * groups * state
    Mamba-1  state [inner width][state size],     window over the inner width

Defaults are those of the families' own config classes.  Both the published forms
(`attn_layer_indices`, `attn_layer_period`, `hybrid_override_pattern`) and the saved ones
(`layer_types`, `layers_block_type`) are read.  Pure.
"""

from __future__ import annotations

from anchorstore.errors import ModelError
from anchorstore.families.build import (
    Defaults,
    State,
    attention_of,
    build,
    hidden_of,
    layers_of,
)
from anchorstore.families.fields import DIM_MAX, HEADS_MAX, KERNEL_MAX, LAYERS_MAX, Fields
from anchorstore.families.spec import AnchorSpec, kinds_of_types

_EXPAND_MAX = 64
_PATTERN = {"M": "L", "*": "A", "-": "F", "E": "F"}


def _mamba2(heads: int, head_dim: int, groups: int, state_size: int, kernel: int) -> State:
    inner = heads * head_dim
    return State(inner * state_size, (inner + 2 * groups * state_size) * (kernel - 1))


def _mamba2_of(fields: Fields, inner: int) -> State:
    """From the mamba_* keys; `inner` is the width that heads * head dim must give."""
    heads = fields.integer("mamba_n_heads", 128, HEADS_MAX)
    if inner % heads:
        raise fields.fail("mamba_n_heads", f"must divide the inner width {inner}")
    automatic = fields.config.get("mamba_d_head") in (None, "auto")
    head_dim = inner // heads if automatic else fields.integer("mamba_d_head", 1, DIM_MAX)
    if heads * head_dim != inner:
        raise fields.fail("mamba_d_head", f"must be {inner // heads}, inner width / heads")
    groups = fields.integer("mamba_n_groups", 1, HEADS_MAX)
    state_size = fields.integer("mamba_d_state", 256, DIM_MAX)
    kernel = fields.integer("mamba_d_conv", 4, KERNEL_MAX)
    return _mamba2(heads, head_dim, groups, state_size, kernel)


def _expanded(fields: Fields, hidden: int) -> int:
    return fields.integer("mamba_expand", 2, _EXPAND_MAX) * hidden


def bamba(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Bamba: `attn_layer_indices` names the attention layers."""
    defaults = Defaults(4096, 32, 32, 8)
    layers, hidden = layers_of(fields, defaults), hidden_of(fields, defaults)
    full = fields.integers("attn_layer_indices", 0, layers - 1) or []
    kinds = "".join("A" if i in full else "L" for i in range(layers))
    attention = attention_of(fields, defaults)
    state = _mamba2_of(fields, _expanded(fields, hidden))
    return build(model_type, hidden, kinds, "concat", attention, state, dtype)


def granitemoehybrid(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Granite 4 H: `layer_types` or the older `layers_block_type`; without either all linear."""
    defaults = Defaults(4096, 32, 32, None)
    layers, hidden = layers_of(fields, defaults), hidden_of(fields, defaults)
    key = "layer_types" if fields.has("layer_types") else "layers_block_type"
    types = fields.texts(key, layers)
    kinds = "L" * layers if types is None else kinds_of_types(types, key)
    attention = attention_of(fields, defaults)
    state = _mamba2_of(fields, _expanded(fields, hidden))
    return build(model_type, hidden, kinds, "concat", attention, state, dtype)


def _nemotron_kinds(fields: Fields) -> str:
    """From a list of types, else from the pattern of letters, else the class's four layers."""
    length = None
    if fields.has("num_hidden_layers"):
        length = fields.integer("num_hidden_layers", 1, LAYERS_MAX)
    for key in ("layer_types", "layers_block_type"):
        types = fields.texts(key, length)
        if types is not None:
            return kinds_of_types(types, key)
    pattern = fields.text("hybrid_override_pattern", "ME*-")
    if len(pattern) > LAYERS_MAX:
        raise ModelError(
            f"config: hybrid_override_pattern has {len(pattern)} letters, limit {LAYERS_MAX}"
        )
    if fields.has("hybrid_override_pattern") and length not in (None, len(pattern)):
        raise fields.fail(
            "hybrid_override_pattern", f"has {len(pattern)} letters, must have {length}"
        )
    for letter in pattern:
        if letter not in _PATTERN:
            raise fields.fail("hybrid_override_pattern", f"{letter!r} is not one of M * - E")
    return "".join(_PATTERN[letter] for letter in pattern)


def nemotron_h(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Nemotron-H and Nemotron 3: feed-forward blocks are layers of their own."""
    defaults = Defaults(4096, 1, 32, 8, 128)
    hidden = hidden_of(fields, defaults)
    state = _mamba2(
        heads=fields.integer("mamba_num_heads", 128, HEADS_MAX),
        head_dim=fields.integer("mamba_head_dim", 64, DIM_MAX),
        groups=fields.first_integer(("mamba_n_groups", "n_groups"), 8, HEADS_MAX),
        state_size=fields.integer("ssm_state_size", 128, DIM_MAX),
        kernel=fields.first_integer(("mamba_d_conv", "conv_kernel"), 4, KERNEL_MAX),
    )
    attention = attention_of(fields, defaults, ("head_dim", "attention_head_dim"))
    return build(model_type, hidden, _nemotron_kinds(fields), "concat", attention, state, dtype)


def falcon_h1(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Falcon-H1: every layer runs attention and Mamba-2 side by side, so it is a group."""
    defaults = Defaults(4096, 32, 32, 8)
    layers, hidden = layers_of(fields, defaults), hidden_of(fields, defaults)
    inner = fields.integer("mamba_d_ssm", 1024, DIM_MAX)
    if fields.is_null("mamba_d_ssm"):
        inner = _expanded(fields, hidden)
    attention = attention_of(fields, defaults)
    state = _mamba2_of(fields, inner)
    return build(model_type, hidden, "B" * layers, "concat", attention, state, dtype)


def jamba(model_type: str, fields: Fields, dtype: str) -> AnchorSpec:
    """Jamba: Mamba-1, one attention layer every `attn_layer_period`."""
    defaults = Defaults(4096, 32, 32, 8)
    layers, hidden = layers_of(fields, defaults), hidden_of(fields, defaults)
    period = fields.integer("attn_layer_period", 8, LAYERS_MAX)
    offset = fields.integer("attn_layer_offset", 4, LAYERS_MAX, low=0)
    if offset >= period:
        raise fields.fail("attn_layer_offset", f"must be below attn_layer_period ({period})")
    kinds = "".join("A" if i % period == offset else "L" for i in range(layers))
    inner = _expanded(fields, hidden)
    kernel = fields.integer("mamba_d_conv", 4, KERNEL_MAX)
    state = State(inner * fields.integer("mamba_d_state", 16, DIM_MAX), inner * (kernel - 1))
    attention = attention_of(fields, defaults)
    return build(model_type, hidden, kinds, "concat", attention, state, dtype)
