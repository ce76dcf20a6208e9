"""How each family's layers look in vLLM, and how a row that is not there is kept from acting.

::

    qwen3_next, qwen3_5, qwen3_5_moe   gated delta net     runs are reset
    granitemoehybrid, nemotron_h       Mamba-2             runs are concatenated

Between two runs of kept rows stand columns without a row (engine_adapter.packing).  There, what
enters the convolution must be zero (`inputs`) and the gates must be closed (`gates`): no decay,
no write.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from anchorstore.errors import ModelError

CLOSED_LOGIT = -1e4  # sigmoid -> 0: no write; softplus -> 0: no decay


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """What differs between families.

    Attributes:
        mixer: name of the linear mixer inside a layer.
        adds_residual: whether layers hand on the stream as two tensors to be added.
        inputs: sub-modules of the mixer whose output enters the convolution.
        gates: sub-modules of the mixer whose output decides decay and write.
    """

    mixer: str
    adds_residual: bool
    inputs: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()


_GATES = {"inputs": ("in_proj_qkvz",), "gates": ("in_proj_ba",)}

FAMILIES: dict[str, Family] = {
    "qwen3_next": Family("linear_attn", True, **_GATES),
    "qwen3_5_text": Family("linear_attn", True, **_GATES),
    "qwen3_5_moe_text": Family("linear_attn", True, **_GATES),
    "granitemoehybrid": Family("mamba", False),
    "nemotron_h": Family("mixer", True),
}


def family_of(model_type: str) -> Family:
    """The family of a model type; ModelError where vLLM's layers of it are not known."""
    if model_type not in FAMILIES:
        raise ModelError(
            f"vllm: {model_type} is not supported in vLLM yet; supported are {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def decoder_of(model: nn.Module) -> Any:
    """The module that holds `layers` and the input embedding."""
    base: Any = model
    for name in ("language_model", "model"):
        base = getattr(base, name, base)
    return base
