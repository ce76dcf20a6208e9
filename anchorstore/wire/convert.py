"""Proto messages to domain values and back: the checks that every byte from outside passes.

Each function either returns a value that the core may trust, or raises a UsageError that names
the thing, its value and the limit.  Columns are packed little-endian arrays.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.errors import InvalidRequest
from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY, Namespace
from anchorstore.layout import Layout, layout_from_cbor
from anchorstore.transport import frames
from anchorstore.wire.v1 import store_pb2 as store

SESSION_ID_BYTES = 16
LEASES_PER_CALL = 16384  # renewed or released; the client's calls name some thousand at most

assert sys.byteorder == "little", "columns travel as they lie in memory"


def check_version(version: int) -> None:
    """InvalidRequest unless the other side speaks this protocol."""
    if version != frames.VERSION:
        raise InvalidRequest(f"protocol version {version}, this daemon speaks {frames.VERSION}")


def namespace_of(spec: store.NamespaceSpec, domain: str) -> Namespace:
    """The namespace that `spec` names in the caller's own domain."""
    return Namespace(
        domain=domain,
        model=spec.model,
        weights_digest=spec.weights_digest,
        adapter=spec.adapter,
        page_tokens=spec.page_tokens,
        salt=spec.salt,
    )


def layouts_of(specs: Sequence[store.LayoutSpec], limit: int) -> list[Layout]:
    """The layouts of an Attach, in order; at most `limit`."""
    if not 1 <= len(specs) <= limit:
        raise InvalidRequest(f"attach: {len(specs)} layouts, must be 1 to {limit}")
    return [
        layout_from_cbor(spec.component, spec.layout, spec.head_start, spec.head_stop)
        for spec in specs
    ]


def layout_spec(layout: Layout) -> store.LayoutSpec:
    """`layout` as Attach sends it."""
    return store.LayoutSpec(
        component=store.Component.Name(int(layout.component)),
        layout=layout.encoded(),
        head_start=layout.head_start,
        head_stop=layout.head_stop,
    )


def hash_count(path_hashes: bytes, limit: int) -> int:
    """Pages in a run of path hashes; InvalidRequest unless 32 n bytes with n up to `limit`."""
    pages, rest = divmod(len(path_hashes), DIGEST_BYTES)
    if rest:
        raise InvalidRequest(
            f"path_hashes has {len(path_hashes)} bytes, must be a multiple of {DIGEST_BYTES}"
        )
    if pages > limit:
        raise InvalidRequest(f"path_hashes names {pages} pages, limit {limit}")
    return pages


def check_digest(name: str, digest: bytes) -> bytes:
    """`digest` where it has 32 bytes."""
    if len(digest) != DIGEST_BYTES:
        raise InvalidRequest(f"{name} has {len(digest)} bytes, must have {DIGEST_BYTES}")
    return digest


def check_lineage(value: int) -> int:
    """`value` where it is a lineage."""
    if value > LINEAGE_ANY:
        raise InvalidRequest(f"lineage {value}, limit {LINEAGE_ANY}")
    return value


def counted(name: str, values: Sequence[int], limit: int) -> list[int]:
    """A repeated field's values; InvalidRequest above `limit`: millions fit into one frame, and
    the event loop would walk them while everybody else waits."""
    if len(values) > limit:
        raise InvalidRequest(f"{name} has {len(values)} entries, limit {limit} a call")
    return list(values)


def lease_ids(values: Sequence[int]) -> list[int]:
    """The leases that a Renew, a Release or a Lookup names."""
    return counted("leases", values, LEASES_PER_CALL)


def column(data: bytes, dtype: str, name: str, length: int | None = None) -> npt.NDArray[Any]:
    """`data` as an array of `dtype`; InvalidRequest unless it holds `length` whole elements."""
    width = np.dtype(dtype).itemsize
    count, rest = divmod(len(data), width)
    if rest:
        raise InvalidRequest(f"{name} has {len(data)} bytes, must be a multiple of {width}")
    if length is not None and count != length:
        raise InvalidRequest(f"{name} has {count} elements, the columns before it {length}")
    return np.frombuffer(data, dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class SealColumns:
    """What a Seal asks for, one element a block [n].

    Attributes:
        pages: uint32, index of the page in the reservation.
        layouts: uint8, index into the reservation's layouts.
        staging_offsets: uint64.
        checksums: uint64 by the writer; None where it gave none.
    """

    pages: npt.NDArray[np.uint32]
    layouts: npt.NDArray[np.uint8]
    staging_offsets: npt.NDArray[np.uint64]
    checksums: npt.NDArray[np.uint64] | None


def event_columns(request: store.EventsRequest, limit: int) -> tuple[npt.NDArray[np.uint8], bytes]:
    """Kinds [n] and path hashes [32 n bytes] of an engine's events; the core checks the kinds."""
    kinds, hashes = column(request.kinds, "u1", "kinds"), request.path_hashes
    if len(kinds) > limit:
        raise InvalidRequest(f"events: {len(kinds)} in one batch, limit {limit}")
    pages = hash_count(hashes, limit)
    if pages != len(kinds):
        raise InvalidRequest(f"events: {len(kinds)} kinds, {pages} path hashes")
    return kinds, hashes


def seal_columns(request: store.SealRequest, limit: int) -> SealColumns:
    """The columns of a Seal, of equal length, at most `limit` blocks."""
    pages = column(request.pages, "<u4", "pages")
    if len(pages) > limit:
        raise InvalidRequest(f"seal names {len(pages)} blocks, limit {limit}")
    return SealColumns(
        pages,
        column(request.layouts, "u1", "layouts", len(pages)),
        column(request.staging_offsets, "<u8", "staging_offsets", len(pages)),
        column(request.checksums, "<u8", "checksums", len(pages)) if request.checksums else None,
    )
