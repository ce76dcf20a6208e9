"""A real prefill whose every row is kept, the yardstick of the replay tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from engine_adapter.capture import AnchorRecorder
from engine_adapter.packing import Positions
from engine_adapter.replay import LinearState, ReplayHit, States
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.states import linear_states
from tests.adapter.zoo import random_tokens, tiny_model

PAGE = 8
"""Tokens a page in these tests: short pages reach every corner with short prompts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prefill:
    """What one prefill call left behind.

    Attributes:
        tokens: the prompt [n].
        anchors: residual stream entering every stored group, all rows, [groups, n, hidden].
        states: linear states at its end.
        cache: the whole cache.
        logits: of the last token, [vocabulary].
    """

    tokens: list[int]
    anchors: torch.Tensor
    states: dict[int, LinearState]
    cache: Any
    logits: torch.Tensor

    def hit(self, positions: Positions | None = None) -> ReplayHit:
        """The rows at `positions`, all by default."""
        kept = np.arange(len(self.tokens)) if positions is None else positions
        index = torch.from_numpy(kept)
        return ReplayHit(kept, torch.tensor(self.tokens)[index], self.anchors[:, index])


def load(name: str, rows: int = PAGE, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """A tiny random model of family `name`, pages of PAGE tokens."""
    return LoadedModel.wrap(tiny_model(name, dtype=dtype), rows, PAGE)


def prefill(loaded: LoadedModel, count: int, seed: int = 1) -> Prefill:
    """One call over `count` random tokens, `count` any number."""
    tokens = random_tokens(count, seed)
    whole = dataclasses.replace(loaded.anchor_layout, rows=count, page_tokens=count)
    recorder = AnchorRecorder(whole)
    cache = loaded.new_cache()
    logits = loaded.forward(tokens, cache, recorder, 1)
    anchors = recorder.pages(0, 1)[0]
    return Prefill(tokens, anchors, linear_states(cache, loaded.spec), cache, logits[-1])


def largest_error(found: States, expected: States) -> float:
    """Largest absolute difference over conv and recurrent states of all layers."""
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    return max(
        float((getattr(found[layer], part) - getattr(expected[layer], part)).abs().max())
        for layer in expected
        for part in ("conv", "recurrent")
    )


def relative_error(found: States, expected: States) -> float:
    """Largest relative Frobenius error over conv and recurrent states of all layers."""
    assert found.keys() == expected.keys(), (found.keys(), expected.keys())
    return max(
        float((getattr(found[layer], part) - getattr(expected[layer], part)).norm())
        / float(getattr(expected[layer], part).norm() + 1e-30)
        for layer in expected
        for part in ("conv", "recurrent")
    )
