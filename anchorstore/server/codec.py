"""Between the core's values and the messages: needs, seal work, lookup answers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anchorstore.errors import InvalidRequest
from anchorstore.server.core.types import (
    Copies,
    LookupResult,
    Need,
    NeedAll,
    NeedLast,
    NeedWindow,
)
from anchorstore.server.mover import CopyPlan
from anchorstore.tiers.dram import Staging
from anchorstore.transport.device_memory import SlabExport
from anchorstore.transport.segment import Places
from anchorstore.wire.v1 import store_pb2 as pb

NEEDS_MAX = 64
NEED_BYTES_KEPT = 64  # what a peer makes longer is not worth remembering


class WithSession(Protocol):
    """Any request that names a session."""

    session_id: bytes


def needs_of(messages: Iterable[pb.Need]) -> list[Need]:
    """The needs of a Lookup, in order; the core checks layouts and ranges."""
    found: list[Need] = []
    for number, message in enumerate(messages):
        encoded = message.SerializeToString()
        need = _need_of(encoded) if len(encoded) <= NEED_BYTES_KEPT else _decoded(message)
        if need is None:
            raise InvalidRequest(f"need {number} names no kind: all, window or last")
        if number == NEEDS_MAX:
            raise InvalidRequest(f"lookup: more than {NEEDS_MAX} needs")
        found.append(need)
    return found


@functools.lru_cache(maxsize=1024)
def _need_of(encoded: bytes) -> Need | None:
    """One need, decoded once: an engine names the same ones with every request."""
    return _decoded(pb.Need.FromString(encoded))


def _decoded(message: pb.Need) -> Need | None:
    kind = message.WhichOneof("kind")
    if kind == "all":
        return NeedAll(message.layout, message.all.first_page)
    if kind == "window":
        window = message.window
        return NeedWindow(
            message.layout, window.ratio, window.max_rows, window.rows_per_page, window.min_rows
        )
    return NeedLast(message.layout) if kind == "last" else None


def copy_plan(
    source: npt.NDArray[np.uint8],
    source_offsets: npt.NDArray[np.uint64],
    copies: Copies,
    expected: npt.NDArray[np.uint64] | None,
) -> CopyPlan:
    """What the mover is to do for one seal."""
    return CopyPlan(
        source=source,
        source_offsets=source_offsets,
        segment_indices=copies.segment_index,
        slots=copies.slot,
        offsets=copies.offset,
        block_bytes=copies.block_bytes,
        generations=copies.generation,
        path_hashes=copies.path_hash,
        layout_keys=copies.layout_key,
        lineage=copies.lineage,
        expected=expected,
    )


def lookup_response(
    result: LookupResult, lease_ttl_ms: int, on_device: Sequence[Places] = ()
) -> pb.LookupResponse:
    """The answer to a Lookup.  Columns are made in their place: given ready, they were copied.

    `on_device` has the places on the session's device by column; empty where it has none.
    """
    response = pb.LookupResponse(
        boundary_pages=result.boundary_pages,
        resume_pages=result.resume_pages,
        lease_id=result.lease_id,
        lease_ttl_ms=lease_ttl_ms if result.lease_id else 0,
        lineage=result.lineage,
        miss=int(result.miss),  # type: ignore[arg-type]
    )
    for part in result.columns:
        response.columns.add(
            layout=part.layout,
            first_page=part.first_page,
            places=part.places.tobytes(),
        )
    for column, places in zip(response.columns, on_device, strict=bool(on_device)):
        if places["segment"].any():
            column.device_places = places.tobytes()
    return response


def slab_message(export: SlabExport) -> pb.Slab:
    """A slab as it travels."""
    return pb.Slab(
        device=export.bus_id,
        handle=export.handle,
        offset=export.offset,
        size_bytes=export.size_bytes,
    )


def slab_of(message: pb.Slab) -> SlabExport:
    """What a peer says of a slab; InvalidRequest where it cannot be one."""
    return SlabExport(message.device, message.handle, message.offset, message.size_bytes)


def check_staged(
    offsets: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], staging: Staging | None
) -> None:
    """InvalidRequest unless every block lies within the staging memory."""
    if not len(offsets):
        return
    total = 0 if staging is None else staging.size_bytes
    sizes = sizes.astype(np.uint64)
    outside = (sizes > total) | (offsets > np.uint64(total) - np.minimum(sizes, np.uint64(total)))
    if outside.any():
        worst = int(np.argmax(outside))
        raise InvalidRequest(
            f"seal: block at staging offset {int(offsets[worst])} of {int(sizes[worst])} bytes "
            f"lies outside the {total} bytes of staging memory"
        )
