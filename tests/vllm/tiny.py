"""Tiny hybrid models with random weights, made on the spot: config, weights, byte-level tokenizer.

Small enough for a second a request on one core, and of shapes that vLLM's CPU kernels take: linear
heads of 128, a convolution of four, bfloat16.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
import transformers

VOCABULARY = 512
SPREAD = 0.06
SLOW_DECAY = {"linear_attn": (-4.0, -1.0), "mamba": (-6.0, -3.0), "mixer": (-6.0, -3.0)}
"""Range of the logarithm of the decay rate, by the name of the layers' mixer."""
LORA_RANK = 8
LORA_SPREAD = 0.2
LORA_TARGETS = ["q_proj", "gate_proj", "up_proj", "down_proj"]
LORA_TARGETS += ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
VISION_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
"""The last of the vocabulary."""
PROCESSORS = {
    "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessorFast"},
    "video_preprocessor_config.json": {"video_processor_type": "Qwen3VLVideoProcessor"},
}
PATCHES: dict[str, Any] = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 4096, "longest_edge": 65536},
    "processor_class": "Qwen3VLProcessor",
}
LAYERS = ["linear_attention"] * 3 + ["full_attention"]
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 8,
    "head_dim": 64,
    "layer_types": LAYERS * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def qwen3_next() -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return transformers.Qwen3NextConfig(
        **COMMON, **DELTA, **experts, shared_expert_intermediate_size=64
    )


def qwen3_5() -> Any:
    return transformers.Qwen3_5TextConfig(**COMMON, **DELTA)


def qwen3_5_vision() -> Any:
    """As Qwen3.5 is published: a vision tower beside the language model."""
    vision = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    ids = range(VOCABULARY - len(VISION_TOKENS), VOCABULARY)
    return transformers.Qwen3_5Config(
        text_config=qwen3_5().to_dict(),
        vision_config={**vision, "out_hidden_size": COMMON["hidden_size"]},
        **dict(zip(VISION_TOKENS, ids, strict=True)),
    )


def granite() -> Any:
    return transformers.GraniteMoeHybridConfig(
        **COMMON,
        num_hidden_layers=8,
        layer_types=(["mamba"] * 3 + ["attention"]) * 2,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=256,
        mamba_n_heads=8,
        mamba_n_groups=1,
        mamba_d_state=32,
        mamba_d_head=32,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_chunk_size=64,
        position_embedding_type="rope",
    )


def nemotron() -> Any:
    return transformers.NemotronHConfig(
        **COMMON,
        num_hidden_layers=12,
        hybrid_override_pattern="M-M-*-M-M-*-",
        head_dim=32,
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=32,
        n_groups=1,
        conv_kernel=4,
        chunk_size=64,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "qwen3_next": qwen3_next,
    "qwen3_5": qwen3_5,
    "qwen3_5_vision": qwen3_5_vision,
    "granite": granite,
    "nemotron": nemotron,
}


def make(name: str, folder: pathlib.Path, seed: int = 0, spread: float = SPREAD) -> pathlib.Path:
    """A model directory `folder`/name-seed, made where it is not there.

    Matrices are normal with deviation `spread`: with the usual 0.02 the layers hardly move the
    stream.  Decays are slow, some tens of tokens: with the usual ones the layers forget within two
    tokens.  Mamba's way around its state is closed.  A lost state would not show in any of them.
    """
    path = folder / f"{name}-{seed}"
    if (path / "config.json").exists():
        return path
    torch.manual_seed(seed)
    sees = name.endswith("_vision")
    kind = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = kind.from_config(MODELS[name](), dtype=torch.bfloat16)
    for name_of, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=spread)
        elif name_of.endswith(".A_log"):
            torch.nn.init.uniform_(parameter, *SLOW_DECAY[name_of.split(".")[-2]])
        elif name_of.endswith(".D"):
            torch.nn.init.zeros_(parameter)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    for file, content in PROCESSORS.items() if sees else ():
        (path / file).write_text(json.dumps({**PATCHES, **content}))
    return path


def make_lora(model: pathlib.Path, folder: pathlib.Path, seed: int) -> pathlib.Path:
    """A LoRA adapter of `model` in `folder`: random, on attention, MLPs and linear mixers."""
    weights = safetensors.torch.load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key in sorted(weights):
        name, _, kind = key.rpartition(".")
        if kind != "weight" or name.rpartition(".")[2] not in LORA_TARGETS:
            continue
        rows, columns = weights[key].shape
        for part, shape in (("A", (LORA_RANK, columns)), ("B", (rows, LORA_RANK))):
            drawn = LORA_SPREAD * torch.randn(shape, generator=generator)
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = drawn.bfloat16()
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    described = {"r": LORA_RANK, "lora_alpha": LORA_RANK, "target_modules": LORA_TARGETS}
    described |= {"peft_type": "LORA", "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def tokenizer() -> Any:
    """A token is a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>", *alphabet]
    names += [f"<x{number}>" for number in range(len(names), VOCABULARY - len(VISION_TOKENS))]
    names += VISION_TOKENS.values()
    inner = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
