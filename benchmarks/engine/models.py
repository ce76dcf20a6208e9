"""Model folders that a server can load: a tokenizer for those without one, random weights.

::

    trained folder (no tokenizer) --serving_copy--> cache/serving-.../  links + a tokenizer
    a size of SIZES --make_random--> cache/random-.../                  config, weights, tokenizer

Servers want a tokenizer even where prompts are token ids.  The one written here maps id N to the
word "tN" and exists so that a server starts.  `make_random` needs torch and transformers and runs
in the server's environment: python -m benchmarks.engine.models FOLDER HIDDEN.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.engine.events import EndpointError

VOCABULARY = 512
CONTEXT_TOKENS = 8192
TOKENIZER = "tokenizer.json"
SIZES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Hidden sizes of the random-weight models, small to large."""


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What a trace must know of a model.  Sizes in tokens."""

    folder: pathlib.Path
    model_type: str
    vocabulary: int
    context_tokens: int


class ModelFolderError(EndpointError):
    """A folder that is no model of ours to serve."""


def facts(folder: pathlib.Path) -> ModelFacts:
    """Reads config.json; ModelFolderError where there is none or it says nothing useful."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{folder} is no model folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelFolderError(f"{path} holds no object")
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    vocabulary, context = text.get("vocab_size"), text.get("max_position_embeddings")
    if not isinstance(vocabulary, int) or not isinstance(context, int):
        raise ModelFolderError(f"{path} has no vocab_size or no max_position_embeddings")
    return ModelFacts(folder, str(config.get("model_type")), vocabulary, context)


def tokenizer_files(vocabulary: int) -> dict[str, str]:
    """Files of a tokenizer in which the word "tN" is id N."""
    words = {f"t{number}": number for number in range(vocabulary)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0"}
    return {TOKENIZER: json.dumps(tokenizer), "tokenizer_config.json": json.dumps(settings)}


def has_tokenizer(folder: pathlib.Path) -> bool:
    """Whether a server finds a tokenizer there."""
    return any((folder / name).is_file() for name in (TOKENIZER, "tokenizer.model", "vocab.json"))


def serving_copy(folder: pathlib.Path, cache: pathlib.Path) -> pathlib.Path:
    """A folder that can be served: `folder`, or links to its files with a tokenizer beside them."""
    known = facts(folder)
    if has_tokenizer(folder):
        return folder
    source = folder.resolve()
    mark = hashlib.sha256(str(source).encode()).hexdigest()[:8]
    copy = cache / f"serving-{source.name}-{mark}"
    copy.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.suffix in (".json", ".safetensors") and entry.is_file():
            link = copy / entry.name
            link.unlink(missing_ok=True)
            link.symlink_to(entry)
    for name, text in tokenizer_files(known.vocabulary).items():
        (copy / name).write_text(text, encoding="utf-8")
    return copy


def random_config(hidden: int) -> Mapping[str, Any]:
    """A Qwen3-Next of 8 layers, LLLA LLLA, with linear heads of 128 as the real ones have."""
    heads = max(2, hidden // 256 * 2)
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": 8,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT_TOKENS,
        "linear_num_key_heads": max(1, heads // 2),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": hidden,
        "shared_expert_intermediate_size": hidden,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def random_folder(cache: pathlib.Path, hidden: int) -> pathlib.Path:
    """Where the model of that size lies once it is made."""
    mark = hashlib.sha256(json.dumps(random_config(hidden)).encode()).hexdigest()[:8]
    return cache / f"random-{hidden}-{mark}"


def make_random(folder: pathlib.Path, hidden: int) -> None:
    """Writes the model of that size, the same weights each time; whole, or not there at all."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3NextConfig

    torch.manual_seed(0)
    config = Qwen3NextConfig(**random_config(hidden))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    model.save_pretrained(unfinished)
    for name, text in tokenizer_files(VOCABULARY).items():
        (unfinished / name).write_text(text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def main() -> int:
    """Makes one random-weight model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.models")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("hidden", type=int, choices=SIZES)
    arguments = parser.parse_args()
    make_random(arguments.folder, arguments.hidden)
    print(f"{arguments.folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
