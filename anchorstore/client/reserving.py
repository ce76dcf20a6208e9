"""Asking for a reservation, and whole puts: the steps around writing.py."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

from anchorstore.client.attachment import Attachment
from anchorstore.client.buffers import BlockRows, Bytes, byte_array
from anchorstore.client.effects import Map, Steps, Work
from anchorstore.client.limits import count_pages
from anchorstore.client.options import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    UINT32_MAX,
    check_hashes,
    check_layouts,
    check_range,
)
from anchorstore.client.session import Session
from anchorstore.client.writing import TAKE, Answer, PutOutcome, ReservationBase
from anchorstore.errors import (
    AnchorStoreError,
    CapacityFull,
    InvalidRequest,
    LeaseExpired,
    Refused,
    Unavailable,
    UnknownSession,
)
from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store


def reserve(
    session: Session,
    parent_hash: bytes | None,
    first_page: int,
    hashes: bytes,
    layouts: tuple[int, ...],
    lineage: int,
    deadline_seconds: float | None,
    priority: int = 0,
) -> Steps[Answer]:
    """Asks which blocks are wanted; where some are, the staging memory is there afterwards.

    `parent_hash` of None stands for the root digest.
    """
    until = session.until(deadline_seconds)
    pages = yield from count_pages(session, hashes, until)
    _check_reserve(session, parent_hash, first_page, layouts, lineage)
    check_range("reserve: priority", priority, PRIORITY_MAX, least=PRIORITY_MIN)
    reason = yield from session.enter(until)
    if reason:
        return Answer(pages, None, reason)

    def build(attachment: Attachment) -> tuple[bytes, ...]:
        check_hashes(hashes, attachment.max_pages)
        request = store.ReserveRequest(
            session_id=attachment.session_id,
            parent_hash=attachment.root_digest if parent_hash is None else parent_hash,
            first_page=first_page,
            path_hashes=hashes,
            layouts=layouts,
            lineage=lineage,
            priority=priority,
        )
        return (request.SerializeToString(),)

    try:
        if not pages:
            return Answer(0, None)
        reply = yield from session.call(Method.RESERVE, build, until)
        if TAKE in reply.verdicts:
            yield from _map_staging(session, until)
    except (Unavailable, Refused) as error:
        return Answer(pages, None, session.failed(error))
    except LeaseExpired:
        return Answer(pages, None, "expired")
    return Answer(
        pages, reply, reply.reason, session.attachment, session.staging, session.staging_memory
    )


def _check_reserve(
    session: Session,
    parent_hash: bytes | None,
    first_page: int,
    layouts: tuple[int, ...],
    lineage: int,
) -> None:
    known = session.attachment
    if parent_hash is not None and len(parent_hash) != DIGEST_BYTES:
        raise InvalidRequest(f"parent hash has {len(parent_hash)} bytes, must have {DIGEST_BYTES}")
    if not layouts:
        raise InvalidRequest("reserve: no layouts, name at least one")
    check_layouts(layouts, len(session.block_bytes))
    check_range("reserve: first_page", first_page, UINT32_MAX)
    check_range("reserve: lineage", lineage, LINEAGE_ANY)
    staging_bytes = session.options.staging_bytes if known is None else known.staging_bytes
    for layout in layouts:
        if session.block_bytes[layout] > staging_bytes:
            raise InvalidRequest(
                f"layout {layout}: blocks of {session.block_bytes[layout]} bytes do not fit the "
                f"{staging_bytes} bytes of staging memory of this client"
            )


def _map_staging(session: Session, until: float) -> Steps[None]:
    """Has the staging memory: the session's memfd (same host), or memory of our own (remote)."""
    attachment = session.attachment
    assert attachment is not None, "a reply came without an attachment"
    if len(session.staging_memory):
        return
    if not session.is_local:
        session.staging_memory = memoryview(mmap.mmap(-1, attachment.staging_bytes))
        return
    try:
        mapped = yield Map(attachment.session_id, attachment.boot_id, (), True, until)
    except UnknownSession as error:
        raise LeaseExpired(str(error)) from error
    assert mapped.staging is not None, "asked for the staging memory"
    session.staging_memory = memoryview(mapped.staging)


def put(
    session: Session,
    parent_hash: bytes | None,
    first_page: int,
    hashes: bytes,
    blocks: Mapping[int, BlockRows],
    lineage: int,
    deadline_seconds: float | None,
    priority: int = 0,
) -> Steps[PutOutcome]:
    """Reserves, fills and seals a whole run, as many Seals as the staging memory asks for."""
    layouts = tuple(sorted(blocks))
    pages = yield from count_pages(session, hashes, session.until(deadline_seconds))
    _check_reserve(session, parent_hash, first_page, layouts, lineage)
    for layout in layouts:
        if len(blocks[layout]) != pages:
            raise InvalidRequest(
                f"put: {len(blocks[layout])} blocks of layout {layout} for {pages} pages"
            )
    answer = yield from reserve(
        session, parent_hash, first_page, hashes, layouts, lineage, deadline_seconds, priority
    )
    reservation = ReservationBase(session, layouts, answer)
    try:
        yield from _fill(session, reservation, blocks, deadline_seconds)
        return (yield from reservation.seal_steps(deadline_seconds))
    except AnchorStoreError:
        yield from reservation.abort_steps(deadline_seconds)
        raise
    finally:
        reservation.give_back()  # interrupted half-way: nobody else knows its bytes


def _fill(
    session: Session,
    reservation: ReservationBase,
    blocks: Mapping[int, BlockRows],
    deadline_seconds: float | None,
) -> Steps[None]:
    """Copies every wanted block that the caller has into staging, flushing when it is full."""
    copies: list[tuple[memoryview, Bytes]] = []
    wanted = [key for key in reservation.wanted() if blocks[key[1]][key[0]] is not None]
    for position, (page, layout) in enumerate(wanted):
        source = byte_array(blocks[layout][page], f"block of page {page}, layout {layout}")
        size = session.block_bytes[layout]
        if len(source) != size:
            raise InvalidRequest(
                f"block of page {page}, layout {layout} has {len(source)} bytes, must have {size}"
            )
        try:
            target = reservation.buffer(page, layout)
        except CapacityFull:
            yield _copy_all(copies)
            copies = []
            declined = reservation.outcome.declined
            outcome = yield from reservation.flush_steps(deadline_seconds)
            if outcome.declined > declined and outcome.reason != "capacity":
                reservation.decline(len(wanted) - position, outcome.reason)
                return
            try:
                target = reservation.buffer(page, layout)
            except CapacityFull:  # other reservations have it
                reservation.decline(len(wanted) - position, "staging")
                return
        copies.append((target, source))
    if copies:
        yield _copy_all(copies)


def _copy_all(copies: list[tuple[memoryview, Bytes]]) -> Work:
    def copy() -> None:
        for target, source in copies:
            np.copyto(np.frombuffer(target, np.uint8), source)

    return Work(copy, sum(len(source) for _, source in copies))
