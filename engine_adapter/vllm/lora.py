"""Under which LoRA adapter a replay runs: its request's own, whatever the batch of the step has.

::

    ready(adapter)          in a slot; put into one that the batch does not use; or False
    applied(adapter, n)     within, n rows under that adapter; then the batch's mapping, as it was

vLLM's LoRA layers read a table (row -> slot) that the runner fills before each forward pass.  A
replay swaps in a table of its own: it fits any number of rows, and the batch's is not touched.
The state of vLLM's manager is the same in all workers, so they decide alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class LoraTables:
    """Of one model; without LoRA, or for a model that was made without it, nothing happens."""

    def __init__(self, model: Any, decoder: nn.Module) -> None:
        """`model` is the one that vLLM gives its manager to, `decoder` what a replay calls."""
        self._manager: Any = getattr(model, "lora_manager", None)
        self._tables: list[Any] = []
        if self._manager is not None:
            found = (getattr(module, "punica_wrapper", None) for module in decoder.modules())
            self._tables = list({id(table): table for table in found if table is not None}.values())
        self._own: dict[int, Any] = {}
        self._room = 0
        self._mapped: tuple[int, int, tuple[int | None, ...]] | None = None

    def ready(self, adapter: int) -> bool:
        """Whether replays can run under it; 0 is none.  May fill a slot that no row has now."""
        if adapter == 0:
            return True
        manager = self._manager
        if manager is None:
            return False
        if adapter in manager.lora_index_to_id:
            return True
        if adapter not in manager.list_adapters():
            return False
        if None not in manager.lora_index_to_id:
            idle = self._idle()
            if not idle:
                return False
            manager.deactivate_adapter(idle[0])
        manager.activate_adapter(adapter)
        return True

    def _idle(self) -> list[int]:
        """Adapters in slots that no row of the batch has, and that nobody has pinned."""
        used = {slot for table in self._tables for slot in _slots(table)}
        pinned = set(self._manager._active_adapters.pinned_items)
        slots = enumerate(self._manager.lora_index_to_id)
        return [each for slot, each in slots if slot not in used and each not in pinned]

    @contextmanager
    def applied(self, adapter: int, rows: int) -> Iterator[None]:
        """Within, the layers take `rows` rows, all of them under `adapter`."""
        if not self._tables:
            yield
            return
        self._map(adapter, rows)
        before = [table.__dict__ for table in self._tables]
        try:
            for table in self._tables:
                table.__dict__ = self._own[id(table)].__dict__
            yield
        finally:
            for table, kept in zip(self._tables, before, strict=True):
                table.__dict__ = kept

    def _map(self, adapter: int, rows: int) -> None:
        """Fills the tables of our own, where they hold something else."""
        from vllm.lora.layers import LoRAMapping

        manager = self._manager
        wanted = (adapter, rows, tuple(manager.lora_index_to_id))
        if wanted == self._mapped:
            return
        if rows > self._room:
            self._room = max(rows, 2 * self._room)
            config = manager.lora_config
            for table in self._tables:
                made = type(table)(self._room, 1, table.device, lora_config=config)
                self._own[id(table)] = made
        mapping = LoRAMapping((adapter,) * rows, (adapter,), is_prefill=True)
        for own in self._own.values():
            own.update_metadata(
                mapping, manager.lora_index_to_id, manager.lora_slots + 1, manager.vocab_size
            )
        self._mapped = wanted


def _slots(table: Any) -> set[int]:
    """Slots that rows of a table have; -1 is none."""
    return set() if table.indices_len[0] is None else set(table.token_lora_indices.tolist())
