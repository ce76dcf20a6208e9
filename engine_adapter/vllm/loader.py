"""Prefixes on their way in: a thread copies them out of the store into memory of this process.

::

    submit(LoadJob) --> thread: window --> kv blocks, anchor blocks --> verify --> staged
                                   `-- anything goes wrong --> failed, and on to the next
    report()        <-- what has been staged or has failed since the last time
    take(request)   <-- the staged bytes, once every worker has its own

Nothing of a request's blocks is touched here, so a load that is dropped leaves no trace.  Every job
is answered, whatever happens: its request waits for the answer.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Sequence

import numpy as np
import torch

from anchorstore.client import Client
from anchorstore.client.client import Window
from anchorstore.errors import AnchorStoreError
from anchorstore.layout import AnchorLayout, KvLayout
from engine_adapter.vllm.cores import step_aside
from engine_adapter.vllm.geometry import Stored
from engine_adapter.vllm.jobs import LoadJob, Report
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.spaces import RecentClients
from engine_adapter.vllm.tally import Tally

log = logging.getLogger("anchorstore.vllm")

CLOSE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Staged:
    """A prefix in host memory.

    Attributes:
        kv: blocks of this worker's heads, [pages, layers, 2, page_tokens, heads, head_dim].
        anchors: the rows to replay, [stored groups, k, hidden].
    """

    job: LoadJob
    kv: torch.Tensor
    anchors: torch.Tensor


class Loader:
    """Copies prefixes in a thread of its own, one after another."""

    def __init__(self, stored: Stored, settings: Settings, tally: Tally) -> None:
        self._stored, self._settings, self._tally = stored, settings, tally
        self._clients = RecentClients(settings.spaces_max)
        self._staged: dict[str, Staged] = {}
        self._report = Report()
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[LoadJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="anchorstore-loader", daemon=True)
        self._thread.start()

    # ---- for the worker ----

    def submit(self, job: LoadJob) -> None:
        """Leaves the job to the thread."""
        self._queue.put(job)

    def report(self) -> Report | None:
        """What has been copied or has failed since the last time; None for nothing."""
        with self._lock:
            if not self._report:
                return None
            report, self._report = self._report, Report()
        return report

    def take(self, request_id: str) -> Staged | None:
        """The request's prefix, which is then forgotten; None where its copy has failed."""
        with self._lock:
            return self._staged.pop(request_id, None)

    def close(self) -> None:
        """Ends the thread and the sessions."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    # ---- the thread ----

    def _work(self) -> None:
        step_aside()
        while (job := self._queue.get()) is not None:
            staged = self._attempt(job)
            with self._lock:
                if staged is None:
                    self._report.failed[job.request_id] += 1
                else:
                    self._staged[job.request_id] = staged
                    self._report.copied[job.request_id] += 1
        self._clients.close()

    def _attempt(self, job: LoadJob) -> Staged | None:
        """The job's prefix; None for any reason, which is in the log."""
        try:
            return self._copy(job)
        except AnchorStoreError as error:
            log.warning("request %s: its prefix was not loaded: %s", job.request_id, error)
        except Exception:
            log.exception("request %s: its prefix was not loaded", job.request_id)
            self._tally.add("thread_errors", label="loader")
        return None

    def _copy(self, job: LoadJob) -> Staged:
        stored, anchors = self._stored, torch.empty(0)
        with self._client(job).open_window(job.window) as window:
            kv = self._kv(window, job.skipped_pages + len(job.page_slots))
            if self._settings.replays:
                blocks = window.blocks(stored.shards)
                copied = _room(len(blocks), stored.anchor_layout)
                blocks.copy_into(copied)
                anchors = _last_rows(copied, len(job.positions))
            window.verify()
        return Staged(job, kv[job.skipped_pages :], anchors)

    def _kv(self, window: Window, pages: int) -> torch.Tensor:
        pieces = []
        for shard in self._stored.share.shards:
            piece = _room(pages, self._stored.shard_layout(shard))
            window.blocks(shard).copy_into(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else _side_by_side(pieces)

    def _client(self, job: LoadJob) -> Client:
        """Joined to the session of the job's window; it follows its windows to later sessions."""
        client = self._clients.get(job.space)
        if client is None:
            options = self._settings.thread_options("vllm-reader", 0)
            client = Client.join(job.session_token, options=options)
            self._clients.add(job.space, client)
        return client


def _side_by_side(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Blocks of all heads from those of each shard, [pages, layers, 2, page_tokens, heads, dim].

    By numpy: torch would start threads of its own here, on the cores of the step.
    """
    joined = np.concatenate([piece.view(torch.uint8).numpy() for piece in pieces], axis=4)
    return torch.from_numpy(joined).view(pieces[0].dtype)


def _room(pages: int, layout: AnchorLayout | KvLayout) -> torch.Tensor:
    """Memory for the blocks of `pages` pages, [pages, *layout.shape]."""
    return torch.empty((pages, *layout.shape), dtype=getattr(torch, layout.dtype))


def _last_rows(blocks: torch.Tensor, rows: int) -> torch.Tensor:
    """Anchors [groups, rows, hidden], the last `rows` of blocks [pages, groups, rows, hidden]."""
    pages, groups, per_page, hidden = blocks.shape
    octets = blocks.view(torch.uint8).numpy().swapaxes(0, 1)
    flat = octets.reshape(groups, pages * per_page, hidden * blocks.element_size())
    return torch.from_numpy(flat[:, pages * per_page - rows :]).view(blocks.dtype)
