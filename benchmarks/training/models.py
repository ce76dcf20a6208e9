"""Tiny Qwen3.5-style hybrids: their shapes, their initialisation and how they are saved."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

HEAD_DIM = 64
"""Head size of every mixer; vLLM's CPU kernels need 64 for the linear layers."""

LAYER_NAMES = {"L": "linear_attention", "F": "full_attention"}


@dataclass(frozen=True)
class Shape:
    """What differs between the two models; everything else is fixed in :func:`build_config`."""

    layers: str
    hidden: int
    mlp: int
    vocabulary: int
    linear_heads: int = 2
    attention_heads: int = 2
    rope_theta: float = 10000.0
    rotary_share: float = 0.5
    max_decay: float = 16.0
    bind_neighbours: bool = False


TEXT = Shape(layers="LLLFLLLF", hidden=128, mlp=384, vocabulary=256)
RECALL = Shape(
    layers="LLFLLF",
    hidden=64,
    mlp=128,
    vocabulary=128,
    rope_theta=4.0,
    rotary_share=1.0,
    max_decay=2.0,
    bind_neighbours=True,
)
"""Attention would answer the asks alone, and a zero state would cost nothing. A rotary base of 4
over the whole head makes it short-sighted (wavelengths of 6 to 25 tokens), so that what was
written further back can only come from the linear state."""


def build_config(shape: Shape) -> Qwen3_5TextConfig:
    """The transformers configuration of ``shape``."""
    frequencies = int(HEAD_DIM * shape.rotary_share) // 2
    third = frequencies // 3
    return Qwen3_5TextConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=len(shape.layers),
        layer_types=[LAYER_NAMES[letter] for letter in shape.layers],
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.attention_heads,
        head_dim=HEAD_DIM,
        linear_num_key_heads=shape.linear_heads,
        linear_num_value_heads=shape.linear_heads,
        linear_key_head_dim=HEAD_DIM,
        linear_value_head_dim=HEAD_DIM,
        linear_conv_kernel_dim=4,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        # The frequencies are split between three position axes, which all carry the same number
        # in a text-only model.
        rope_parameters={
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary_share,
            "mrope_section": [frequencies - 2 * third, third, third],
            "mrope_interleaved": True,
        },
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )


def linear_mixers(model: torch.nn.Module) -> list[modeling_qwen3_5.Qwen3_5GatedDeltaNet]:
    """The gated delta rule of every linear layer."""
    kind = modeling_qwen3_5.Qwen3_5GatedDeltaNet
    return [module for module in model.modules() if isinstance(module, kind)]


def init_decay(model: torch.nn.Module, max_decay: float) -> None:
    """Initialise the decay of every linear layer as flash-linear-attention does.

    transformers starts ``dt_bias`` at 1, which makes a state forget within a token; a tiny model
    never leaves that point and its state then carries nothing. Here the step ``dt`` is
    log-uniform in [0.001, 0.1] and ``A`` uniform in [0.5, ``max_decay``] (16 is customary).
    """
    low, high = math.log(0.001), math.log(0.1)
    with torch.no_grad():
        for mixer in linear_mixers(model):
            mixer.A_log.copy_(torch.empty_like(mixer.A_log).uniform_(0.5, max_decay).log())
            step = torch.exp(torch.rand_like(mixer.dt_bias) * (high - low) + low)
            mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))


def init_neighbours(model: torch.nn.Module) -> None:
    """Start every linear layer as one that binds a token to the one before it.

    Query and key share their projection; the convolution starts as "this token" for queries and
    values and "the token before" for keys. Left to chance, a model this small takes longer to
    find that than the whole budget of its training.
    """
    with torch.no_grad():
        for mixer in linear_mixers(model):
            size = mixer.key_dim
            mixer.in_proj_qkv.weight[:size].copy_(mixer.in_proj_qkv.weight[size : 2 * size])
            taps = mixer.conv1d.weight.mul_(0.2)[:, 0]
            taps[:size, -1] += 1.0
            taps[size : 2 * size, -2] += 1.0
            taps[2 * size :, -1] += 1.0


def build_model(shape: Shape, seed: int) -> Qwen3_5ForCausalLM:
    """A freshly initialised fp32 model of ``shape``."""
    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(build_config(shape))
    init_decay(model, shape.max_decay)
    if shape.bind_neighbours:
        init_neighbours(model)
    return model


def use_chunk_size(size: int) -> None:
    """Make the reference delta rule work in chunks of ``size`` tokens.

    The result is the same; 32 trains about 1.6 times as fast as the default 64 on a CPU.
    """
    original = modeling_qwen3_5.torch_chunk_gated_delta_rule

    def chunked(*args: Any, **kwargs: Any) -> Any:
        kwargs["chunk_size"] = size
        return original(*args, **kwargs)

    modeling_qwen3_5.torch_chunk_gated_delta_rule = chunked


def save_bf16(model: Qwen3_5ForCausalLM, folder: Path, record: dict[str, Any]) -> None:
    """Save the weights as bf16 in ``folder``, with ``record`` beside them as training.json."""
    copy = Qwen3_5ForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    text = json.dumps(record, indent=2, sort_keys=True)
    (folder / "training.json").write_text(text + "\n", encoding="utf-8")


def load_fp32(folder: Path) -> Qwen3_5ForCausalLM:
    """The saved (bf16-rounded) weights, computed with in fp32."""
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()
