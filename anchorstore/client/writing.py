"""Reserve, fill, seal: the write side's steps over a Session.

::

    Reserve --> verdicts --> buffer(page, layout) ... --> Seal --> PutOutcome
                             staging memory: mapped (same host), or sent by Write (remote)

A run larger than the staging memory goes in several Seals of one reservation.  Only blocks whose
buffer was asked for are sealed.  A Seal that got no reply leaves its bytes in quarantine
(staging.py): the daemon may still be reading them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from anchorstore.client.attachment import Attachment
from anchorstore.client.effects import Steps, Work
from anchorstore.client.session import Session, log
from anchorstore.client.staging import Staging, aligned
from anchorstore.errors import (
    AnchorStoreError,
    BootChanged,
    CapacityFull,
    ConnectFailed,
    DeadlineExceeded,
    HandleClosed,
    InvalidRequest,
    LeaseError,
    Refused,
    Unavailable,
)
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store

WRITE_BYTES_PER_CALL = 16 * 2**20
TAKE, KNOWN, DECLINED = 1, 2, 3  # verdicts of Reserve
SEALED, MISMATCHED = 1, 4  # results of Seal, beside KNOWN and DECLINED


@dataclasses.dataclass(frozen=True, slots=True)
class PutOutcome:
    """What became of a put's blocks.

    Attributes:
        sealed: visible now.
        known: were there already, at least as exact.
        declined: not stored; `reason` says why ("quota", "capacity", "unreachable", ...).
        mismatched: damaged on their way; not stored.
        reason: of the last blocks that were declined; "" where none was.
    """

    sealed: int = 0
    known: int = 0
    declined: int = 0
    mismatched: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What Reserve said, and what belongs to it; without a reply, the reason why there is none."""

    pages: int
    reply: store.ReserveResponse | None
    reason: str = ""
    attachment: Attachment | None = None
    staging: Staging = dataclasses.field(default_factory=lambda: Staging(0))
    memory: memoryview = dataclasses.field(default_factory=lambda: memoryview(b""))


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """A block's place in the staging memory."""

    page: int
    column: int  # position of its layout in the reservation
    offset: int
    size: int


