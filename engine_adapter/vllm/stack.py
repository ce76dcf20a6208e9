"""A group's layers, called from zero with vLLM's own kernels, into a block of its state cache.

::

    rows [tokens, hidden] --> layer, layer, ... mixer of the last, then stop
                                |      |          |
    metadata for one sequence   state  state      state   written by the kernels themselves into
    that starts here                                      the block that the request was given

The metadata comes from vLLM's own builders, so it fits the kernels of any backend.  They look up
the state's block in a table by the sequence's length; here every other column is the null block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from engine_adapter.vllm.families import CLOSED_LOGIT
from engine_adapter.vllm.install import TappedModel
from engine_adapter.vllm.lora import LoraTables
from engine_adapter.vllm.taps import summands


class StateReached(Exception):
    """The last mixer of a group has written its state; the rest of its layer is not wanted."""


@dataclasses.dataclass(frozen=True, slots=True)
class StateGroup:
    """One of vLLM's groups of linear layers: what builds its metadata, and its layers' names."""

    builder: Any
    block_tokens: int
    names: frozenset[str]


def state_groups(
    vllm_config: Any, groups: Mapping[int, Any], device: torch.device
) -> dict[int, StateGroup]:
    """By number, from vLLM's own cache groups of linear layers."""
    table = vllm_config.compilation_config.static_forward_context
    found = {}
    for number, group in groups.items():
        spec = dataclasses.replace(group.kv_cache_spec, num_prefill_checkpoint_blocks=0)
        backend = table[group.layer_names[0]].get_attn_backend()
        builder = backend.get_builder_cls()(spec, list(group.layer_names), vllm_config, device)
        found[number] = StateGroup(builder, spec.block_size, frozenset(group.layer_names))
    return found


class VllmStack:
    """The layers of the served model, group by group."""

    def __init__(
        self,
        tapped: TappedModel,
        groups: Mapping[int, StateGroup],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        """`groups`: vLLM's groups of linear layers, by number."""
        self.spec, self.family = tapped.spec, tapped.family
        self.device = device
        self.lora = LoraTables(tapped.model, tapped.decoder)
        self._decoder, self._groups, self._config = tapped.decoder, groups, vllm_config
        self._number_of = {name: number for number, each in groups.items() for name in each.names}
        table = vllm_config.compilation_config.static_forward_context
        self._mixers = {name: table[name] for name in self._number_of}
        first = self.mixer(self.spec.linear_layers[0])
        self._kernel = int(first.conv1d.weight.shape[-1])

    @property
    def gap_columns(self) -> int:
        """Empty columns between runs of rows."""
        return self._kernel - 1 if self.spec.gap_mode == "reset" else 0

    def mixer(self, layer: int) -> Any:
        """The linear mixer of a layer."""
        return getattr(self._decoder.layers[layer], self.family.mixer)

    def embed(self, tokens: torch.Tensor, adapter: int) -> torch.Tensor:
        """The stream [tokens, hidden] that enters layer 0, under a LoRA adapter (0: none)."""
        with self.lora.applied(adapter, len(tokens)):
            rows: torch.Tensor = self._decoder.embed_input_ids(tokens)
        scale = getattr(self._decoder, "embedding_multiplier", None)
        return rows if scale is None else rows * scale

    def run_group(
        self,
        group: Sequence[int],
        rows: torch.Tensor,
        mask: torch.Tensor | None,
        blocks: Mapping[int, int],
        adapter: int,
    ) -> None:
        """Run a group over `rows` [tokens, hidden], one sequence, into state `blocks`.

        `mask` [tokens] is False where a column holds no row; None where all do.  `adapter` is the
        number of the LoRA adapter that the layers run under, 0 for none.
        """
        tokens = rows.shape[0]
        positions = torch.arange(tokens, device=self.device)
        dtype = getattr(torch, self.spec.dtype)
        hidden, residual = (
            summands(rows, dtype) if self.family.adds_residual else (rows.to(dtype), None)
        )
        with (
            set_forward_context(self._metadata(tokens, blocks), self._config, num_tokens=tokens),
            self.lora.applied(adapter, tokens),
            self._closed_gates(group, mask),
            self._stopping_after(self.mixer(group[-1])),
        ):
            try:
                for layer in group:
                    hidden, residual = self._decoder.layers[layer](
                        positions=positions, hidden_states=hidden, residual=residual
                    )
            except StateReached:
                pass
            else:
                raise AssertionError(f"layer {group[-1]} has no linear mixer")

    def zero(self, blocks: Mapping[int, int]) -> None:
        """Set the states in `blocks` to zero."""
        for name, number in self._number_of.items():
            for state in self._mixers[name].kv_cache:
                state[blocks[number]].zero_()

    def _metadata(self, tokens: int, blocks: Mapping[int, int]) -> dict[str, Any]:
        """By layer name: one sequence of `tokens` tokens that starts here."""
        found: dict[str, Any] = {}
        starts = torch.tensor([0, tokens], dtype=torch.int32)
        length = torch.tensor([tokens], dtype=torch.int32)
        for number, group in self._groups.items():
            column = (tokens - 1) // group.block_tokens
            table = torch.zeros((1, column + 1), dtype=torch.int32)
            table[0, column] = blocks[number]
            common = CommonAttentionMetadata(
                query_start_loc=starts.to(self.device),
                query_start_loc_cpu=starts,
                seq_lens=length.to(self.device),
                num_reqs=1,
                num_actual_tokens=tokens,
                max_query_len=tokens,
                max_seq_len=tokens,
                block_table_tensor=table.to(self.device),
                slot_mapping=torch.zeros(tokens, dtype=torch.int64, device=self.device),
                is_prefilling=torch.tensor([True]),
                seq_lens_cpu_upper_bound=length,
            )
            metadata = group.builder.build(0, common)
            found.update(dict.fromkeys(group.names, metadata))
        return found

    @contextmanager
    def _closed_gates(self, group: Sequence[int], mask: torch.Tensor | None) -> Iterator[None]:
        """Within, the group's mixers take nothing in, decay nothing and write nothing at gaps."""
        handles = []
        if mask is not None:
            outside = ~mask.unsqueeze(1)
            values = dict.fromkeys(self.family.inputs, 0.0)
            values |= dict.fromkeys(self.family.gates, CLOSED_LOGIT)
            for layer in group:
                if self.spec.layer_kinds[layer] not in "LB":
                    continue
                for name, value in values.items():
                    module = self.mixer(layer).get_submodule(name)
                    handles.append(module.register_forward_hook(_filling(outside, value)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _stopping_after(self, mixer: nn.Module) -> Iterator[None]:
        """Within, StateReached is raised as soon as `mixer` is done."""

        def stop(_: nn.Module, __: Any, ___: Any) -> None:
            raise StateReached

        handle = mixer.register_forward_hook(stop)
        try:
            yield
        finally:
            handle.remove()


def _filling(outside: torch.Tensor, value: float) -> Any:
    """A forward hook that sets the output [tokens, ...] (or the first of several) at gaps."""

    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0].masked_fill(outside, value), *output[1:])
        return output.masked_fill(outside, value)

    return hook
