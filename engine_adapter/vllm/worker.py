"""The worker's half: bring prefixes into blocks, copy full pages out of them.

::

    LoadJob   --> loader's thread: window --> host memory           (loader.py)
    replay    --> kv pages into the paged cache, anchors --> states, in the request's own blocks
                  under its own LoRA adapter; where that is in no slot, as drop, and refused
    drop      --> forgotten: vLLM computes the prefix
    SaveJob   --> paged cache, anchor pool --> host memory --> saver's thread       (saver.py)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from engine_adapter.vllm.jobs import LoadJob, Report, SaveJob
from engine_adapter.vllm.loader import Loader
from engine_adapter.vllm.parts import Parts
from engine_adapter.vllm.replay import replay
from engine_adapter.vllm.saver import Copied, Saver, arrival, host_copy
from engine_adapter.vllm.tally import Tally

log = logging.getLogger("anchorstore.vllm")


class WorkerHalf:
    """Acts on the jobs of each step."""

    def __init__(self, parts: Parts, loader: Loader, saver: Saver, tally: Tally) -> None:
        self._parts, self._loader, self._saver, self._tally = parts, loader, saver, tally
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._sent: set[str] = set()
        self._refused: set[str] = set()

    # ---- load ----

    def load(self, jobs: Iterable[LoadJob]) -> None:
        """Start copying each job's prefix."""
        for job in jobs:
            self._loader.submit(job)

    def replay(self, request_ids: Iterable[str]) -> None:
        """Bring the copied prefixes of these requests in, in order."""
        for request_id in request_ids:
            staged = self._loader.take(request_id)
            assert staged is not None, f"request {request_id}: agreed on, but not copied"
            job = staged.job
            if len(job.positions) and not self._parts.stack.lora.ready(job.adapter):
                log.info(
                    "request %s: its prefix is computed: adapter %d is in no slot",
                    request_id,
                    job.adapter,
                )
                self._refused.add(request_id)
                self.drop([request_id])
                continue
            self._parts.pages.write(job.page_slots, staged.kv)
            tokens = torch.from_numpy(job.tokens)
            replay(
                self._parts.stack,
                job.positions,
                tokens,
                staged.anchors,
                job.state_blocks,
                job.adapter,
            )
            self._tally.add("pages_loaded", len(job.page_slots))
            self._tally.add("rows_replayed", len(job.positions))
            self._received.add(request_id)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget the prefixes of these requests; vLLM is told that they have failed."""
        for request_id in request_ids:
            self._loader.take(request_id)
            self._failed.add(request_id)
            self._received.add(request_id)

    def report(self) -> Report | None:
        """What this worker has copied, or could not, since the last time; None for nothing."""
        report = self._loader.report()
        if self._refused:
            report = report or Report()
            report.refused, self._refused = self._refused, set()
        return report

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
                        arrival(self._parts.pages.device),
                    )
                )
            if job.is_last:
                self._sent.add(job.request_id)

    def _copied(self, job: SaveJob) -> dict[int, torch.Tensor]:
        """By position among the writer's layouts: own shards in order, then anchors."""
        parts, blocks = self._parts, dict[int, torch.Tensor]()
        share = parts.stored.share
        if share.is_writer:
            pages = parts.pages.read(job.page_slots)
            cuts = pages.chunk(len(share.shards), dim=4)
            for position, cut in enumerate(cuts):
                blocks[position] = host_copy(cut)
        if parts.saves_anchors:
            blocks[len(blocks)] = host_copy(parts.pool.read(job.page_slots))
        return blocks

    # ---- report ----

    def take_results(self) -> tuple[set[str], set[str], set[str]]:
        """(sent, received, failed) since the last time; failed ones are among the received."""
        results = self._sent, self._received, self._failed
        self._sent, self._received, self._failed = set(), set(), set()
        return results

    def take_counts(self) -> dict[str, int]:
        """What this worker has counted since the last time."""
        return self._tally.take()

    def close(self) -> None:
        """Ends threads and sessions."""
        self._loader.close()
        self._saver.close()
