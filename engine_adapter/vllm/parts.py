"""What one worker works on, put together once by setup.py."""

from __future__ import annotations

import dataclasses

from anchorstore.layout import AnchorLayout, KvLayout
from engine_adapter.vllm.geometry import Share
from engine_adapter.vllm.paged import PagedKv
from engine_adapter.vllm.stack import VllmStack
from engine_adapter.vllm.taps import AnchorPool


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What a worker works on.

    Attributes:
        share: which heads, in which shards, its cache holds.
        kv_layout: of the whole model, all heads.
        shards: pieces that the heads are stored in.
        anchor_layout: of the model's anchors.
        pool: captured anchors, by page slot.
        pages: the paged cache.
        stack: the model's layers.
        saves_anchors: one worker of the group does: the stream is the same in all.
    """

    share: Share
    kv_layout: KvLayout
    shards: int
    anchor_layout: AnchorLayout
    pool: AnchorPool
    pages: PagedKv
    stack: VllmStack
    saves_anchors: bool

    def shard_layout(self, shard: int) -> KvLayout:
        """Layout of one shard of the key-value heads."""
        heads = self.kv_layout.heads // self.shards
        return self.kv_layout.with_heads(shard * heads, (shard + 1) * heads)
