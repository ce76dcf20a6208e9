"""Look up, hold, end: the read side's steps over a Session.

::

    lookup --> Found(reply, lease) --> window ... --> pending --+--> rides on the next lookup
                                                                +--> flush(), a call of its own

A lookup of 512 pages should cost what its round trip costs: the request is put together from
pieces that are encoded once, the reply's columns stay bytes until somebody reads a block.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Sequence

from anchorstore.client.attachment import Attachment
from anchorstore.client.effects import Map, Steps
from anchorstore.client.limits import count_pages
from anchorstore.client.options import (
    UINT32_MAX,
    Need,
    check_hashes,
    check_layout,
    check_range,
    check_wait,
)
from anchorstore.client.session import Session, log
from anchorstore.errors import (
    ConnectFailed,
    InvalidRequest,
    LeaseError,
    LeaseExpired,
    Refused,
    Unavailable,
    UnknownSession,
)
from anchorstore.keys import LINEAGE_ANY
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store

RELEASES_PER_CALL = 1024
NEEDS_KEPT = 64
WAIT_PART = 0.9  # of what is left of a deadline: the answer must still arrive
MISS_OF_REPLY = {
    int(store.MISS_REASON_UNSPECIFIED): "",
    int(store.MISS_REASON_NOT_STORED): "not_stored",
    int(store.MISS_REASON_INCOMPLETE): "incomplete",
    int(store.MISS_REASON_LINEAGE): "lineage",
    int(store.MISS_REASON_MARGIN): "margin",
    int(store.MISS_REASON_DISABLED): "disabled",
    int(store.MISS_REASON_COLD): "cold",
}
_LOOKUP = Method.LOOKUP  # looked up once: an enum's attributes are slow
_HASHES_FIELD = b"\x12"  # LookupRequest.path_hashes: field 2, length-delimited
_SESSION_FIELD = struct.Struct("<BB16s")  # LookupRequest.session_id: field 1, 16 bytes


@dataclasses.dataclass(slots=True)
class Found:
    """A lookup's outcome: a reply and the attachment it came under, or a miss reason.
    `is_enabled`: a daemon has answered, and not that the namespace is turned off.
    `loading_boundary_pages`: the boundary once what is on its way into memory has come."""

    miss: str
    attachment: Attachment | None = None
    reply: store.LookupResponse | None = None
    expires_at: float = 0.0
    is_enabled: bool = False
    loading_boundary_pages: int = 0


def lookup(
    session: Session,
    hashes: bytes,
    needs: Sequence[Need],
    max_lineage: int,
    margin_pages: int,
    deadline_seconds: float | None,
    wait_seconds: float = 0.0,
    prefetch: bool = False,
) -> Steps[Found]:
    """The largest boundary that satisfies `needs`, or why there is none; counted."""
    check_wait(wait_seconds)
    started_at = session.clock.now()
    until = started_at + session.seconds(deadline_seconds)
    pages = yield from count_pages(session, hashes, until)
    known = session.attachment
    encoded = encoded_needs(session, tuple(needs), max_lineage, margin_pages)
    reason = yield from session.enter(until)
    if reason:
        return _missed(session, reason)
    taken: tuple[Attachment, list[int]] | None = None

    def build(attachment: Attachment) -> tuple[bytes, ...]:
        nonlocal taken
        if attachment is not known:
            check_hashes(hashes, attachment.max_pages)
        earlier = taken[1] if taken is not None and taken[0] is attachment else []
        taken = attachment, earlier + take_pending(session, attachment)
        left = until - session.clock.now()
        wait_ms = int(1000 * max(0.0, min(wait_seconds, WAIT_PART * left)))
        return lookup_body(attachment.session_id, encoded, hashes, taken[1], wait_ms, prefetch)

    def late(reply: store.LookupResponse | None) -> None:
        if reply is not None and reply.lease_id and taken is not None:
            session.pending.append((taken[0], reply.lease_id))

    try:
        if not pages:  # nothing to ask, but a reason to be attached when there is
            if not session.is_bound:
                yield from session.rebind(until)
                session.gate.open()
            return _missed(session, "not_stored")
        reply = yield from session.call(_LOOKUP, build, until, on_late=late)
    except (Unavailable, Refused) as error:
        if taken is not None:
            session.pending.extend((taken[0], lease_id) for lease_id in taken[1])
        return _missed(session, session.failed(error))
    assert taken is not None, "a reply came, so a request was built"
    if reply.miss:
        reason = MISS_OF_REPLY.get(reply.miss, "incomplete")
        session.counters.miss(reason)
        return Found(
            reason,
            is_enabled=reason != "disabled",
            loading_boundary_pages=reply.loading_boundary_pages,
        )
    session.counters.hit(reply.resume_pages)
    expires_at = started_at + taken[0].read_ttl_seconds  # early where it has waited
    return Found("", taken[0], reply, expires_at, True, reply.loading_boundary_pages)


def _missed(session: Session, reason: str) -> Found:
    session.counters.miss(reason)
    return Found(reason)


def encoded_needs(
    session: Session, needs: tuple[Need, ...], max_lineage: int, margin_pages: int
) -> bytes:
    """The part of a LookupRequest that requests share; it is checked once."""
    key = (needs, max_lineage, margin_pages)
    found = session.needs_kept.get(key)
    if found is not None:
        return found
    if not needs:
        raise InvalidRequest("lookup: no needs, name at least one")
    known = len(session.block_bytes)
    for need in needs:
        if not isinstance(need, Need):
            raise InvalidRequest(f"lookup: {need!r} is no NeedAll, NeedWindow or NeedLast")
        check_layout(need.layout, known)
    check_range("lookup: max_lineage", max_lineage, LINEAGE_ANY)
    check_range("lookup: margin_pages", margin_pages, UINT32_MAX)
    encoded = store.LookupRequest(
        needs=[need.message() for need in needs],
        max_lineage=max_lineage,
        margin_pages=margin_pages,
    ).SerializeToString()
    if len(session.needs_kept) >= NEEDS_KEPT:
        session.needs_kept.clear()
    session.needs_kept[key] = encoded
    return encoded


def lookup_body(
    session_id: bytes,
    needs: bytes,
    hashes: bytes,
    leases: list[int],
    wait_ms: int = 0,
    prefetch: bool = False,
) -> tuple[bytes, ...]:
    """A LookupRequest in pieces (protobuf messages concatenate): the hashes are not encoded anew.

    16 KiB of hashes through the encoder cost more than the rest of the request.
    """
    head = _SESSION_FIELD.pack(0x0A, 16, session_id)
    size = _varint(len(hashes))
    if not (leases or wait_ms or prefetch):
        return (head, needs, _HASHES_FIELD, size, hashes)
    tail = store.LookupRequest(
        release_leases=leases, wait_ms=wait_ms, prefetch=prefetch
    ).SerializeToString()
    return (head, needs, _HASHES_FIELD, size, hashes, tail)


@functools.lru_cache(maxsize=1024)
def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_pending(session: Session, attachment: Attachment) -> list[int]:
    """Leases of `attachment` to end; those of earlier attachments have ended with them."""
    taken: list[int] = []
    while session.pending and len(taken) < RELEASES_PER_CALL:
        owner, lease_id = session.pending.popleft()
        if owner is attachment:
            taken.append(lease_id)
    return taken


def flush(session: Session, until: float) -> Steps[None]:
    """Ends the leases that wait and tells of direct reads, in calls of their own; the leases of a
    lost session have ended."""
    if not session.has_news or session.is_closed:
        return
    if (yield from session.enter(until)):
        return
    try:
        while session.pending and session.is_bound:
            attachment = session.attachment
            assert attachment is not None, "bound to nothing"
            leases = take_pending(session, attachment)
            if leases:
                yield from _release(session, attachment, leases, until)
        yield from _touch(session, until)
    except LeaseError as error:
        log.debug("%s: leases ended with their session: %s", session.address, error)
    except ConnectFailed as error:  # they have ended with it; the next call dials anew at once
        log.debug("%s: leases ended with their connection: %s", session.address, error)
    except (Unavailable, Refused) as error:
        session.failed(error)


def _release(
    session: Session, attachment: Attachment, leases: list[int], until: float
) -> Steps[None]:
    request = store.ReleaseRequest(session_id=attachment.session_id, lease_ids=leases)
    body = (request.SerializeToString(),)
    yield from session.call(Method.RELEASE, lambda _: body, until, pinned=attachment, attempts=1)


def _touch(session: Session, until: float) -> Steps[None]:
    """Names the pages that were read by way of the hints."""
    direct, attachment = session.direct, session.attachment
    if direct is None or attachment is None or not session.is_bound:
        return
    hashes = direct.take_touched(attachment.max_pages)
    if hashes:
        request = store.TouchRequest(session_id=attachment.session_id, path_hashes=hashes)
        body = (request.SerializeToString(),)
        yield from session.call(Method.TOUCH, lambda _: body, until, pinned=attachment, attempts=1)


def renew(session: Session, attachment: Attachment, lease_id: int, until: float) -> Steps[float]:
    """Extends a lease: when it ends now.  LeaseError where it has ended already."""
    yield from session.enter_or_raise(until)
    sent_at = session.clock.now()
    request = store.RenewRequest(session_id=attachment.session_id, lease_ids=[lease_id])
    body = (request.SerializeToString(),)
    call = session.call(Method.RENEW, lambda _: body, until, pinned=attachment)
    reply = yield from session.guarded(call)
    if lease_id in reply.lost:
        raise LeaseExpired(f"lease {lease_id} had ended before it was renewed")
    return sent_at + attachment.read_ttl_seconds


def map_segments(
    session: Session, attachment: Attachment, segment_ids: Iterable[int], until: float
) -> Steps[None]:
    """Has `segment_ids` in the cache; LeaseError where `attachment` is over.

    Runs with the lock taken.
    """
    missing = session.cache.missing(attachment.boot_id, segment_ids)
    if not missing:
        return
    if attachment is not session.attachment:
        raise session.ended(attachment)
    try:
        mapped = yield Map(attachment.session_id, attachment.boot_id, missing, False, until)
    except UnknownSession as error:
        raise LeaseExpired(str(error)) from error
    session.cache.add(attachment.boot_id, mapped)


def read_blocks(
    session: Session,
    attachment: Attachment,
    lease_id: int,
    need: int,
    first: int,
    into: memoryview,
    block_bytes: int,
    until: float,
) -> Steps[None]:
    """Fetches blocks of a remote lease straight into `into`, which holds a whole number of them."""
    count = len(into) // block_bytes
    request = store.ReadRequest(
        session_id=attachment.session_id, lease_id=lease_id, need=need, first=first, count=count
    )
    body = (request.SerializeToString(),)
    call = session.call(Method.READ, lambda _: body, until, pinned=attachment, into=into)
    reply = yield from session.guarded(call)
    if reply.block_bytes != block_bytes:
        raise InvalidRequest(f"read: blocks of {reply.block_bytes} bytes, expected {block_bytes}")
