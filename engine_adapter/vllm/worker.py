"""The worker's half: bring prefixes into blocks, copy full pages out of them.

::

    LoadJob   window --> kv pages into the paged cache, anchors into memory --> verify
                     --> replay --> state block                  one request's own blocks only
    SaveJob   paged cache, anchor pool --> host memory --> saver's thread

A load is verified after its bytes were copied and before a state is made from them.  Whatever goes
wrong is a failed load: vLLM computes the prefix anew.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Iterable
from typing import Protocol

import torch

from anchorstore.client import Client
from anchorstore.client.client import Window
from anchorstore.errors import AnchorStoreError
from anchorstore.layout import AnchorLayout, KvLayout
from engine_adapter.vllm.geometry import Share
from engine_adapter.vllm.jobs import LoadJob, SaveJob, SpaceKey
from engine_adapter.vllm.paged import PagedKv
from engine_adapter.vllm.replay import last_rows, replay
from engine_adapter.vllm.saver import Copied, Saver
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.stack import VllmStack
from engine_adapter.vllm.taps import AnchorPool

log = logging.getLogger("anchorstore.vllm")

READERS_MAX = 64


class Readers(Protocol):
    """Clients that read in the scheduler's sessions."""

    def get(self, space: SpaceKey, session_token: bytes) -> Client: ...

    def close(self) -> None: ...


class JoinedReaders:
    """One client an adapter and salt, joined to the session that its windows come from."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clients: collections.OrderedDict[SpaceKey, Client] = collections.OrderedDict()

    def get(self, space: SpaceKey, session_token: bytes) -> Client:
        """The client of `space`; it follows its windows to later sessions by itself."""
        client = self._clients.get(space)
        if client is None:
            options = self._settings.client_options("vllm-reader", staging_bytes=0)
            client = self._clients[space] = Client.join(session_token, options=options)
            if len(self._clients) > READERS_MAX:
                self._clients.popitem(last=False)[1].close()
        self._clients.move_to_end(space)
        return client

    def close(self) -> None:
        """Closes them all."""
        while self._clients:
            self._clients.popitem()[1].close()


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


class WorkerHalf:
    """Acts on the jobs of each step."""

    def __init__(self, parts: Parts, settings: Settings, readers: Readers, saver: Saver) -> None:
        self.counters: collections.Counter[str] = collections.Counter()
        self._parts, self._settings = parts, settings
        self._readers, self._saver = readers, saver
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._sent: set[str] = set()

    # ---- load ----

    def load(self, jobs: Iterable[LoadJob]) -> None:
        """Bring each job's prefix in; what fails is reported as such."""
        for job in jobs:
            try:
                self._load(job)
            except AnchorStoreError as error:
                log.warning("request %s: its prefix was not loaded: %s", job.request_id, error)
                self.counters["load_failed"] += 1
                self._failed.add(job.request_id)
            self._received.add(job.request_id)

    def _load(self, job: LoadJob) -> None:
        parts = self._parts
        client = self._readers.get(job.space, job.session_token)
        with client.open_window(job.window) as window:
            kv = self._kv(window, len(job.page_slots))
            anchors = torch.empty(0)
            if self._settings.replays:
                blocks = window.blocks(parts.shards)
                copied = _room(len(blocks), parts.anchor_layout)
                blocks.copy_into(copied)
                anchors = last_rows(copied, len(job.positions))
            window.verify()
        parts.pages.write(job.page_slots, kv)
        replay(parts.stack, job.positions, torch.from_numpy(job.tokens), anchors, job.state_blocks)
        self.counters["pages_loaded"] += len(job.page_slots)
        self.counters["rows_replayed"] += len(job.positions)

    def _kv(self, window: Window, pages: int) -> torch.Tensor:
        """The kv blocks of this worker's heads [pages, layers, 2, tokens, heads, dim]."""
        pieces = []
        for shard in self._parts.share.shards:
            piece = _room(pages, self._shard_layout(shard))
            window.blocks(shard).copy_into(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=4)

    def _shard_layout(self, shard: int) -> KvLayout:
        heads = self._parts.kv_layout.heads // self._parts.shards
        return self._parts.kv_layout.with_heads(shard * heads, (shard + 1) * heads)

    # ---- save ----

    def save(self, jobs: Iterable[SaveJob]) -> None:
        """Copy each job's pages and leave them to the saver."""
        for job in jobs:
            blocks = self._copied(job)
            if blocks:
                self._saver.submit(
                    Copied(
                        job.space,
                        job.parent_hash,
                        job.first_page,
                        job.hashes,
                        blocks,
                        job.lineage,
                    )
                )
            if job.is_last:
                self._sent.add(job.request_id)

    def _copied(self, job: SaveJob) -> dict[int, torch.Tensor]:
        """By position among the writer's layouts: own shards in order, then anchors."""
        parts, blocks = self._parts, dict[int, torch.Tensor]()
        if parts.share.is_writer:
            pages = parts.pages.read(job.page_slots)
            cuts = pages.chunk(len(parts.share.shards), dim=4)
            for position, cut in enumerate(cuts):
                blocks[position] = cut.contiguous().cpu()
        if parts.saves_anchors:
            blocks[len(blocks)] = parts.pool.read(job.page_slots).contiguous().cpu()
        return blocks

    # ---- report ----

    def take_results(self) -> tuple[set[str], set[str], set[str]]:
        """(sent, received, failed) since the last time; failed ones are among the received."""
        results = self._sent, self._received, self._failed
        self._sent, self._received, self._failed = set(), set(), set()
        return results

    def close(self) -> None:
        """Ends the sessions."""
        self._saver.close()
        self._readers.close()


def _room(pages: int, layout: AnchorLayout | KvLayout) -> torch.Tensor:
    """Memory for the blocks of `pages` pages, [pages, *layout.shape]."""
    return torch.empty((pages, *layout.shape), dtype=getattr(torch, layout.dtype))
