"""What a tapped model leaves behind for the connector, and how both find what they share.

::

    model.__init__ --> taps before the first layer of every stored group
                   --> pool, layers and spec in vLLM's table of a forward pass   <-- connector
                   --> a mark in the configuration: code compiled without taps is never reused
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

from torch import nn

import anchorstore
from anchorstore.errors import ModelError
from anchorstore.families import AnchorSpec, spec_from_config
from anchorstore.layout import AnchorLayout
from anchorstore.model_digest import model_digest
from anchorstore.weights import weights_digest
from engine_adapter.vllm.checks import check, is_ours
from engine_adapter.vllm.facts import facts_of
from engine_adapter.vllm.families import Family, decoder_of, family_of
from engine_adapter.vllm.geometry import shard_count
from engine_adapter.vllm.settings import Settings, settings_from_extra
from engine_adapter.vllm.taps import OWNER, AnchorPool, tap

MODEL = "anchorstore.model"
MARK = "anchorstore"
PLAIN_LOAD_FORMATS = frozenset(
    ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer")
)
"""They read the safetensors files as they are, each in its way."""


@dataclasses.dataclass(frozen=True, slots=True)
class TappedModel:
    """A model with taps, as the connector finds it.

    Attributes:
        model: the whole of it, which vLLM gives its LoRA manager to.
        decoder: the module with the layers.
    """

    model: Any
    decoder: Any
    family: Family
    spec: AnchorSpec


def settings_of(vllm_config: Any) -> Settings | None:
    """Our settings; None where another connector, or none, is configured.

    ConfigError for wrong settings, and where ours is one of several connectors.
    """
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        return None
    extra = transfer.kv_connector_extra_config
    return settings_from_extra(extra) if is_ours(transfer.kv_connector, extra) else None


def spec_of(vllm_config: Any) -> AnchorSpec:
    """Groups and layouts of the configured model, in the dtype that it runs in."""
    model = vllm_config.model_config
    spec = spec_from_config(model.hf_text_config.to_dict())
    return dataclasses.replace(spec, dtype=str(model.dtype).removeprefix("torch."))


def anchor_layout_of(spec: AnchorSpec, settings: Settings) -> AnchorLayout:
    """Layout of a page's anchors, in the dtype that is asked for."""
    dtype = None if settings.anchor_dtype == "model" else settings.anchor_dtype
    return spec.anchor_layout(settings.rows_per_page, dtype, settings.page_tokens)


def model_directory(vllm_config: Any) -> pathlib.Path:
    """Where the weights lie; nothing is downloaded."""
    name = vllm_config.model_config.model
    path = pathlib.Path(name)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        revision = vllm_config.model_config.revision
        return pathlib.Path(snapshot_download(name, revision=revision, local_files_only=True))
    except OSError as error:
        raise ModelError(f"vllm: no weights of {name!r} on this machine: {error}") from error


def digest_of(vllm_config: Any, state_specs: Iterable[Any]) -> bytes:
    """Names what the configured model computes: its weights, and all that changes its numbers.

    `state_specs`: vLLM's cache specs of the linear layers, whose dtypes their states are kept in.
    """
    model, load_format = vllm_config.model_config, str(vllm_config.load_config.load_format)
    states = {"/".join(str(dtype) for dtype in spec.dtypes) for spec in state_specs}
    return model_digest(
        weights_digest(model_directory(vllm_config)),
        model.hf_text_config.to_dict(),
        str(model.dtype).removeprefix("torch."),
        quantization=model.quantization,
        quantization_args=model.quantization_config,
        quantization_config=getattr(model.hf_config, "quantization_config", None),
        load_format="" if load_format in PLAIN_LOAD_FORMATS else load_format,
        states=sorted(states),
    )


def install(model: nn.Module, vllm_config: Any) -> None:
    """Taps `model`, which vLLM has just built; nothing where our connector is not configured.

    ModelError where the configuration cannot work, before the weights are read.
    """
    settings = settings_of(vllm_config)
    if settings is None:
        return
    check(facts_of(vllm_config))
    spec = spec_of(vllm_config)
    family = family_of(spec.model_type)
    shard_count(spec.kv_heads, settings.kv_shards)
    decoder = decoder_of(model)
    layout = anchor_layout_of(spec, settings)
    table = vllm_config.compilation_config.static_forward_context
    table[OWNER] = AnchorPool(layout, family.adds_residual)
    table[MODEL] = TappedModel(model, decoder, family, spec)
    stored = spec.groups[1 if spec.first_group_is_embedding else 0 :]
    tap([decoder.layers[group[0]] for group in stored])
    if isinstance(vllm_config.additional_config, dict):
        vllm_config.additional_config[MARK] = anchorstore.__version__
