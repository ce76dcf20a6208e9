"""What one worker works on, put together once by setup.py."""

from __future__ import annotations

import dataclasses

from engine_adapter.vllm.geometry import Stored
from engine_adapter.vllm.paged import PagedKv
from engine_adapter.vllm.stack import VllmStack
from engine_adapter.vllm.taps import AnchorPool


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What a worker works on.

    Attributes:
        stored: its share of a page in the store.
        pool: captured anchors, by page slot.
        pages: the paged cache.
        stack: the model's layers.
        saves_anchors: one worker of the group does: the stream is the same in all.
    """

    stored: Stored
    pool: AnchorPool
    pages: PagedKv
    stack: VllmStack
    saves_anchors: bool
