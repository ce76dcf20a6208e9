"""AnchorStoreConnector: both halves under vLLM's connector interface.  A thin shell.

::

    scheduler process                                 each worker process
      get_num_new_matched_tokens -> match               register_kv_caches  -> parts
      update_state_after_alloc   -> allocated           start_load_kv       -> load, drop, replay
      build_connector_meta       -> step   --jobs-->    wait_for_save       -> save
      update_connector_output    -> reported <-----     build_connector_worker_meta
      request_finished_all_groups-> finish   <-----     get_transfer_results

Loads are asynchronous in vLLM's sense: a request waits outside of the batch until its prefix has
arrived, and a load that fails is a request that prefills.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from anchorstore.errors import ConfigError
from engine_adapter.vllm.checks import version_refusal
from engine_adapter.vllm.jobs import Report, StepJobs
from engine_adapter.vllm.matching import Later
from engine_adapter.vllm.setup import Common, scheduler_half, worker_half
from engine_adapter.vllm.stats import AdapterMetrics, AdapterStats

log = logging.getLogger("anchorstore.vllm")


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):
    """The jobs of one step, on their way to the workers."""

    jobs: StepJobs = dataclasses.field(default_factory=StepJobs)


@dataclasses.dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """What the workers have copied, on its way to the scheduler."""

    report: Report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """Of two workers."""
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(self.report.plus(other.report))


class AnchorStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """Hybrid prefixes from the shared store."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """ConfigError or ModelError, with the reason, where it cannot work here."""
        super().__init__(vllm_config, role, kv_cache_config)
        reason = version_refusal(vllm.__version__)
        if reason:
            raise ConfigError(reason)
        self._common = Common.of(vllm_config, kv_cache_config)
        self._half: Any = None
        if role is KVConnectorRole.SCHEDULER:
            # A prefix that cannot be loaded is computed: never an error of the request.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
            self._half = scheduler_half(self._common)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Kv may be resident further than states are: those are replayed."""
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what is not saved is missed later, nothing more."""
        return False

    # ---- scheduler ----

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Puts our view of divergent hits before vLLM's: see matching.py."""
        super().bind_kv_cache_manager(kv_cache_manager)
        kv_cache_manager.get_computed_blocks_for_connector = functools.partial(
            self._computed_blocks, kv_cache_manager.get_computed_blocks_for_connector
        )

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """What vLLM's cache holds is told to the daemon: see resident.py."""
        blocks = gpu_block_pool.blocks
        self._half.follow(lambda block_id: blocks[block_id].block_hash)

    def _computed_blocks(
        self, theirs: Callable[[Any], tuple[Any, int, int, bool]], request: Any
    ) -> tuple[Any, int, int, bool]:
        """(blocks, local tokens, junction, diverged) as the scheduler takes them over."""
        blocks, resident, junction, has_diverged = theirs(request)
        if not has_diverged:
            return blocks, resident, junction, False
        manager, group = self._kv_cache_manager, self._common.attention_group
        assert manager is not None
        agreed = manager.get_computed_blocks(request)
        local = self._half.match_around(request, resident, agreed[1])
        if not local:
            return *agreed, False
        count = local // self._common.geometry.block_tokens
        taken = tuple(
            list(each[:count]) if number == group else []
            for number, each in enumerate(blocks.blocks)
        )
        return manager.create_kv_cache_blocks(taken), local, 0, True

    def on_new_request(self, request: Any) -> None:
        self._half.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        tokens = self._half.match(request, num_computed_tokens)
        if isinstance(tokens, Later):
            return None, False  # vLLM asks again in its next step
        return tokens, tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._half.allocated(
            request, blocks.get_block_ids(), self._common.attention_group, num_external_tokens
        )

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        def blocks_of(request_id: str) -> list[int]:
            manager = self._kv_cache_manager
            assert manager is not None
            found: list[int] = manager.get_block_ids(request_id)[self._common.attention_group]
            return found

        return StepMetadata(self._half.step(scheduler_output.num_scheduled_tokens, blocks_of))

    def update_connector_output(self, connector_output: Any) -> None:
        metadata = connector_output.kv_connector_worker_meta
        if isinstance(metadata, WorkerMetadata):
            self._half.reported(metadata.report)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._half.finish(request, block_ids[self._common.attention_group]), None

    def reset_cache(self) -> bool:
        """What was stored is not used any more, by this engine alone."""
        self._half.reset()
        return True

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._half = worker_half(self._common, kv_caches)

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        jobs = self._jobs()
        self._half.load(jobs.loads)
        self._half.drop(jobs.drops)
        self._half.replay(jobs.replays)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads are done before a request is in a batch."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Nothing: whole pages are copied once they are full."""

    def wait_for_save(self) -> None:
        self._half.save(self._jobs().saves)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        sent, received, failed = self._half.take_results()
        return KVConnectorTransferResults(sent, received, failed)

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        report = self._half.report()
        return None if report is None else WorkerMetadata(report)

    def _jobs(self) -> StepJobs:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata.jobs

    # ---- both ----

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """None whose zeroing vLLM should skip: a prefix is brought in in a later step, and the
        rest of its last block must not hold what was there before."""
        return ()

    def get_kv_connector_stats(self) -> AdapterStats | None:
        counts = self._half.take_counts() if self._half is not None else {}
        return AdapterStats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> AdapterStats:
        return AdapterStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> AdapterMetrics:
        return AdapterMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._half is not None:
            self._half.close()
            self._half = None
