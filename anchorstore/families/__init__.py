"""Families: a Hugging Face config -> AnchorSpec, or the reason why not.

::

    config.json --> spec_from_config --> AnchorSpec   groups, layouts, state sizes
                        |   \\
                        |    +--> delta.py   GDN and KDA        gaps: reset
                        |    +--> mamba.py   Mamba-2, Mamba-1   gaps: concat
                        +--> ModelError   another hybrid, no hybrid, or a config that makes no sense

Needs neither torch nor transformers.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anchorstore.errors import ModelError
from anchorstore.families import delta, mamba
from anchorstore.families.build import dtype_of
from anchorstore.families.fields import Fields
from anchorstore.families.spec import AnchorSpec, GapMode, groups_of_kinds

__all__ = ["SUPPORTED", "AnchorSpec", "GapMode", "groups_of_kinds", "spec_from_config"]

_Reader = Callable[[str, Fields, str], AnchorSpec]

_READERS: dict[str, _Reader] = {
    "qwen3_next": delta.qwen,
    "qwen3_5_text": delta.qwen,
    "qwen3_5_moe_text": delta.qwen,
    "olmo_hybrid": delta.olmo_hybrid,
    "kimi_linear": delta.kimi_linear,
    "bamba": mamba.bamba,
    "granitemoehybrid": mamba.granitemoehybrid,
    "nemotron_h": mamba.nemotron_h,
    "jamba": mamba.jamba,
    "falcon_h1": mamba.falcon_h1,
}
_NESTED = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}

SUPPORTED = tuple(sorted({*_READERS, *_NESTED}))
"""Every model_type that spec_from_config reads."""

_WIDE = "its residual stream is several times the hidden size (hyper-connections), "
_REFUSED = {
    "bailing_hybrid": "its layers are not verified against a full prefill yet",
    "bailing_moe_linear": "its linear layers rotate q and k, so anchors need their positions",
    "glm5_next": _WIDE + "which anchors cannot hold yet",
    "lfm2": "it has short convolutions and no recurrence: a few re-read tokens rebuild them",
    "minimax": "its lightning layers keep their state in a cache of their own",
    "qwen4_exp": _WIDE + "and its n-gram embedding layers keep windows of their own",
    "recurrent_gemma": "it keeps its state on the module, and its attention is a sliding window",
    "zamba2": "its shared attention feeds into a hybrid layer: the group's entry is inside it",
}
_REFUSED |= {
    "bailing_moe_v2_5": _REFUSED["bailing_moe_linear"],
    "glm5_next_text": _REFUSED["glm5_next"],
    "lfm2_moe": _REFUSED["lfm2"],
    "lfm2_vl": _REFUSED["lfm2"],
    "lfm3": _REFUSED["lfm2"],
    "minimax_text_01": _REFUSED["minimax"],
    "qwen4_exp_text": _REFUSED["qwen4_exp"],
    "zamba": _REFUSED["zamba2"],
}
_RECURRENT_PREFIXES = ("mamba_", "linear_", "ssm_", "lru_", "rwkv", "hybrid_", "kda_")
_RECURRENT_TYPES = {"linear_attention", "mamba", "recurrent", "hybrid", "conv"}


def spec_from_config(config: Mapping[str, Any]) -> AnchorSpec:
    """What `config`, the content of a config.json, says about groups, layouts and states.

    Raises:
        ModelError: a family without linear layers, one that replay cannot handle (with the
            reason), or a value that makes no sense (with key, value and limit).
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"config is a {type(config).__name__}, must be a mapping")
    outer = Fields(config)
    model_type = outer.text("model_type", "")
    if not model_type:
        raise ModelError("config: model_type is missing")
    fields = outer
    if model_type in _NESTED:
        fields = outer.mapping("text_config") or Fields({}, "text_config.")
        wanted, model_type = model_type, _NESTED[model_type]
        if fields.text("model_type", model_type) not in (model_type, wanted):
            raise fields.fail("model_type", f"must be {model_type!r}")
    reader = _READERS.get(model_type)
    if reader is None:
        raise ModelError(f"{model_type:.80}: {_reason(model_type, config)}")
    return reader(model_type, fields, dtype_of(fields, outer))


def _reason(model_type: str, config: Mapping[str, Any]) -> str:
    """Why a family that has no reader is refused."""
    if model_type in _REFUSED:
        return f"this hybrid family is not supported: {_REFUSED[model_type]}"
    text, has_attention = config.get("text_config"), False
    for part in (config, text if isinstance(text, Mapping) else {}):
        types = part.get("layer_types") or part.get("layers_block_type") or []
        named = {name for name in types if isinstance(name, str)} if type(types) is list else set()
        marked = any(str(key).startswith(_RECURRENT_PREFIXES) for key in part)
        if marked or named & _RECURRENT_TYPES:
            return (
                "this looks like a hybrid family that is not supported; "
                f"supported are {', '.join(SUPPORTED)}"
            )
        has_attention |= "num_attention_heads" in part or any("attention" in n for n in named)
    if has_attention:
        return (
            "this model has no linear-attention layer: plain prefix caching does it, "
            "anchors have nothing to add"
        )
    return f"this model_type is not known; supported are {', '.join(SUPPORTED)}"
