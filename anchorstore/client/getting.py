"""get: blocks of a prefix into the caller's memory.  By way of the hints, else under a lease.

::

    get --> DirectReader.copy -- all of them --> done, no call
                  |
                  +-- some, or none --> lookup of the rest, copy, verify, release

The daemon is told of direct reads in a batch, with the leases that wait to be ended (flush).
Direct reads end with the connection: a daemon that is gone is a miss.
"""

from __future__ import annotations

import functools
from typing import Any

from anchorstore.client import lookups
from anchorstore.client.blocks import BlocksBase
from anchorstore.client.buffers import Bytes, byte_array
from anchorstore.client.effects import Map, Steps, Work
from anchorstore.client.handles import WindowBase
from anchorstore.client.limits import count_pages
from anchorstore.client.options import NeedAll, check_layout, check_range, is_whole
from anchorstore.client.session import Session, log
from anchorstore.errors import (
    AnchorStoreError,
    DataError,
    InvalidRequest,
    LeaseError,
    Refused,
    Unavailable,
)
from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY
from anchorstore.transport.hints import HintView


def get(
    session: Session,
    path_hashes: bytes,
    layout: int,
    destination: Any,
    first_page: int,
    max_lineage: int,
    deadline_seconds: float | None,
    wait_seconds: float = 0.0,
) -> Steps[int]:
    """Copies the blocks of pages first_page, ... and returns how many there were in a row."""
    until, hashes = session.until(deadline_seconds), bytes(memoryview(path_hashes))
    pages = yield from count_pages(session, hashes, until)
    target = _checked(session, pages, layout, destination, first_page, max_lineage)
    wanted, size = pages - first_page, session.block_bytes[layout]
    copied, direct = 0, session.direct
    if direct is not None and session.is_bound and direct.may_read():
        tail = hashes[first_page * DIGEST_BYTES :]
        copied = yield Work(
            functools.partial(direct.copy, tail, layout, max_lineage, target), len(target)
        )
        if copied:
            session.counters.direct_hit(copied, copied * size)
    if copied == wanted:
        return copied
    need = NeedAll(layout, first_page + copied)
    rest = target[copied * size :]
    return copied + (
        yield from _leased(session, hashes, need, rest, max_lineage, until, wait_seconds)
    )


def _checked(
    session: Session,
    pages: int,
    layout: int,
    destination: Any,
    first_page: int,
    max_lineage: int,
) -> Bytes:
    """The destination as bytes; InvalidRequest and HandleClosed for what no daemon need see."""
    session.check_open()
    check_layout(layout, len(session.block_bytes))
    check_range("get: max_lineage", max_lineage, LINEAGE_ANY)
    if not (is_whole(first_page) and 0 <= first_page <= pages):
        raise InvalidRequest(f"get: first page {first_page!r} of {pages} pages")
    target = byte_array(destination, "destination", writable=True)
    count, size = pages - first_page, session.block_bytes[layout]
    if len(target) != count * size:
        raise InvalidRequest(
            f"get: destination has {len(target)} bytes, the {count} blocks from page {first_page} "
            f"on have {count * size}"
        )
    return target


def _leased(
    session: Session,
    hashes: bytes,
    need: NeedAll,
    target: Bytes,
    max_lineage: int,
    until: float,
    wait_seconds: float,
) -> Steps[int]:
    """The same by way of the daemon, which may know more than its hints."""
    yield from _open_hints(session, until)
    direct = session.direct
    epoch = 0 if direct is None else direct.epoch
    left = until - session.clock.now()
    if left <= 0:
        session.counters.miss("deadline")
        return 0
    found = yield from lookups.lookup(session, hashes, [need], max_lineage, 0, left, wait_seconds)
    if direct is not None and direct is session.direct and found.is_enabled:
        direct.seen_enabled(epoch)
    if found.miss:
        return 0
    window = WindowBase(session, found, BlocksBase)
    try:
        blocks = window.blocks(0)
        if len(blocks):
            left = max(0.0, until - session.clock.now())
            yield from blocks.copy_steps(target[: blocks.size_bytes], left)
        return len(blocks)
    except (LeaseError, DataError, Unavailable, Refused) as error:
        log.debug("%s: get: %s", session.address, error)
        return 0
    finally:
        window.end()


def _open_hints(session: Session, until: float) -> Steps[None]:
    """Maps the domain's hints, once an attachment; a daemon that keeps none is not asked again,
    one that cannot give them now not for a while."""
    direct, attachment = session.direct, session.attachment
    if direct is None or attachment is None or not session.is_bound:
        return
    if direct.is_known or session.clock.now() < direct.asked_again_at:
        return
    if (yield from session.enter(until)):
        return
    direct.asked_again_at = session.clock.now() + session.options.retry_seconds
    try:
        mapped = yield Map(attachment.session_id, attachment.boot_id, (), False, until, True)
        memory = mapped.hints
        direct.open(None if memory is None else HintView(memoryview(memory), attachment.boot_id))
    except AnchorStoreError as error:  # the lookup that follows meets the same, and deals with it
        log.debug("%s: no hints: %s", session.address, error)
