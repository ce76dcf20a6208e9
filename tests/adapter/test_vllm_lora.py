"""Goal: a replay runs under its request's adapter and no other, and leaves the batch's table as it
was; an adapter is put into a slot only where the batch does not need it.
Method: vLLM's manager, layers and tables, played by objects of the same shape.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from engine_adapter.vllm.lora import LoraTables


class Table:
    """As PunicaWrapperBase: row -> slot, in buffers that are made once."""

    def __init__(self, rows: int, _: int, device: str, *, lora_config: Any) -> None:
        self.device = device
        self.rows = torch.full((rows,), -1)
        self.indices_len: list[int | None] = [None]

    @property
    def token_lora_indices(self) -> torch.Tensor:
        return self.rows[: self.indices_len[0]]

    def update_metadata(self, mapping: Any, slots: list[int | None], *_: int) -> None:
        found = [slots.index(each) if each else -1 for each in mapping.index_mapping]
        self.rows[: len(found)] = torch.tensor(found)
        self.indices_len[0] = len(found)


class Manager:
    """As LRUCacheLoRAModelManager: adapters that are loaded, some of them in slots."""

    def __init__(self, slots: list[int | None], loaded: set[int], pinned: set[int]) -> None:
        self.lora_index_to_id, self._loaded = slots, loaded
        self._active_adapters = types.SimpleNamespace(pinned_items=pinned)
        self.lora_config, self.lora_slots, self.vocab_size = None, len(slots), 10

    def list_adapters(self) -> dict[int, None]:
        return dict.fromkeys(self._loaded)

    def deactivate_adapter(self, adapter: int) -> None:
        self.lora_index_to_id[self.lora_index_to_id.index(adapter)] = None

    def activate_adapter(self, adapter: int) -> None:
        self.lora_index_to_id[self.lora_index_to_id.index(None)] = adapter


@dataclasses.dataclass
class Mapping:
    """As LoRAMapping."""

    index_mapping: tuple[int, ...]
    prompt_mapping: tuple[int, ...]
    is_prefill: bool


@pytest.fixture(autouse=True)
def vllm_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one name that is imported of vLLM, and only where there is a manager."""
    layers = types.ModuleType("vllm.lora.layers")
    layers.LoRAMapping = Mapping  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.lora"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.lora.layers", layers)


def made(
    slots: list[int | None],
    loaded: set[int],
    batch: list[int],
    pinned: frozenset[int] = frozenset(),
) -> tuple[LoraTables, Manager, Table]:
    """`batch`: the slot of each of its rows."""
    decoder, table = (
        nn.ModuleList([nn.Identity(), nn.Identity()]),
        Table(8, 1, "cpu", lora_config=0),
    )
    table.rows[: len(batch)] = torch.tensor(batch)
    table.indices_len[0] = len(batch)
    for layer in decoder:
        layer.punica_wrapper = table  # type: ignore[assignment]
    manager = Manager(slots, loaded, set(pinned))
    return LoraTables(types.SimpleNamespace(lora_manager=manager), decoder), manager, table


@pytest.mark.parametrize(
    ("slots", "batch", "pinned", "after"),
    [
        ([7, 5], [0, 0], frozenset(), [7, 5]),  # there already
        ([7, None], [0, 0], frozenset(), [7, 5]),
        ([7, 8], [0, -1], frozenset(), [7, 5]),  # nobody has the second slot
        ([7, 8], [-1, -1], frozenset({7}), [7, 5]),
        ([7, 8], [0, 1], frozenset(), None),
        ([7, 8], [0, 0], frozenset({8}), None),
    ],
)
def test_adapter_takes_no_slot_of_the_batch(
    slots: list[int | None],
    batch: list[int],
    pinned: frozenset[int],
    after: list[int | None] | None,
) -> None:
    adapters, manager, _ = made(list(slots), {5, 7, 8}, batch, pinned)
    assert adapters.ready(0)
    assert adapters.ready(5) == (after is not None)
    assert manager.lora_index_to_id == (after or slots)


def test_adapter_that_is_not_loaded_is_not_ready() -> None:
    adapters, manager, _ = made([None, None], {7}, [])
    assert not adapters.ready(5)
    assert manager.lora_index_to_id == [None, None]


def test_rows_of_a_replay_have_its_adapter_and_the_batch_keeps_its_own() -> None:
    adapters, manager, table = made([7, 5], {5, 7}, [0, -1, 1])
    for adapter, rows, slot in ((5, 20, 1), (0, 20, -1), (7, 3, 0), (7, 50, 0)):
        with adapters.applied(adapter, rows):
            assert table.token_lora_indices.tolist() == [slot] * rows
        assert table.token_lora_indices.tolist() == [0, -1, 1]
    manager.lora_index_to_id[:] = [5, 7]
    with pytest.raises(ValueError, match="a kernel"), adapters.applied(7, 50):
        assert table.token_lora_indices.tolist() == [1] * 50
        raise ValueError("a kernel")
    assert table.token_lora_indices.tolist() == [0, -1, 1]


def test_without_lora_nothing_is_touched() -> None:
    adapters = LoraTables(types.SimpleNamespace(), nn.Identity())
    assert adapters.ready(0)
    assert not adapters.ready(5)
    with adapters.applied(0, 3):
        pass
