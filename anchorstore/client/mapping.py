"""Segments in this process: mapped once, read-only, for as long as anybody reads them.

::

    cache  --(boot id, segment id)-->  SegmentView  <-- Blocks of an open window
                                            |       <-- numpy arrays the caller keeps
                                          mmap          unmapped with its last reader

Mappings are fetched on a connection of their own, which joins the session, gets the descriptors by
SCM_RIGHTS and is closed: no face of the client has to read ancillary data on its hot path.

A segment stays in the cache across windows (mapping and faulting it again would cost more than a
read).  It leaves when the daemon has formatted it anew, when the boot changes, or when the client
is closed; it is never unmapped under a reader, because every view counts as a use.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from anchorstore.client.effects import Map
from anchorstore.clock import Clock
from anchorstore.errors import BootChanged, ConnectFailed, DeadlineExceeded, InvalidRequest
from anchorstore.transport import frames, shm
from anchorstore.transport.address import UnixAddress
from anchorstore.transport.frames import Kind, Method
from anchorstore.transport.reasons import reason_of
from anchorstore.transport.segment import HEADER, SegmentView
from anchorstore.transport.tcp import dial, remaining
from anchorstore.wire.status import error_of
from anchorstore.wire.v1 import store_pb2 as store

SEGMENTS_PER_CALL = 128  # below the daemon's limit on descriptors in one answer
_SEGMENT_ID_FIELD = 2  # of the segment header
_Reply = TypeVar("_Reply", bound=Message)


@dataclasses.dataclass(slots=True)
class Mapped:
    """What a Map brought: memory by segment id, where those on a device begin in the slab, and the
    staging memory and the hints where they were asked for (no hints: the daemon keeps none)."""

    segments: dict[int, mmap.mmap]
    staging: mmap.mmap | None = None
    hints: mmap.mmap | None = None
    slab_offsets: dict[int, int] = dataclasses.field(default_factory=dict)


class SegmentCache:
    """The segments that this client has mapped.

    get() may run on any thread at any time; add() and clear() run under the client's lock.
    """

    def __init__(self) -> None:
        self._views: dict[tuple[bytes, int], SegmentView] = {}

    def __len__(self) -> int:
        return len(self._views)

    def get(self, boot_id: bytes, segment_id: int) -> SegmentView | None:
        """The segment, where it is mapped."""
        return self._views.get((boot_id, segment_id))

    def missing(self, boot_id: bytes, segment_ids: Iterable[int]) -> tuple[int, ...]:
        """Those of `segment_ids` that have to be mapped first."""
        return tuple(i for i in segment_ids if (boot_id, i) not in self._views)

    def add(self, boot_id: bytes, mapped: Mapped) -> None:
        """Takes new mappings in; lets go of those that the daemon has formatted anew."""
        for (boot, segment_id), view in list(self._views.items()):
            found = HEADER.unpack_from(view.memory)[_SEGMENT_ID_FIELD]
            if boot != boot_id or found != segment_id:
                del self._views[boot, segment_id]
        for segment_id, memory in mapped.segments.items():
            view = SegmentView(memoryview(memory), boot_id, segment_id)
            self._views[boot_id, segment_id] = view

    def clear(self) -> None:
        """Lets go of everything; memory that is still read stays mapped until it is not."""
        self._views.clear()


def fetch(address: UnixAddress, asked: Map, clock: Clock) -> Mapped:
    """Maps segments of a session (and its staging memory) over a short connection.  Blocks.

    Raises what the daemon refuses with, ConnectFailed or DeadlineExceeded, and BootChanged where
    the session belongs to another start of the daemon.
    """
    mapped = Mapped({})
    link = _Link(address, asked.until, clock)
    try:
        joined = link.call(
            Method.JOIN,
            store.JoinRequest(protocol_version=frames.VERSION, session_id=asked.session_id),
            store.JoinResponse,
        )
        if joined.boot_id != asked.boot_id:
            raise BootChanged(f"{address} is at boot {joined.boot_id.hex()}")
        for chunk in _chunks(asked.segment_ids):
            is_due = asked.staging and mapped.staging is None
            link.map(mapped, asked.session_id, chunk, staging=is_due)
        if asked.hints:
            link.map_hints(mapped, asked.session_id)
    except TimeoutError as error:
        if isinstance(error, DeadlineExceeded):
            raise
        raise DeadlineExceeded(f"{address}: no mapping in time") from error
    except OSError as error:
        if isinstance(error, ConnectFailed):
            raise
        raise ConnectFailed(f"{address}: {reason_of(error)}") from error
    finally:
        link.close()
    return mapped


def _chunks(segment_ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """At least one, so that the staging memory can be asked for alone."""
    yield segment_ids[:SEGMENTS_PER_CALL]
    for start in range(SEGMENTS_PER_CALL, len(segment_ids), SEGMENTS_PER_CALL):
        yield segment_ids[start : start + SEGMENTS_PER_CALL]


class _Link:
    """The short connection: one call at a time, each may bring descriptors."""

    def __init__(self, address: UnixAddress, until: float, clock: Clock) -> None:
        self._until, self._clock = until, clock
        self._connection = dial(address, until, clock)
        self._descriptors: list[int] = []
        self._last_id = 0

    def call(self, method: Method, request: Message, cls: type[_Reply]) -> _Reply:
        """The reply; its descriptors wait in self._descriptors."""
        self._last_id += 1
        body = request.SerializeToString()
        self._arm()
        self._connection.sendall(frames.encode(Kind.REQUEST, method, self._last_id, body))
        self._arm()
        frame, self._descriptors = shm.receive_frame(self._connection)
        if frame.header.kind is Kind.ERROR:
            shm.close_all(self._descriptors)
            raise error_of(store.ErrorReply.FromString(frame.body))
        reply = frames.parse_body(cls, frame.body)
        assert isinstance(reply, cls)
        return reply

    def map(
        self, mapped: Mapped, session_id: bytes, segment_ids: tuple[int, ...], *, staging: bool
    ) -> None:
        """Adds the mappings of `segment_ids` to `mapped`."""
        request = store.MapRequest(session_id=session_id, segment_ids=segment_ids, staging=staging)
        reply = self.call(Method.MAP, request, store.MapResponse)
        try:
            expected = len(segment_ids) + staging
            if len(self._descriptors) != expected or tuple(reply.segment_ids) != segment_ids:
                raise InvalidRequest(
                    f"map: {len(self._descriptors)} descriptors came, {expected} were asked for"
                )
            sizes = reply.segment_bytes
            for segment_id, descriptor, size in zip(
                segment_ids, self._descriptors[: len(segment_ids)], sizes, strict=True
            ):
                mapped.segments[segment_id] = shm.map_segment(descriptor, size)
            mapped.slab_offsets.update(zip(segment_ids, reply.slab_offsets, strict=False))
            if staging:
                mapped.staging = shm.map_staging(self._descriptors[-1], reply.staging_bytes)
        finally:
            shm.close_all(self._descriptors)

    def map_hints(self, mapped: Mapped, session_id: bytes) -> None:
        """Adds the hints to `mapped`, where the daemon keeps any."""
        reply = self.call(
            Method.MAP, store.MapRequest(session_id=session_id, hints=True), store.MapResponse
        )
        try:
            if len(self._descriptors) != bool(reply.hint_bytes):
                raise InvalidRequest(f"map: {len(self._descriptors)} descriptors for the hints")
            if reply.hint_bytes:
                mapped.hints = shm.map_segment(self._descriptors[0], reply.hint_bytes)
        finally:
            shm.close_all(self._descriptors)

    def _arm(self) -> None:
        self._connection.settimeout(remaining(self._until, self._clock, "map segments"))

    def close(self) -> None:
        """Hangs up; descriptors that were not mapped are closed."""
        shm.close_all(self._descriptors)
        self._connection.close()
