"""From vLLM's configuration to the two halves: everything that is fixed once the engine starts.

::

    vllm_config, kv_cache_config --> facts --> refused?
                                 --> Common: spec, layouts, geometry, shards, namespace
                                      |--> scheduler_half: sessions that look up
                                      `--> worker_half: paged cache, pool, layers, sessions that put
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from anchorstore.client import Client, ClientOptions, NamespaceSpec
from anchorstore.errors import (
    AnchorStoreError,
    ConfigError,
    Forbidden,
    ModelError,
    Unauthenticated,
    UsageError,
)
from anchorstore.families import AnchorSpec
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from engine_adapter.vllm.adapters import Adapters
from engine_adapter.vllm.checks import CONNECTOR, check
from engine_adapter.vllm.facts import facts_of
from engine_adapter.vllm.families import family_of
from engine_adapter.vllm.geometry import Geometry, Share, Stored, shard_count, share_of_rank
from engine_adapter.vllm.install import (
    MODEL,
    anchor_layout_of,
    digest_of,
    settings_of,
    spec_of,
)
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.loader import Loader
from engine_adapter.vllm.paged import PagedKv, learn_order
from engine_adapter.vllm.parts import Parts
from engine_adapter.vllm.saver import Saver
from engine_adapter.vllm.scheduler import SchedulerHalf
from engine_adapter.vllm.settings import MEBIBYTE, Settings
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.stack import VllmStack, state_groups
from engine_adapter.vllm.tally import Tally
from engine_adapter.vllm.taps import OWNER, AnchorPool
from engine_adapter.vllm.worker import WorkerHalf

log = logging.getLogger("anchorstore.vllm")


@dataclasses.dataclass(frozen=True)
class Common:
    """What both halves share.

    Attributes:
        attention_group: number of vLLM's group of full-attention layers.
        state_groups: its groups of linear layers, by number.
        shards: pieces that the key-value heads are stored in.
        weights: digest of the model: its weights and its configuration.
        loads, saves: by kv_role, whether prefixes are looked up and pages are put.
    """

    vllm_config: Any
    kv_cache_config: Any
    settings: Settings
    spec: AnchorSpec
    geometry: Geometry
    attention_group: int
    state_groups: Mapping[int, Any]
    kv_layout: KvLayout
    anchor_layout: AnchorLayout
    shards: int
    weights: bytes
    loads: bool
    saves: bool

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any) -> Common:
        """ModelError or ConfigError where the adapter cannot work with this configuration."""
        settings = settings_of(vllm_config)
        if settings is None:
            name = vllm_config.kv_transfer_config.kv_connector
            raise ConfigError(f"vllm: kv_connector is {name!r}, must be {CONNECTOR!r}")
        spec = spec_of(vllm_config)
        family_of(spec.model_type)
        check(facts_of(vllm_config, kv_cache_config.kv_cache_groups))
        groups = dict(enumerate(kv_cache_config.kv_cache_groups))
        attention = next(
            number for number, g in groups.items() if type(g.kv_cache_spec) is FullAttentionSpec
        )
        states = {n: g for n, g in groups.items() if isinstance(g.kv_cache_spec, MambaSpec)}
        geometry = Geometry(settings.page_tokens, groups[attention].kv_cache_spec.block_size)
        kv_layout = spec.kv_layout(page_tokens=settings.page_tokens)
        if not isinstance(kv_layout, KvLayout):
            raise ModelError(
                f"vllm: {spec.model_type} keeps latent rows, not supported in vLLM yet"
            )
        return cls(
            vllm_config,
            kv_cache_config,
            settings,
            spec,
            geometry,
            attention,
            states,
            kv_layout,
            anchor_layout_of(spec, settings),
            shard_count(spec.kv_heads, settings.kv_shards),
            digest_of(vllm_config, [group.kv_cache_spec for group in states.values()]),
            vllm_config.kv_transfer_config.is_kv_consumer,
            vllm_config.kv_transfer_config.is_kv_producer,
        )

    def namespace(self, key: SpaceKey) -> NamespaceSpec:
        """The namespace of an adapter and salt."""
        name = self.settings.model or pathlib.PurePath(self.vllm_config.model_config.model).name
        return NamespaceSpec(name, self.weights, key.adapter, self.settings.page_tokens, key.salt)

    def shard_layout(self, shard: int) -> KvLayout:
        """Layout of one shard of the key-value heads."""
        heads = self.spec.kv_heads // self.shards
        return self.kv_layout.with_heads(shard * heads, (shard + 1) * heads)

    def connect(self, key: SpaceKey, layouts: list[Layout], options: ClientOptions) -> Client:
        """A session of its own for `key`."""
        return Client.connect(
            self.settings.daemon, namespace=self.namespace(key), layouts=layouts, options=options
        )


def scheduler_half(common: Common) -> SchedulerHalf:
    """Looks up in sessions that know every shard."""
    settings = common.settings
    log.info(
        "prefixes of weights %s from %s: pages of %d tokens, %d rows kept in %s, margin %d, %s",
        common.weights.hex()[:12],
        settings.daemon,
        settings.page_tokens,
        settings.rows_per_page,
        common.anchor_layout.dtype,
        settings.margin_tokens,
        settings.strategy,
    )
    layouts: list[Layout] = [common.shard_layout(shard) for shard in range(common.shards)]
    layouts.append(common.anchor_layout)
    options = settings.lookup_options("vllm-scheduler")
    spaces = Spaces(
        lambda key: common.connect(key, layouts, options),
        settings.spaces_max,
        settings.retry_seconds,
    )
    try:  # now, while somebody looks: later a refusal is a miss
        spaces.open(SpaceKey())
    except (UsageError, Unauthenticated, Forbidden) as error:
        raise ConfigError(f"vllm: {settings.daemon} refuses this engine: {error}") from error
    except AnchorStoreError as error:
        log.warning("%s takes no engine now: %s", settings.daemon, error)
    return SchedulerHalf(
        settings,
        common.geometry,
        common.shards,
        list(common.state_groups),
        spaces,
        Adapters(common.vllm_config.lora_config),
        common.vllm_config.parallel_config.tensor_parallel_size,
        2 * common.kv_cache_config.num_blocks * common.geometry.pages_per_block,
        loads=common.loads,
        saves=common.saves,
    )


def worker_half(common: Common, caches: Mapping[str, torch.Tensor]) -> WorkerHalf:
    """Everything that one worker works on; its model is built and its caches are allocated."""
    rank, ranks = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    settings, table = common.settings, common.vllm_config.compilation_config.static_forward_context
    if OWNER not in table:
        raise ModelError("vllm: the model has no taps; is the anchorstore plugin loaded?")
    share = share_of_rank(common.spec.kv_heads, common.shards, rank, ranks)
    group = common.kv_cache_config.kv_cache_groups[common.attention_group]
    names = sorted(group.layer_names, key=_layer_number)
    pages = _paged(common, [caches[name] for name in names], table[names[0]], share)
    pool: AnchorPool = table[OWNER]
    is_first = rank == 0
    if is_first:
        slots = common.kv_cache_config.num_blocks * common.geometry.pages_per_block
        pool.allocate(slots, pages.device, names[0])
    stack = VllmStack(
        table[MODEL],
        state_groups(common.vllm_config, common.state_groups, pages.device),
        common.vllm_config,
        pages.device,
    )
    stored = Stored(share, common.kv_layout, common.shards, common.anchor_layout)
    layouts: list[Layout] = []
    if share.is_writer:
        layouts += [common.shard_layout(shard) for shard in share.shards]
    if is_first:
        layouts.append(common.anchor_layout)
    options = settings.thread_options(f"vllm-worker-{rank}", settings.staging_mebibytes * MEBIBYTE)
    spaces = Spaces(
        lambda key: common.connect(key, layouts, options),
        settings.spaces_max,
        settings.retry_seconds,
    )
    tally = Tally()
    anchors = len(share.shards) if share.is_writer else 0
    saver = Saver(spaces, anchors, settings.queue_mebibytes * MEBIBYTE, tally)
    parts = Parts(stored, pool, pages, stack, is_first)
    return WorkerHalf(parts, Loader(stored, settings, tally), saver, tally)


def _paged(common: Common, caches: list[torch.Tensor], layer: Any, share: Share) -> PagedKv:
    """The paged cache, its order learned from the first layer's kernel."""
    heads = share.head_stop - share.head_start

    def write(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        layer.impl.do_kv_cache_update(layer, key, value, caches[0], slots)

    order = learn_order(caches[0], write, caches[0].shape[2], heads, common.spec.head_dim)
    return PagedKv(caches, order, common.settings.page_tokens)


def _layer_number(name: str) -> int:
    """The layer's number in a dotted name."""
    return next(int(part) for part in name.split(".") if part.isdigit())
