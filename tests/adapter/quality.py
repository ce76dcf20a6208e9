"""Prefix, state, continuation: the quality gates' bench, all of it the product's own code.

A trial prefills once and keeps the anchors as an engine would.  Each `logits` call starts a fresh
cache with the exact keys and values, the given linear states, and the true continuation.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

import engine_adapter
from engine_adapter.budget import Budget
from engine_adapter.capture import AnchorRecorder
from engine_adapter.packing import kept_positions
from engine_adapter.replay import LayerStack, ReplayHit, States, replay
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.states import (
    attention_tensors,
    linear_states,
    put_attention_tensors,
    put_linear_states,
)

MODELS = pathlib.Path(engine_adapter.__file__).parent / "models"
PAGE = 64

Mutation = Callable[[LayerStack, ReplayHit], tuple[LayerStack, ReplayHit]]
"""Damages what enters the groups: the stored rows, and the embedding that enters group 0."""


class OtherEmbedding:
    """A stack into whose group 0 other rows go than the tokens' embedding."""

    def __init__(self, stack: LayerStack, rows: torch.Tensor) -> None:
        self._stack, self._rows = stack, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The other rows [k, hidden], whatever the tokens."""
        assert tokens.shape == self._rows.shape[:1]
        return self._rows


def _entering(
    stack: LayerStack, hit: ReplayHit, entries: torch.Tensor
) -> tuple[LayerStack, ReplayHit]:
    """Stack and hit whose groups get `entries` [groups, k, hidden], group 0's first."""
    other: Any = OtherEmbedding(stack, entries[0])
    return other, ReplayHit(hit.positions, hit.tokens, entries[1:])


def _entries(stack: LayerStack, hit: ReplayHit) -> torch.Tensor:
    return torch.cat([stack.embed(hit.tokens).unsqueeze(0), hit.anchors])


def zeroed_anchors(stack: LayerStack, hit: ReplayHit) -> tuple[LayerStack, ReplayHit]:
    """Every row that enters a group is zero."""
    return _entering(stack, hit, torch.zeros_like(_entries(stack, hit)))


def stored_rows_zeroed(stack: LayerStack, hit: ReplayHit) -> tuple[LayerStack, ReplayHit]:
    """What the store gave is zero; group 0 still enters with the embedding."""
    return stack, ReplayHit(hit.positions, hit.tokens, torch.zeros_like(hit.anchors))


def swapped_groups(stack: LayerStack, hit: ReplayHit) -> tuple[LayerStack, ReplayHit]:
    """Every group gets its neighbour's rows."""
    return _entering(stack, hit, _entries(stack, hit).roll(1, dims=0))


def shifted_rows(stack: LayerStack, hit: ReplayHit) -> tuple[LayerStack, ReplayHit]:
    """Every page has the rows of the page before it; the newest page's come first."""
    page = hit.positions // PAGE
    rows = int((page == page[-1]).sum())
    return _entering(stack, hit, _entries(stack, hit).roll(rows, dims=1))


MUTATIONS: dict[str, Mutation] = {
    "zeroed anchors": zeroed_anchors,
    "swapped groups": swapped_groups,
    "shifted rows": shifted_rows,
}


class Trial:
    """One prefix of whole pages and its true continuation."""

    def __init__(self, loaded: LoadedModel, tokens: Sequence[int], boundary: int) -> None:
        """`tokens[:boundary]` is the prefix; `boundary` is a page multiple."""
        self._loaded = loaded
        self._tokens, self._boundary = list(tokens), boundary
        self._cache = loaded.new_cache()
        recorder = AnchorRecorder(loaded.anchor_layout)
        loaded.forward(self._tokens[:boundary], self._cache, recorder, 1)
        self._pages = recorder.pages(0, boundary // PAGE)

    def hit(self, budget: Budget) -> ReplayHit:
        """The last rows that `budget` replays."""
        layout, pages = self._loaded.anchor_layout, self._boundary // PAGE
        rows = budget.rows(self._boundary, pages)
        positions = kept_positions(0, pages, layout.rows, PAGE)[-rows:]
        flat = self._pages.transpose(0, 1).reshape(layout.groups, -1, layout.hidden)
        kept = torch.tensor(self._tokens)[torch.from_numpy(positions)]
        return ReplayHit(positions, kept, flat[:, -rows:])

    def exact(self) -> torch.Tensor:
        """Logits [continuation, vocabulary] after the prefill's own states."""
        return self._logits(linear_states(self._cache, self._loaded.spec))

    def zero(self) -> torch.Tensor:
        """Logits after zero states."""
        return self._logits({})

    def replayed(self, budget: Budget, mutation: Mutation | None = None) -> torch.Tensor:
        """Logits after states replayed from the budget's rows, damaged where a mutation says."""
        stack: LayerStack = self._loaded.stack
        hit = self.hit(budget)
        if mutation is not None:
            stack, hit = mutation(stack, hit)
        (states,) = replay(stack, [hit])
        return self._logits(states)

    def _logits(self, states: States) -> torch.Tensor:
        cache = self._loaded.new_cache()
        put_attention_tensors(
            cache, self._loaded.spec, attention_tensors(self._cache, self._loaded.spec)
        )
        put_linear_states(cache, states)
        recorder = AnchorRecorder(self._loaded.anchor_layout, self._boundary)
        rest = self._tokens[self._boundary :]
        return self._loaded.forward(rest, cache, recorder, len(rest))


def divergence(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL [positions] in nats of `other` from `reference`, both logits."""
    exact, found = reference.log_softmax(-1), other.log_softmax(-1)
    return (exact.exp() * (exact - found)).sum(-1)


def agreement(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """1.0 [positions] where both put the same token first."""
    return (reference.argmax(-1) == other.argmax(-1)).float()
