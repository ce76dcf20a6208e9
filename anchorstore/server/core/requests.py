"""Checks of what comes in: every limit, with a clear error before anything changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstore.errors import InvalidKey, InvalidRequest
from anchorstore.keys import DIGEST_BYTES
from anchorstore.server.core.sessions import Session
from anchorstore.server.core.types import U64, Need, NeedAll, NeedWindow, StoreConfig

NEEDS_MAX = 32
PAGE_INDEX_LIMIT = 2**32


def hash_columns(config: StoreConfig, hashes: bytes) -> U64:
    """Path hashes as u64[n, 4]; InvalidKey for another length than 32 n, n in 1..max_pages."""
    if len(hashes) % DIGEST_BYTES:
        raise InvalidKey(f"path hashes have {len(hashes)} bytes, must be a multiple of 32")
    count = len(hashes) // DIGEST_BYTES
    if not 1 <= count <= config.max_pages:
        raise InvalidRequest(f"{count} pages in one call, must be 1 to {config.max_pages}")
    return np.frombuffer(hashes, np.uint64).reshape(count, 4)


def check_layouts(session: Session, layouts: Sequence[int]) -> None:
    """Positions among the session's layouts, each once."""
    if not layouts:
        raise InvalidRequest("no layout named")
    if len(set(layouts)) != len(layouts):
        raise InvalidRequest(f"layouts {list(layouts)} name one twice")
    for layout in layouts:
        check_layout(session, layout)


def check_layout(session: Session, layout: int) -> None:
    """One position among the session's layouts."""
    if not 0 <= layout < len(session.kinds):
        raise InvalidRequest(f"layout {layout} of {len(session.kinds)}")


def check_needs(session: Session, needs: Sequence[Need]) -> None:
    """Needs whose arithmetic cannot overflow."""
    if not 1 <= len(needs) <= NEEDS_MAX:
        raise InvalidRequest(f"{len(needs)} needs, must be 1 to {NEEDS_MAX}")
    for need in needs:
        check_layout(session, need.layout)
        if isinstance(need, NeedAll) and not 0 <= need.first_page < PAGE_INDEX_LIMIT:
            raise InvalidRequest(f"first page {need.first_page} is outside 0..2^32-1")
        if isinstance(need, NeedWindow):
            page_tokens = session.record.namespace.page_tokens
            if not 0.0 <= need.ratio <= 1.0:  # also false for a NaN
                raise InvalidRequest(f"window ratio {need.ratio} is outside 0..1")
            if not 1 <= need.rows_per_page <= page_tokens:
                raise InvalidRequest(
                    f"window of {need.rows_per_page} rows a page, must be 1 to {page_tokens}"
                )
            if not 0 <= need.max_rows < PAGE_INDEX_LIMIT or need.min_rows < 0:
                raise InvalidRequest(f"window rows {need.min_rows}..{need.max_rows}")


def check_run(
    session: Session, parent_hash: bytes, first_page: int, hashes: U64, lineage: int
) -> None:
    """A run of pages to write: page 0 follows the root, no page repeats, indexes fit."""
    if len(parent_hash) != DIGEST_BYTES:
        raise InvalidKey(f"parent hash has {len(parent_hash)} bytes, must have {DIGEST_BYTES}")
    if not 0 <= first_page <= PAGE_INDEX_LIMIT - len(hashes):
        raise InvalidRequest(f"pages {first_page}..{first_page + len(hashes)} exceed 2^32")
    if (first_page == 0) != (parent_hash == session.record.root_digest):
        raise InvalidKey(f"page {first_page}: page 0, and no other, follows the root digest")
    if lineage < 0:
        raise InvalidRequest(f"lineage is {lineage}, must not be negative")
    keys = {key.tobytes() for key in hashes}
    if len(keys) != len(hashes) or parent_hash in keys:
        raise InvalidKey("a path hash repeats within one run")
