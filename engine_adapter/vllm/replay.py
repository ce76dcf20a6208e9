"""Anchors -> linear states in the blocks that a request was given.

::

    anchors [stored group][k][hidden] --> columns, runs apart by the gap --> run_group --> state
    token ids [k] of a first group    --> embedding ----------------------^

The same arithmetic as engine_adapter.replay, whose LayerStack hands states back; here the engine's
kernels leave them where they are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine_adapter.packing import Positions, columns_of
from engine_adapter.vllm.stack import VllmStack


def replay(
    stack: VllmStack,
    positions: Positions,
    tokens: torch.Tensor,
    anchors: torch.Tensor,
    blocks: Mapping[int, int],
    adapter: int,
) -> None:
    """Rebuild the states at the end of `positions` [k]; zero where there are none.

    `tokens` [k] are the ids there, `anchors` [stored groups, k, hidden]; `blocks` by vLLM's group.
    `adapter` is the number of the request's LoRA adapter, ready in a slot; 0 for none.
    """
    if len(positions) == 0:
        stack.zero(blocks)
        return
    columns = columns_of(positions, stack.gap_columns)
    length = int(columns[-1]) + 1
    at = torch.from_numpy(columns).to(stack.device)
    mask = None
    if length != len(columns):
        mask = torch.zeros(length, dtype=torch.bool, device=stack.device)
        mask[at] = True
    offset = 1 if stack.spec.first_group_is_embedding else 0
    assert anchors.shape[0] == len(stack.spec.groups) - offset, anchors.shape
    for number, group in enumerate(stack.spec.groups):
        is_stored = number >= offset
        rows = (
            anchors[number - offset] if is_stored else stack.embed(tokens.to(stack.device), adapter)
        )
        rows = rows.to(stack.device)
        if mask is not None:
            spread = rows.new_zeros((length, rows.shape[1]))
            spread[at] = rows
            rows = spread
        else:
            rows = rows.clone()  # layers may write to what they are given
        stack.run_group(group, rows, mask, blocks, adapter)
