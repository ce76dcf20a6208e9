"""The call by which engines tell of their own caches: checked, counted, handed to the core.

::

    EventsRequest  kinds u8[n], hashes [32 n]  --checked-->  core.note_events  -->  EventsResponse

A batch is one call like any other, answered at once and bounded in size, so one connection cannot
send more than the loop can take in; the stream of an engine is a sequence of batches.
"""

from __future__ import annotations

from anchorstore.server.peer import Peer
from anchorstore.server.service import Service
from anchorstore.wire import convert
from anchorstore.wire.v1 import store_pb2 as pb

DROPPED_MAX = 2**32  # that one batch may add to a metric


class EngineEvents:
    """The Events call over a Service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def events(self, request: pb.EventsRequest, peer: Peer) -> pb.EventsResponse:
        """Takes in one batch; see anchorstore.server.core.events."""
        service = self._service
        session_id = service.session_of(request, peer)
        kinds, hashes = convert.event_columns(request, service.limits.pages_per_call)
        counters, dropped = service.core.counters, min(request.dropped, DROPPED_MAX)
        counters["events_dropped"] = counters.get("events_dropped", 0) + dropped
        result = service.core.note_events(
            session_id, kinds, hashes, request.cleared, service.clock.now()
        )
        return pb.EventsResponse(
            unknown=result.unknown,
            pins_refused=result.refused,
            is_new=result.is_new,
            ttl_ms=max(1, round(service.core.config.engine_ttl_seconds * 1000)),
        )
