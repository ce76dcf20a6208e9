"""One live sequence: its tokens, its cache, and the pages it still owes the store.

::

    tokens in the cache   [ reused from the store | computed here ........ ]
    pages                 [ 0 ][ 1 ][ 2 ]         [ 3 ][ 4 ][ 5 ][ partial ]
                                                    ^ every page that fills here is captured,
                                                      saved once, and forgotten

A session that goes on uses its own cache: resident state needs neither store nor replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine_adapter.capture import AnchorRecorder
from engine_adapter.pages import kv_blocks
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.states import attention_tensors
from engine_adapter.transformers.store import PageStore


class Session:
    """A sequence under way on one model.

    Attributes:
        tokens: token ids whose keys, values and states are in the cache.
        lineage: replays behind what this session computes; 0 where it is exact.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        store: PageStore | None,
        cache: Any,
        reused: Sequence[int],
        lineage: int,
    ) -> None:
        """`cache` holds `reused`, whole pages; pages computed from here on go to `store`."""
        self.tokens = list(reused)
        self.lineage = lineage
        self._loaded = loaded
        self._store = store
        self._cache = cache
        self._recorder = AnchorRecorder(loaded.anchor_layout, len(reused))
        self._pending: list[int] = []

    @property
    def cache(self) -> Any:
        """The transformers cache; for tests and for other engines to compare with."""
        return self._cache

    def extend(self, tokens: Sequence[int], logits_to_keep: int = 1) -> torch.Tensor:
        """Compute `tokens` (at least one) after what is there, in one pass.

        Returns logits [min(logits_to_keep, len(tokens)), vocabulary] of the last positions.
        """
        logits = self._loaded.forward(tokens, self._cache, self._recorder, logits_to_keep)
        self.tokens.extend(tokens)
        return logits

    def leave_pending(self, token: int) -> None:
        """`token` was generated but not computed: it goes first when the session goes on."""
        self._pending = [token]

    def take_pending(self) -> list[int]:
        """The generated tokens that the cache does not hold yet."""
        pending, self._pending = self._pending, []
        return pending

    def save_pages(self) -> None:
        """Hand every page that has filled since the last time to the store, then forget it."""
        first, stop = self._recorder.first_page, self._recorder.ready_pages
        if stop == first:
            return
        if self._store is not None:
            layers = attention_tensors(self._cache, self._loaded.spec)
            self._store.save(
                self.tokens,
                first,
                stop,
                lambda start, end: kv_blocks(layers, self._loaded.kv_layout, start, end),
                self._recorder.pages,
                self.lineage,
            )
        self._recorder.forget(stop)
