"""SGLang's unified radix tree, kv only, with pages in and evicted pages out.

::

    UnifiedRadixCache --free_segment(slots)--> Freed      the allocator: notes what is freed
         |
    tree core: Python or Rust, whichever is asked for

The slots that are handed in are page numbers, so what is freed names the pages.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Sequence
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # modules on the way say that they lack a GPU
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class Freed:
    """What the tree takes for an allocator of kv slots."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.segments: list[list[int]] = []

    def free_segment(self, indices: torch.Tensor, start_pos: int = 0) -> None:
        """Slots of consecutive tokens are free."""
        self.segments.append(indices.tolist())


class SglangTree:
    """One tree.  `pages` are numbers that name a page and all before it; `tokens` its path."""

    def __init__(self, policy: str, core: str, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.freed = Freed()
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.freed,
            page_size=page_tokens,
            eviction_policy=policy,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
        self.cache = UnifiedRadixCache(params)
        self.is_rust = "Rust" in type(self.cache.tree_core).__name__

    def insert(self, tokens: Sequence[int], pages: Sequence[int], priority: int) -> None:
        """Stores a path; `pages` has one number a full page of `tokens`."""
        slots = torch.tensor(pages, dtype=torch.int64).repeat_interleave(self.page_tokens)
        slots = torch.cat([slots, torch.zeros(len(tokens) - len(slots), dtype=torch.int64)])
        key = RadixKey(array("q", tokens))
        self.cache.insert(InsertParams(key=key, value=slots, priority=priority))

    def match(self, tokens: Sequence[int]) -> tuple[int, Any]:
        """Pages of the longest stored prefix, and the node where it ends."""
        result = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
        return result.device_prefix_len // self.page_tokens, result.last_device_node

    def lock(self, node: Any) -> Any:
        """Protects the path down to a node; what `unlock` takes."""
        return self.cache.lock(node)

    def unlock(self, lock: Any) -> None:
        self.cache.unlock(lock)

    def evict(self, pages: int) -> list[int]:
        """Evicts whole nodes until so many pages are free, or none can go; the pages, in order,
        the last of a node first."""
        self.freed.segments.clear()
        self.cache.evict(EvictParams(num_tokens=pages * self.page_tokens))
        return [p for s in self.freed.segments for p in s[:: self.page_tokens][::-1]]

    def held(self) -> set[int]:
        """Every page in the tree."""
        return set(self.cache.tree_core.all_values_flatten().tolist())