class ReservationBase:
    """Blocks that the daemon wants, and the memory to write them to.  Not for several threads.

    `page` counts from 0 within the run; `layout` is a position among the client's layouts.
    """

    def __init__(self, session: Session, layouts: tuple[int, ...], answer: Answer) -> None:
        self._session, self._layouts, self._pages = session, layouts, answer.pages
        self._attachment = answer.attachment
        self._staging, self._memory = answer.staging, answer.memory
        self._id, verdicts = 0, bytes([DECLINED]) * answer.pages * len(layouts)
        if answer.reply is not None:
            self._id, verdicts = answer.reply.reservation_id, answer.reply.verdicts
        if len(verdicts) != answer.pages * len(layouts):
            raise InvalidRequest(
                f"reply: {len(verdicts)} verdicts, expected {answer.pages * len(layouts)}"
            )
        self._verdicts = verdicts
        self._extents: dict[tuple[int, int], Extent] = {}
        self._known, self._declined = verdicts.count(KNOWN), verdicts.count(DECLINED)
        self._sealed = self._mismatched = 0
        self._reason = answer.reason
        self.is_closed = False

    def wanted(self) -> Iterator[tuple[int, int]]:
        """(page, layout) of every block worth writing, page by page."""
        for position in np.flatnonzero(np.frombuffer(self._verdicts, np.uint8) == TAKE).tolist():
            page, column = divmod(position, len(self._layouts))
            yield page, self._layouts[column]

    def buffer(self, page: int, layout: int) -> memoryview:
        """Writable memory [block_bytes] of one wanted block; the same one when asked again.

        CapacityFull where the staging memory has no room: flush() makes some.
        """
        self._check_open()
        found = self._extents.get((page, layout))
        if found is None:
            found = self._extent(page, layout)
            self._extents[page, layout] = found
        return self._memory[found.offset : found.offset + found.size]

    def _extent(self, page: int, layout: int) -> Extent:
        if layout not in self._layouts or not 0 <= page < self._pages:
            raise InvalidRequest(
                f"page {page}, layout {layout}: the reservation has {self._pages} pages of "
                f"layouts {list(self._layouts)}"
            )
        column = self._layouts.index(layout)
        if self._verdicts[page * len(self._layouts) + column] != TAKE:
            raise InvalidRequest(f"page {page}, layout {layout} is not wanted: see wanted()")
        size = self._session.block_bytes[layout]
        offset = self._staging.take(size)
        if offset is None:
            raise CapacityFull(
                f"staging: a block of {size} bytes, {self._staging.free_bytes} of "
                f"{self._staging.size_bytes} bytes free; flush() seals what is written"
            )
        return Extent(page, column, offset, size)

    def _check_open(self) -> None:
        if self.is_closed:
            raise HandleClosed("the reservation was sealed or aborted")

    def decline(self, blocks: int, reason: str) -> None:
        """`blocks` more were not offered, for `reason`."""
        self._declined += blocks
        self._reason = reason

    @property
    def outcome(self) -> PutOutcome:
        """What became of the blocks so far."""
        return PutOutcome(self._sealed, self._known, self._declined, self._mismatched, self._reason)

    # ---- sealing ----

    def flush_steps(self, deadline_seconds: float | None) -> Steps[PutOutcome]:
        """Seals what is written so far and keeps the reservation open."""
        self._check_open()
        if self._extents:
            yield from self._seal_extents(deadline_seconds, keep_open=True)
        return self.outcome

    def seal_steps(self, deadline_seconds: float | None) -> Steps[PutOutcome]:
        """Seals what is written and ends the reservation."""
        self._check_open()
        if self._extents:
            self.is_closed = True
            yield from self._seal_extents(deadline_seconds, keep_open=False)
            self._count()
        else:
            yield from self.abort_steps(deadline_seconds)
        return self.outcome

    def abort_steps(self, deadline_seconds: float | None) -> Steps[None]:
        """Ends the reservation; what is not sealed is forgotten."""
        if self.is_closed:
            return
        self.is_closed = True
        self.give_back()
        self._count()
        session, attachment = self._session, self._attachment
        if not self._id or attachment is None or session.is_closed:
            return
        if attachment is not session.attachment:
            return  # it ended with its session
        until = session.until(deadline_seconds)
        if (yield from session.enter(until)):
            return
        request = store.AbortRequest(session_id=attachment.session_id, reservation_id=self._id)
        body = (request.SerializeToString(),)
        try:
            yield from session.call(
                Method.ABORT, lambda _: body, until, pinned=attachment, attempts=1
            )
        except (Unavailable, Refused) as error:
            session.failed(error)
        except AnchorStoreError as error:  # it has ended already, which is all that was wanted
            log.debug("%s: abort: %s", session.address, error)

    def give_back(self) -> None:
        """Frees the staging memory of what is not sealed."""
        for extent in self._take_extents():
            self._staging.give(extent.offset, extent.size)

    def _count(self) -> None:
        counters = self._session.counters
        for name in ("sealed", "known", "declined", "mismatched"):
            counters.add(f"blocks_{name}", getattr(self.outcome, name))

    def _take_extents(self) -> list[Extent]:
        extents = sorted(self._extents.values(), key=lambda extent: extent.offset)
        self._extents.clear()
        return extents

    def _seal_extents(self, deadline_seconds: float | None, *, keep_open: bool) -> Steps[None]:
        """One Seal of everything staged; its bytes are free again, or rest in quarantine."""
        session, extents = self._session, self._take_extents()
        may_be_read = False  # by the daemon, later
        try:
            sums = b""
            if session.options.checksum_writes or not session.is_local:
                size = sum(extent.size for extent in extents)
                sums = yield Work(lambda: self._checksums(extents), size)
            until = session.until(deadline_seconds)
            reason = yield from session.enter(until)
            if reason:
                self.decline(len(extents), reason)
                return
            may_be_read = True
            if not session.is_local:
                yield from self._write_extents(extents, deadline_seconds)
                until = session.until(deadline_seconds)
            reply = yield from self._call(
                Method.SEAL, self._seal_body(extents, sums, keep_open), until, extents
            )
            may_be_read = False
            self._settle(extents, reply.results)
        except AnchorStoreError as error:
            may_be_read = isinstance(error, ConnectFailed | DeadlineExceeded)
            self.decline(len(extents), self._reason_of(error))
        finally:
            if may_be_read:
                self._staging.hold(sum(aligned(extent.size) for extent in extents))
            else:
                for extent in extents:
                    self._staging.give(extent.offset, extent.size)

    def _reason_of(self, error: AnchorStoreError) -> str:
        """The outcome's reason for `error`; raises it where the caller is wrong."""
        if isinstance(error, Unavailable | Refused):
            return self._session.failed(error)
        if isinstance(error, BootChanged):
            return "boot"
        if isinstance(error, LeaseError):
            return "expired"
        raise error

    def _settle(self, extents: list[Extent], results: bytes) -> None:
        if len(results) != len(extents):
            raise InvalidRequest(f"reply: {len(results)} results, expected {len(extents)}")
        self._sealed += results.count(SEALED)
        self._known += results.count(KNOWN)
        self._declined += results.count(DECLINED)
        self._mismatched += results.count(MISMATCHED)
        if results.count(DECLINED):
            self._reason = "capacity"
        written = sum(
            extent.size for extent, result in zip(extents, results, strict=True) if result == SEALED
        )
        self._session.counters.add("bytes_written", written)

    def _call(
        self,
        method: Method,
        body: tuple[bytes, ...],
        until: float,
        extents: list[Extent],
        payload: Sequence[memoryview] = (),
    ) -> Steps[Any]:
        """A call that the staged bytes depend on: made once, in this attachment."""

        def late(_: object) -> None:
            for extent in extents:
                self._staging.give_held(extent.offset, extent.size)

        return self._session.call(
            method,
            lambda _: body,
            until,
            pinned=self._attachment,
            attempts=1,
            on_late=late,
            payload=payload,
        )

    def _seal_body(self, extents: list[Extent], sums: bytes, keep_open: bool) -> tuple[bytes, ...]:
        assert self._attachment is not None
        request = store.SealRequest(
            session_id=self._attachment.session_id,
            reservation_id=self._id,
            pages=np.array([extent.page for extent in extents], "<u4").tobytes(),
            layouts=np.array([extent.column for extent in extents], "u1").tobytes(),
            staging_offsets=np.array([extent.offset for extent in extents], "<u8").tobytes(),
            checksums=sums,
            keep_open=keep_open,
        )
        return (request.SerializeToString(),)

    def _checksums(self, extents: list[Extent]) -> bytes:
        sums = [
            xxhash.xxh3_64_intdigest(self._memory[extent.offset : extent.offset + extent.size])
            for extent in extents
        ]
        return np.array(sums, "<u8").tobytes()

    def _write_extents(self, extents: list[Extent], deadline_seconds: float | None) -> Steps[None]:
        """Sends the staged bytes, neighbours together."""
        assert self._attachment is not None
        for start, stop in _ranges(extents):
            request = store.WriteRequest(
                session_id=self._attachment.session_id, staging_offset=start
            )
            until = self._session.until(deadline_seconds)
            payload = (self._memory[start:stop],)
            body = (request.SerializeToString(),)
            yield from self._call(Method.WRITE, body, until, extents, payload)


def _ranges(extents: list[Extent]) -> list[tuple[int, int]]:
    """(start, stop) of neighbouring extents, each at most WRITE_BYTES_PER_CALL or one block."""
    ranges: list[tuple[int, int]] = []
    for extent in extents:
        stop = extent.offset + extent.size
        if ranges:
            start, end = ranges[-1]
            if aligned(end) == extent.offset and stop - start <= WRITE_BYTES_PER_CALL:
                ranges[-1] = (start, stop)
                continue
        ranges.append((extent.offset, stop))
    return ranges
