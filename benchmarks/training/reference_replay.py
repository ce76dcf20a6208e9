"""A small suffix replay on transformers models, independent of the product's own.

The evaluation of the shipped models, and tests, compare against it. It rebuilds the state of the
linear layers from *anchors*: the hidden states that entered a group of consecutive linear layers
at some positions of the prefix. Attention KV is always the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, Qwen3_5ForCausalLM

States = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Layer -> (conv window, recurrent state)."""


@dataclass(frozen=True)
class Prefix:
    """A prefilled prefix: its cache, and what entered each group of linear layers."""

    cache: DynamicCache
    entries: dict[int, torch.Tensor]

    @property
    def length(self) -> int:
        """Tokens in the prefix."""
        return next(iter(self.entries.values())).shape[1]


def linear_groups(model: Qwen3_5ForCausalLM) -> list[list[int]]:
    """Runs of consecutive linear layers."""
    groups: list[list[int]] = []
    previous = ""
    for index, kind in enumerate(model.config.layer_types):
        if kind == "linear_attention":
            if previous != kind:
                groups.append([])
            groups[-1].append(index)
        previous = kind
    return groups


def prefill(model: Qwen3_5ForCausalLM, tokens: torch.Tensor) -> Prefix:
    """Run ``tokens`` (rows, length), keeping the group entries."""
    entries: dict[int, torch.Tensor] = {}
    handles = []
    for group in linear_groups(model):

        def keep(_: Any, args: tuple[torch.Tensor, ...], first: int = group[0]) -> None:
            entries[first] = args[0].detach()

        handles.append(model.model.layers[group[0]].register_forward_pre_hook(keep))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model.model(input_ids=tokens, cache=cache, use_cache=True)
    for handle in handles:
        handle.remove()
    return Prefix(cache, entries)


def page_end_positions(length: int, count: int, rows: int = 4, page: int = 64) -> list[int]:
    """The newest ``count`` of the last ``rows`` positions of every ``page``, ascending."""
    chosen = [place for place in range(length) if place % page >= page - rows]
    return chosen[max(0, len(chosen) - count) :]


def dense_positions(length: int, count: int) -> list[int]:
    """The last ``count`` positions."""
    return list(range(max(0, length - count), length))


def contiguous_runs(positions: Sequence[int]) -> list[list[int]]:
    """``[3, 4, 9]`` -> ``[[3, 4], [9]]``."""
    runs: list[list[int]] = []
    for place in positions:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def replay(model: Qwen3_5ForCausalLM, prefix: Prefix, positions: Sequence[int]) -> States:
    """States rebuilt from the anchors at ``positions``, the conv window cleared at every gap."""
    cache = DynamicCache(config=model.config)
    unused: Any = None
    with torch.no_grad():
        for group in linear_groups(model):
            for number, run in enumerate(contiguous_runs(positions)):
                if number:
                    for index in group:
                        cache.layers[index].conv_states[0].zero_()
                hidden = prefix.entries[group[0]][:, run]
                for index in group:
                    layer = model.model.layers[index]
                    hidden = layer(hidden, position_embeddings=unused, cache=cache)
    return read_states(model, cache)


def read_states(model: Qwen3_5ForCausalLM, cache: DynamicCache) -> States:
    """Copies of the linear states in ``cache``."""
    states: States = {}
    for group in linear_groups(model):
        for index in group:
            layer = cache.layers[index]
            states[index] = (layer.conv_states[0].clone(), layer.recurrent_states[0].clone())
    return states


def resume(
    model: Qwen3_5ForCausalLM, prefix: Prefix, states: States | None, tokens: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities after each of ``tokens``, from exact KV and ``states`` (None: zero)."""
    cache = DynamicCache(config=model.config)
    linear = {index for group in linear_groups(model) for index in group}
    exact = read_states(model, prefix.cache)
    for index, layer in enumerate(cache.layers):
        if index not in linear:
            source = prefix.cache.layers[index]
            layer.update(source.keys.clone(), source.values.clone())
            continue
        conv, recurrent = exact[index] if states is None else states[index]
        keep = 0.0 if states is None else 1.0
        layer.update_conv_state(conv * keep, conv_kernel_size=model.config.linear_conv_kernel_dim)
        layer.update_recurrent_state(recurrent * keep)
    with torch.no_grad():
        logits = model(input_ids=tokens, cache=cache, use_cache=True).logits
    return logits.float().log_softmax(-1)
