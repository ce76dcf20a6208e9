"""Suffix replay: linear-attention states from a few kept rows of the residual stream.

Linear layers forget.  Each group (the linear layers between two attention layers) is rebuilt on
its own, from a zero state, by running only its layers over the rows that entered it::

    anchors of group g     layer 1        layer 2        layer 3 (last of the group)
    [hits, T, hidden] ---> mixer, FFN --> mixer, FFN --> mixer up to its state, then stop
                             |              |              |
                           state          state          state        conv + recurrent

Inputs of every group are exact, so an error never leaves its group; keys and values are not
touched.  Group 0 enters with the token embedding, which is rebuilt from the token ids.  In a
group's last layer only the state is wanted: no output projection, no FFN.  Several hits run as
one batch (packing.py); with all rows of a prefix in one call the states equal a prefill's exactly.

This file knows tensors and groups; a LayerStack knows how one engine calls its layers.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from engine_adapter.packing import Packing, Positions, pack


class Tail(enum.Enum):
    """How far the last layer of a group is computed."""

    STATE_ONLY = "state_only"  # stop once the state is there: the rule
    FULL = "full"  # the whole layer: what tests compare the rule with


@dataclasses.dataclass(frozen=True, slots=True)
class LinearState:
    """What one linear layer remembers.

    Attributes:
        conv: the last inputs of its short convolution, [batch, channels, kernel].
        recurrent: its recurrent state, [batch, ...], float32.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor

    def of(self, index: int) -> LinearState:
        """The state of one batch element, batch kept as 1."""
        return LinearState(self.conv[index : index + 1], self.recurrent[index : index + 1])


States = Mapping[int, LinearState]
"""Linear states by layer index; a layer that is absent starts from zero."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayHit:
    """The kept rows of one prefix.

    Attributes:
        positions: token positions [k], ascending.
        tokens: token ids [k] at these positions.
        anchors: residual stream entering each stored group, [stored groups, k, hidden].
    """

    positions: Positions
    tokens: torch.Tensor
    anchors: torch.Tensor

    def __post_init__(self) -> None:
        rows = len(self.positions)
        assert self.tokens.shape == (rows,), (self.tokens.shape, rows)
        assert self.anchors.shape[1] == rows, (self.anchors.shape, rows)


class LayerStack(Protocol):
    """The layers of one engine's model, as a replay sees them."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """Layer indices of each group."""

    @property
    def first_group_is_embedding(self) -> bool:
        """Whether group 0 enters with the token embedding and is not stored."""

    @property
    def gap_columns(self) -> int:
        """Empty columns between runs: kernel - 1 where runs are reset, 0 where concatenated."""

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Residual stream [rows, hidden] that enters layer 0 for `tokens` [rows]."""

    def run_group(
        self, group: Sequence[int], hidden: torch.Tensor, mask: torch.Tensor | None, tail: Tail
    ) -> dict[int, LinearState]:
        """Run a group's layers from zero over `hidden` [batch, T, hidden].

        `mask` [batch, T] is True where a column holds a row, None where all do; other columns
        change neither convolution nor recurrence.
        """


@torch.no_grad()
def replay(
    stack: LayerStack, hits: Sequence[ReplayHit], tail: Tail = Tail.STATE_ONLY
) -> list[States]:
    """Linear states at the end of each hit's rows, all hits in one batch.

    Returns one mapping of layer to LinearState (batch 1) a hit; empty for a hit without rows.
    """
    filled = [index for index, hit in enumerate(hits) if len(hit.positions)]
    results: list[dict[int, LinearState]] = [{} for _ in hits]
    if not filled:
        return list(results)
    packed = [hits[index] for index in filled]
    packing = pack([hit.positions for hit in packed], stack.gap_columns)
    offset = 1 if stack.first_group_is_embedding else 0
    stored = len(stack.groups) - offset
    for hit in packed:
        assert hit.anchors.shape[0] == stored, (hit.anchors.shape, stored)
    mask = packing.mask()
    mask_tensor = None if mask is None else torch.from_numpy(mask).to(packed[0].anchors.device)
    for number, group in enumerate(stack.groups):
        if number < offset:
            rows = [stack.embed(hit.tokens) for hit in packed]
        else:
            rows = [hit.anchors[number - offset] for hit in packed]
        states = stack.run_group(group, _spread(rows, packing), mask_tensor, tail)
        for element, index in enumerate(filled):
            results[index].update({layer: state.of(element) for layer, state in states.items()})
    return list(results)


def _spread(rows: Sequence[torch.Tensor], packing: Packing) -> torch.Tensor:
    """Rows [k, hidden] of each hit in their columns of [hits, T, hidden], zeros elsewhere."""
    if len(rows) == 1 and len(rows[0]) == packing.length:
        return rows[0].unsqueeze(0)
    batch = rows[0].new_zeros((len(rows), packing.length, rows[0].shape[-1]))
    for element, (each, columns) in enumerate(zip(rows, packing.columns, strict=True)):
        batch[element, torch.from_numpy(columns)] = each
    return batch
