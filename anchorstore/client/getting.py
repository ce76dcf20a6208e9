"""get: blocks of a prefix into the caller's memory.  By way of the hints, else under a lease.

::

    get --> DirectReader.copy -- all of them --> done, no call
                  |
                  +-- not all --> lookup, copy, verify, release --> what the daemon has of them

The daemon is told of direct reads in a batch, with the leases that wait to be ended (flush).
"""

from __future__ import annotations

import functools
from typing import Any

from anchorstore.client import lookups
from anchorstore.client.buffers import Bytes, byte_array
from anchorstore.client.effects import Map, Steps, Work
from anchorstore.client.handles import BlocksBase, WindowBase
from anchorstore.client.options import NeedAll, check_hashes
from anchorstore.client.session import Session, log
from anchorstore.errors import DataError, InvalidRequest, LeaseError, Unavailable
from anchorstore.keys import DIGEST_BYTES
from anchorstore.transport.hints import HintView


def get(
    session: Session,
    path_hashes: bytes,
    layout: int,
    destination: Any,
    first_page: int,
    max_lineage: int,
    deadline_seconds: float | None,
) -> Steps[int]:
    """Copies the blocks of pages first_page, ... and returns how many there were in a row."""
    if not 0 <= layout < len(session.block_bytes):
        known = len(session.block_bytes)
        raise InvalidRequest(f"get: layout {layout} is unknown, this client has {known}")
    pages = check_hashes(path_hashes, None)
    if not 0 <= first_page <= pages:
        raise InvalidRequest(f"get: first page {first_page} of {pages} pages")
    target = byte_array(destination, "destination", writable=True)
    size = session.block_bytes[layout]
    if len(target) != (pages - first_page) * size:
        raise InvalidRequest(
            f"get: destination has {len(target)} bytes, the {pages - first_page} blocks from page "
            f"{first_page} on have {(pages - first_page) * size}"
        )
    direct = session.direct
    if direct is not None and direct.may_read() and not session.is_closed:
        wanted = path_hashes[first_page * DIGEST_BYTES :]
        copy = functools.partial(direct.copy, wanted, layout, max_lineage, target)
        copied: int = yield Work(copy, len(target))
        if copied == pages - first_page:
            session.counters.direct_hit(copied, len(target))
            return copied
    return (
        yield from _leased(
            session, path_hashes, NeedAll(layout, first_page), target, max_lineage, deadline_seconds
        )
    )


def _leased(
    session: Session,
    path_hashes: bytes,
    need: NeedAll,
    target: Bytes,
    max_lineage: int,
    deadline_seconds: float | None,
) -> Steps[int]:
    """The same by way of the daemon, which may know more than its hints."""
    yield from _open_hints(session, deadline_seconds)
    direct = session.direct
    epoch = 0 if direct is None else direct.epoch
    found = yield from lookups.lookup(
        session, path_hashes, [need], max_lineage, 0, deadline_seconds
    )
    if direct is not None and direct is session.direct and found.was_answered:
        direct.seen_enabled(epoch)
    if found.miss:
        return 0
    window = WindowBase(session, found, BlocksBase)
    try:
        blocks = window.blocks(0)
        if len(blocks):
            yield from blocks.copy_steps(target[: blocks.size_bytes], deadline_seconds)
        return len(blocks)
    except (LeaseError, DataError, Unavailable) as error:
        log.debug("%s: get: %s", session.address, error)
        return 0
    finally:
        window.end()


def _open_hints(session: Session, deadline_seconds: float | None) -> Steps[None]:
    """Maps the domain's hints, once an attachment; a daemon that keeps none is not asked again."""
    direct, attachment = session.direct, session.attachment
    if direct is None or direct.is_known or attachment is None or not session.is_bound:
        return
    until = session.until(deadline_seconds)
    if (yield from session.enter(until)):
        return
    try:
        mapped = yield Map(attachment.session_id, attachment.boot_id, (), False, until, True)
    except (Unavailable, LeaseError) as error:
        log.debug("%s: no hints: %s", session.address, error)
        return
    view = mapped.hints and HintView(memoryview(mapped.hints), attachment.boot_id)
    direct.open(view or None)
