"""Bytes beside the messages: memory that sessions map, blocks that remote ones read.

::

    Map   --> descriptors   segments of the pool | heads of segments on a device | staging | hints
    Read  --> views of the pool, for a remote reader
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from anchorstore.clock import Clock
from anchorstore.errors import InvalidRequest, LeaseExpired
from anchorstore.server.core.store import Store
from anchorstore.server.hints import HintTables
from anchorstore.tiers.base import Tier
from anchorstore.tiers.dram import StagingPool
from anchorstore.transport.frames import PAYLOAD_BYTES_MAX
from anchorstore.transport.segment import DEVICE_IDS_FROM
from anchorstore.wire.v1 import store_pb2 as pb

if TYPE_CHECKING:
    from anchorstore.server.hot import Hot

DESCRIPTORS_MAX = 250  # the kernel passes at most 253 at a time (SCM_MAX_FD)


class Handout:
    """Hands out memory.  Not for use from other threads than the event loop's."""

    def __init__(
        self, core: Store, tier: Tier, stagings: StagingPool, hints: HintTables, clock: Clock
    ) -> None:
        self._core, self._tier, self._stagings = core, tier, stagings
        self._hints, self._clock = hints, clock

    def map(
        self, request: pb.MapRequest, domain: str, hot: Hot | None
    ) -> tuple[pb.MapResponse, list[int]]:
        """Descriptors of segments of the session's domain, then of its staging memory and of the
        domain's hints.  `hot` is the session's device."""
        count = len(request.segment_ids) + request.staging + request.hints
        if count > DESCRIPTORS_MAX:
            raise InvalidRequest(f"map: {count} descriptors, limit {DESCRIPTORS_MAX} a call")
        staging = self._stagings.of(request.session_id) if request.staging else None
        if request.staging and staging is None:
            raise InvalidRequest("map: the session has no staging memory (staging_bytes was 0)")
        response, descriptors = self._segments(request, hot)
        if staging is not None:
            descriptors.append(staging.descriptor)
            response.staging_bytes = staging.size_bytes
        hints = self._hints.memory_of(domain) if request.hints else None
        if hints is not None:
            descriptors.append(hints.descriptor)
            response.hint_bytes = len(hints.memory)
        return response, descriptors

    def _segments(
        self, request: pb.MapRequest, hot: Hot | None
    ) -> tuple[pb.MapResponse, list[int]]:
        """Those of the pool and of the device, in the order in which they were asked for."""
        asked: Sequence[int] = list(request.segment_ids)
        pool_ids = [segment_id for segment_id in asked if segment_id < DEVICE_IDS_FROM]
        indices = self._core.map_segments(request.session_id, pool_ids, self._clock.now())
        in_pool = iter(indices)
        descriptors, sizes, offsets = [], [], []
        for segment_id in asked:
            if segment_id < DEVICE_IDS_FROM:
                descriptor, size, offset = (
                    self._tier.descriptor(next(in_pool)),
                    self._tier.segment_bytes,
                    0,
                )
            else:
                descriptor, size, offset = _head(hot, segment_id)
            descriptors.append(descriptor)
            sizes.append(size)
            offsets.append(offset)
        response = pb.MapResponse(segment_ids=asked, segment_bytes=sizes)
        if len(pool_ids) < len(asked):
            response.slab_offsets.extend(offsets)
        return response, descriptors

    def read(
        self, request: pb.ReadRequest, session_id: bytes
    ) -> tuple[pb.ReadResponse, list[npt.NDArray[np.uint8]]]:
        """Leased blocks of one need, as views of the pool, for a remote reader."""
        columns, kind = self._core.leased_columns(
            session_id, request.lease_id, request.need, self._clock.now()
        )
        first, stop = request.first, request.first + request.count
        if stop > len(columns):
            raise InvalidRequest(
                f"read: blocks {first} to {stop} of need {request.need}, which has {len(columns)}"
            )
        size = kind.block_bytes
        if request.count * size > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"read: {request.count * size} bytes, limit {PAYLOAD_BYTES_MAX} a call"
            )
        blocks = []
        for segment_id, slot, _, _ in columns.places[first:stop].tolist():
            try:
                memory = self._tier.memory(self._tier.index_of(segment_id))
            except LookupError as error:
                raise LeaseExpired(f"read: lease {request.lease_id} is over") from error
            offset = kind.offset(slot)
            blocks.append(memory[offset : offset + size])
        return pb.ReadResponse(block_bytes=size), blocks


def _head(hot: Hot | None, segment_id: int) -> tuple[int, int, int]:
    """Descriptor, bytes and place in the slab of a segment on the session's device; InvalidRequest
    as for a segment of the pool that is not there."""
    try:
        if hot is not None:
            descriptor, offset = hot.head_of(segment_id)
            return descriptor, hot.hbm.segment_bytes, offset
    except LookupError:
        pass
    raise InvalidRequest(f"no segment {segment_id}")
