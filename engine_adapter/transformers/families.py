"""How each model family's linear layers are called, and how a column is kept from acting.

The layers are the model's own; this file only says what differs between families::

    qwen3_5, qwen3_5_moe, qwen3_next, olmo_hybrid   gated delta net     runs are reset
    kimi_linear                                     delta attention     runs are reset
    bamba, granitemoehybrid, nemotron_h, falcon_h1  Mamba-2             runs are concatenated
    jamba                                           Mamba-1             runs are concatenated

A column that holds no row must change nothing.  The layer's padding mask zeroes what enters its
convolution.  Left of the first row that is enough: a zero state stays zero.  Between runs it is
not: there the gates must close too, g = 0 (no decay) and beta = 0 (no write).  `gates` names the
sub-modules of the mixer whose output decides that, with the value that closes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from anchorstore.errors import ModelError
from anchorstore.families import AnchorSpec
from engine_adapter.replay import LinearState, Tail
from engine_adapter.transformers.states import ScratchCache, StateReached

CLOSED_LOGIT = -math.inf  # sigmoid -> beta = 0; softplus -> g = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """What differs between families.

    Attributes:
        mixer: name of the linear mixer inside a layer.
        gates: sub-module of the mixer -> output that makes a column act as if it were not there.
        mask_argument: the layer's keyword for the linear padding mask.
        continues_in_one_pass: whether several tokens may follow a state in one call.  Jamba's
            scan starts from zero whenever it sees more than one token, so its rows go singly.
    """

    mixer: str
    gates: tuple[tuple[str, float], ...] = ()
    mask_argument: str = "attention_mask"
    continues_in_one_pass: bool = True


FAMILIES: dict[str, Family] = {
    "qwen3_5_text": Family(
        "linear_attn", (("in_proj_a", CLOSED_LOGIT), ("in_proj_b", CLOSED_LOGIT))
    ),
    "qwen3_5_moe_text": Family(
        "linear_attn", (("in_proj_a", CLOSED_LOGIT), ("in_proj_b", CLOSED_LOGIT))
    ),
    "qwen3_next": Family("linear_attn", (("in_proj_ba", CLOSED_LOGIT),)),
    "olmo_hybrid": Family("linear_attn", (("a_proj", CLOSED_LOGIT), ("b_proj", CLOSED_LOGIT))),
    "kimi_linear": Family("self_attn", (("forget_gate", 0.0), ("b_proj", CLOSED_LOGIT))),
    "bamba": Family("mamba"),
    "granitemoehybrid": Family("mamba"),
    "nemotron_h": Family("mixer"),
    "jamba": Family("mamba", continues_in_one_pass=False),
    "falcon_h1": Family("mamba", mask_argument="mamba_attention_mask"),
}


class TransformersStack:
    """The layers of a transformers model, called group by group (a replay.LayerStack)."""

    def __init__(self, model: nn.Module, spec: AnchorSpec) -> None:
        """`model` is a causal language model whose config gave `spec`."""
        if spec.model_type not in FAMILIES:
            raise ModelError(f"model type {spec.model_type!r} is none of {sorted(FAMILIES)}")
        self.spec = spec
        self.family = FAMILIES[spec.model_type]
        self._model = model
        self._base: Any = decoder_of(model)
        self._embed_scale = getattr(self._base, "embedding_multiplier", None)
        self._kernel = int(self._mixer(spec.linear_layers[0]).conv_kernel_size)

    def _mixer(self, layer: int) -> Any:
        return getattr(self._base.layers[layer], self.family.mixer)

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        return self.spec.groups

    @property
    def first_group_is_embedding(self) -> bool:
        return self.spec.first_group_is_embedding

    @property
    def gap_columns(self) -> int:
        return self._kernel - 1 if self.spec.gap_mode == "reset" else 0

    @property
    def stored_group_layers(self) -> list[nn.Module]:
        """First layer of each stored group: where anchors are captured."""
        skipped = 1 if self.first_group_is_embedding else 0
        return [self._base.layers[group[0]] for group in self.spec.groups[skipped:]]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._base.get_input_embeddings()(tokens)
        return rows if self._embed_scale is None else rows * self._embed_scale

    def run_group(
        self, group: Sequence[int], hidden: torch.Tensor, mask: torch.Tensor | None, tail: Tail
    ) -> dict[int, LinearState]:
        stop_layer = group[-1] if tail is Tail.STATE_ONLY else None
        scratch = ScratchCache(stop_layer)
        with self._closed_gates(group, mask):
            try:
                for layer in group:
                    hidden = self._call(layer, hidden, mask, scratch)
            except StateReached:
                assert layer == stop_layer, (layer, stop_layer)
        return scratch.states()

    def _call(
        self, layer: int, hidden: torch.Tensor, mask: torch.Tensor | None, scratch: ScratchCache
    ) -> torch.Tensor:
        arguments: dict[str, Any] = {"cache": scratch, "position_embeddings": None}
        arguments[self.family.mask_argument] = mask
        output = self._base.layers[layer](hidden, **arguments)
        result: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return result

    @contextmanager
    def _closed_gates(self, group: Sequence[int], mask: torch.Tensor | None) -> Iterator[None]:
        """Within, the group's mixers neither decay nor write where `mask` is False."""
        handles = []
        if mask is not None:
            for layer in group:
                if self.spec.layer_kinds[layer] not in "LB":
                    continue
                for name, closed in self.family.gates:
                    gate = self._mixer(layer).get_submodule(name)
                    handles.append(gate.register_forward_hook(_closing(mask, closed)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _closing(mask: torch.Tensor, closed: float) -> Any:
    """A forward hook that sets the output [batch, T, ...] to `closed` where `mask` is False."""

    def hook(_: nn.Module, __: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        outside = ~mask.reshape(*mask.shape, *(1,) * (output.ndim - mask.ndim))
        return output.masked_fill(outside, closed)

    return hook


def decoder_of(model: nn.Module) -> nn.Module:
    """The module that holds `layers` and the input embedding of a causal language model."""
    base: Any = model.model if hasattr(model, "model") else model
    return base.language_model if hasattr(base, "language_model") else base
