"""Goal: replay gives the states that a prefill leaves, and rows between gaps act as specified.
Method: tiny random models of every family with long memories.  All rows in one call must agree to
the last bit; sparse rows are compared with a slow reference that runs one run at a time; damaged
anchors must be noticed by the very comparison that passes for good ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from engine_adapter.capture import AnchorRecorder
from engine_adapter.packing import kept_positions
from engine_adapter.replay import LinearState, ReplayHit, Tail, replay
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.states import linear_states
from tests.adapter.prefill import PAGE, largest_error, load, prefill, relative_error
from tests.adapter.zoo import FAMILY_NAMES, random_tokens, tiny_model

RESET_FAMILIES = ["kimi_linear", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next"]
SERIAL_FAMILIES = sorted(set(FAMILY_NAMES) - {"falcon_h1"})
"""falcon_h1 runs attention beside its mixer: of such a layer only the state is ever computed."""

TOLERANCE = 2e-5  # float32, other order of sums


@pytest.fixture(scope="module", params=FAMILY_NAMES)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return load(request.param)


@pytest.mark.parametrize("count", [128, 137])
def test_replay_of_all_rows_equals_the_prefill_states(loaded: LoadedModel, count: int) -> None:
    truth = prefill(loaded, count)
    (states,) = replay(loaded.stack, [truth.hit()])
    assert largest_error(states, truth.states) == 0.0


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_replay_of_pages_of_64_rows_equals_the_prefill_states(name: str) -> None:
    """The same through anchor blocks, as an engine stores them: 64 rows of each 64-token page."""
    loaded = LoadedModel.wrap(tiny_model(name), 64, 64)
    tokens, cache = random_tokens(192), loaded.new_cache()
    recorder = AnchorRecorder(loaded.anchor_layout)
    loaded.forward(tokens, cache, recorder, 1)
    blocks = recorder.pages(0, 3)
    anchors = blocks.transpose(0, 1).reshape(loaded.spec.stored_groups, 192, -1)
    hit = ReplayHit(kept_positions(0, 3, 64, 64), torch.tensor(tokens), anchors)
    (states,) = replay(loaded.stack, [hit])
    assert largest_error(states, linear_states(cache, loaded.spec)) == 0.0


@pytest.mark.parametrize("name", ["qwen3_5", "granitemoehybrid", "falcon_h1"])
def test_replay_in_bfloat16_of_all_rows_equals_the_prefill_states(name: str) -> None:
    loaded = load(name, dtype=torch.bfloat16)
    truth = prefill(loaded, 100)
    (states,) = replay(loaded.stack, [truth.hit()])
    assert largest_error(states, truth.states) == 0.0


@pytest.mark.parametrize("name", SERIAL_FAMILIES)
def test_replay_stopped_at_the_state_equals_the_whole_last_layer(name: str) -> None:
    loaded = load(name)
    truth = prefill(loaded, 90)
    hit = truth.hit(kept_positions(0, 11, 3, PAGE))
    (short,) = replay(loaded.stack, [hit], Tail.STATE_ONLY)
    (whole,) = replay(loaded.stack, [hit], Tail.FULL)
    assert largest_error(short, whole) == 0.0


def _mutations(hit: ReplayHit) -> dict[str, ReplayHit]:
    anchors, tokens = hit.anchors, hit.tokens
    return {
        "zeroed anchors": ReplayHit(hit.positions, tokens, torch.zeros_like(anchors)),
        "swapped groups": ReplayHit(hit.positions, tokens, anchors.flip(0)),
        "shifted rows": ReplayHit(hit.positions, tokens, anchors.roll(1, dims=1)),
        "shifted tokens": ReplayHit(hit.positions, tokens.roll(1), anchors),
        "one row off": ReplayHit(hit.positions[1:], tokens[1:], anchors[:, 1:]),
    }


def test_replay_of_damaged_rows_does_not_equal_the_prefill_states(loaded: LoadedModel) -> None:
    truth = prefill(loaded, 96)
    for name, hit in _mutations(truth.hit()).items():
        (states,) = replay(loaded.stack, [hit])
        assert relative_error(states, truth.states) > 1e-3, name


def test_replay_of_several_hits_equals_each_alone(loaded: LoadedModel) -> None:
    lengths = [(96, 3), (40, 3), (96, 3), (64, PAGE), (17, 1)]
    hits = []
    for seed, (count, rows) in enumerate(lengths):
        truth = prefill(loaded, count, seed)
        hits.append(truth.hit(kept_positions(0, count // PAGE, rows, PAGE)))
    nothing = truth.hit(np.empty(0, np.int64))
    together = replay(loaded.stack, [*hits[:2], nothing, *hits[2:]])
    assert together.pop(2) == {}
    for hit, states in zip(hits, together, strict=True):
        (alone,) = replay(loaded.stack, [hit])
        assert relative_error(states, alone) < TOLERANCE


class _RunCache:
    """Slow reference of `reset`: carries the recurrence over, forgets the convolution."""

    def __init__(self) -> None:
        self.conv: dict[int, torch.Tensor] = {}
        self.recurrent: dict[int, torch.Tensor] = {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Every run starts its convolution anew."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.recurrent.get(layer_idx)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, states: torch.Tensor, layer_idx: int, conv_kernel_size: int, **_: Any
    ) -> torch.Tensor:
        self.conv[layer_idx] = functional.pad(states, (conv_kernel_size, 0))[
            ..., -conv_kernel_size:
        ]
        return states

    def update_recurrent_state(
        self, states: torch.Tensor, layer_idx: int, **_: Any
    ) -> torch.Tensor:
        self.recurrent[layer_idx] = states
        return states


@torch.no_grad()
def _run_by_run(loaded: LoadedModel, hit: ReplayHit) -> dict[int, LinearState]:
    """What `reset` means, one run of neighbouring rows at a time."""
    breaks = np.flatnonzero(np.diff(hit.positions) != 1) + 1
    cache = _RunCache()
    for number, group in enumerate(loaded.spec.groups):
        entry = loaded.stack.embed(hit.tokens) if number == 0 else hit.anchors[number - 1]
        for index in np.split(np.arange(len(hit.positions)), breaks):
            hidden = entry[torch.from_numpy(index)].unsqueeze(0)
            for layer in group:
                module = loaded.model.model.layers[layer]
                hidden = module(hidden, cache=cache, attention_mask=None, position_embeddings=None)
    return {layer: LinearState(cache.conv[layer], cache.recurrent[layer]) for layer in cache.conv}


@pytest.mark.parametrize("rows", [1, 2, 4, 5, PAGE - 1])
@pytest.mark.parametrize("name", RESET_FAMILIES)
def test_reset_of_runs_in_one_call_equals_run_by_run(name: str, rows: int) -> None:
    loaded = load(name)
    assert loaded.spec.gap_mode == "reset"
    truth = prefill(loaded, 72)
    hit = truth.hit(kept_positions(1, 8, rows, PAGE)[rows // 2 :])
    (states,) = replay(loaded.stack, [hit])
    assert relative_error(states, _run_by_run(loaded, hit)) < TOLERANCE


@pytest.mark.parametrize("name", sorted(set(FAMILY_NAMES) - set(RESET_FAMILIES)))
def test_concat_of_runs_treats_them_as_neighbours(name: str) -> None:
    loaded = load(name)
    assert loaded.spec.gap_mode == "concat"
    truth = prefill(loaded, 72)
    sparse = truth.hit(kept_positions(1, 8, 3, PAGE))
    dense = ReplayHit(np.arange(24), sparse.tokens, sparse.anchors)
    (found,), (expected,) = replay(loaded.stack, [sparse]), replay(loaded.stack, [dense])
    assert largest_error(found, expected) == 0.0
