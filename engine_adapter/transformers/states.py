"""A transformers cache, as the adapter sees it: linear states, keys and values.

::

    DynamicCache.layers[i]
       linear     conv_states[0]  [1, channels, kernel]     recurrent_states[0]  [1, ...] float32
       attention  keys, values    [1, heads, tokens, dim]   MLA: latent and rotary part, 1 head
       parallel   both

`ScratchCache` is what a replay hands to the model's own layers instead: it starts from nothing,
keeps what they write, and stops the last layer once its state is there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from anchorstore.families import AnchorSpec
from engine_adapter.replay import LinearState, States


class StateReached(Exception):
    """The last layer of a group has written its state; the rest of it is not wanted."""


class ScratchCache:
    """The part of a cache that linear layers use, for one call from zero.

    `stop_layer`: its state ends the call with StateReached; None computes every layer whole.
    """

    def __init__(self, stop_layer: int | None) -> None:
        self._stop_layer = stop_layer
        self._conv: dict[int, torch.Tensor] = {}
        self._recurrent: dict[int, torch.Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Nothing: a replay starts from zero."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Nothing: a replay starts from zero."""

    def is_recording_past(self, layer_idx: int) -> bool:
        """A replay never rolls back."""
        return False

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, *, conv_kernel_size: int, **_: Any
    ) -> torch.Tensor:
        """Keep the last `conv_kernel_size` columns of [batch, channels, T], zeros before them."""
        kept = conv_states[..., -conv_kernel_size:]
        self._conv[layer_idx] = functional.pad(kept, (conv_kernel_size - kept.shape[-1], 0))
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, **_: Any
    ) -> torch.Tensor:
        """Keep the state; stop here where that is all that was wanted."""
        self._recurrent[layer_idx] = recurrent_states
        if layer_idx == self._stop_layer:
            raise StateReached
        return recurrent_states

    def states(self) -> dict[int, LinearState]:
        """What the layers wrote, by layer."""
        assert self._conv.keys() == self._recurrent.keys(), (self._conv, self._recurrent)
        return {
            layer: LinearState(conv, self._recurrent[layer]) for layer, conv in self._conv.items()
        }


def linear_states(cache: Any, spec: AnchorSpec) -> dict[int, LinearState]:
    """Copies of every linear layer's state in a DynamicCache."""
    return {
        layer: LinearState(
            cache.layers[layer].conv_states[0].clone(),
            cache.layers[layer].recurrent_states[0].clone(),
        )
        for layer, kind in enumerate(spec.layer_kinds)
        if kind in "LB"
    }


def put_linear_states(cache: Any, states: States) -> None:
    """Set the linear states of a fresh DynamicCache; layers not in `states` stay at zero."""
    for layer, state in states.items():
        cache.update_conv_state(state.conv, layer, conv_kernel_size=state.conv.shape[-1])
        cache.update_recurrent_state(state.recurrent, layer)


def attention_tensors(cache: Any, spec: AnchorSpec) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values (MLA: latents and rotary parts), [heads, tokens, dim], of each
    attention layer in the model's order; views of the cache."""
    return [
        (cache.layers[layer].keys[0], cache.layers[layer].values[0])
        for layer in spec.attention_layers
    ]


def put_attention_tensors(
    cache: Any, spec: AnchorSpec, tensors: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Fill a fresh DynamicCache's attention layers; shapes as attention_tensors gives them."""
    for layer, (keys, values) in zip(spec.attention_layers, tensors, strict=True):
        cache.update(keys.unsqueeze(0), values.unsqueeze(0), layer)
