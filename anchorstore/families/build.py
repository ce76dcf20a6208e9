"""What every family's reader shares: attention, dtype, and the step from parts to an AnchorSpec.

A family is read in three parts: the kinds of its layers, what one attention layer keeps of a
token, and what one linear layer keeps.  build() puts them together and refuses a model whose
layers leave replay nothing to do.  Pure.
"""

from __future__ import annotations

import dataclasses

from anchorstore.errors import ModelError, SpecMismatch
from anchorstore.families.fields import DIM_MAX, HEADS_MAX, HIDDEN_MAX, LAYERS_MAX, Fields
from anchorstore.families.spec import AnchorSpec, GapMode, groups_of_kinds

RECURRENT_ITEM_BYTES = 4  # float32, whatever the model's dtype
CONV_ITEM_BYTES = 2  # bfloat16
DTYPES = ("float32", "bfloat16", "float16")
DTYPE_DEFAULT = "bfloat16"


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What one linear layer keeps: elements of its recurrence and of its convolution window."""

    recurrent: int
    conv: int


@dataclasses.dataclass(frozen=True, slots=True)
class Attention:
    """What one attention layer keeps for a token."""

    kv_heads: int
    head_dim: int
    latent_width: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """Shape of a family's config class where its config.json is silent."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int | None  # None: as many as heads
    head_dim: int | None = None  # None: hidden / heads


def layers_of(fields: Fields, defaults: Defaults) -> int:
    return fields.integer("num_hidden_layers", defaults.layers, LAYERS_MAX)


def hidden_of(fields: Fields, defaults: Defaults) -> int:
    return fields.integer("hidden_size", defaults.hidden, HIDDEN_MAX)


def heads_of(fields: Fields, defaults: Defaults) -> int:
    return fields.integer("num_attention_heads", defaults.heads, HEADS_MAX)


def attention_of(
    fields: Fields, defaults: Defaults, dim_keys: tuple[str, ...] = ("head_dim",)
) -> Attention:
    """Keys and values a head; a null num_key_value_heads means one a query head."""
    heads = heads_of(fields, defaults)
    absent = heads if fields.is_null("num_key_value_heads") else defaults.kv_heads or heads
    kv_heads = fields.integer("num_key_value_heads", absent, HEADS_MAX)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"must divide num_attention_heads ({heads})")
    derived = defaults.head_dim or hidden_of(fields, defaults) // heads
    head_dim = fields.first_integer(dim_keys, derived, DIM_MAX)
    if head_dim < 1:
        raise fields.fail("num_attention_heads", "must not exceed hidden_size")
    return Attention(kv_heads, head_dim)


def dtype_of(fields: Fields, outer: Fields) -> str:
    """The model's dtype: `dtype` or the older `torch_dtype`, of the text part or around it."""
    for source in (fields, outer):
        for key in ("dtype", "torch_dtype"):
            if source.has(key):
                name = source.text(key, "").removeprefix("torch.")
                if name not in DTYPES:
                    raise source.fail(key, f"must be one of {', '.join(DTYPES)}")
                return name
    return DTYPE_DEFAULT


def build(
    model_type: str,
    hidden: int,
    kinds: str,
    gap_mode: GapMode,
    attention: Attention,
    state: State,
    dtype: str,
) -> AnchorSpec:
    """The spec, or ModelError where the layers leave nothing for replay to do."""
    linear = sum(kind in "LB" for kind in kinds)
    attention_layers = tuple(i for i, kind in enumerate(kinds) if kind in "AB")
    if not linear:
        raise ModelError(
            f"{model_type}: this model has no linear-attention layer: "
            "plain prefix caching does it, anchors have nothing to add"
        )
    if not attention_layers:
        raise ModelError(
            f"{model_type}: this model has no full-attention layer: "
            "a recurrent state is all it keeps, there is no group to replay on its own"
        )
    groups = groups_of_kinds(kinds)
    spec = AnchorSpec(
        model_type=model_type,
        hidden=hidden,
        layer_kinds=kinds,
        groups=groups,
        first_group_is_embedding=groups[0][0] == 0,
        gap_mode=gap_mode,
        attention_layers=attention_layers,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        kv_latent_width=attention.latent_width,
        recurrent_bytes=linear * state.recurrent * RECURRENT_ITEM_BYTES,
        conv_bytes=linear * state.conv * CONV_ITEM_BYTES,
        dtype=dtype,
    )
    if not spec.stored_groups:
        raise ModelError(
            f"{model_type}: its only group of linear layers ({groups[0]}) enters with the token "
            "embedding: there is no anchor to store"
        )
    try:
        spec.kv_layout()
        spec.anchor_layout(rows=1)
    except SpecMismatch as error:
        raise ModelError(f"{model_type}: {error}") from error
    return spec
