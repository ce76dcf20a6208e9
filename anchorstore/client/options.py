"""What a caller tells the client: who it is, what it needs, how long it waits.  Plain values.

Every bound is checked here, before anything is sent, and again by the daemon.
"""

from __future__ import annotations

import dataclasses
import math
import ssl
from collections.abc import Sequence

from anchorstore.errors import InvalidRequest
from anchorstore.keys import DIGEST_BYTES, LINEAGE_ANY, Namespace
from anchorstore.transport.address import parse_address
from anchorstore.transport.cuda import CudaDevice
from anchorstore.wire.v1 import store_pb2 as store

LAYOUTS_MAX = 255
UINT32_MAX = 2**32 - 1
PRIORITY_MIN, PRIORITY_MAX = -(2**15), 2**15 - 1
WAIT_SECONDS_MAX = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """What makes prefixes comparable, but for the domain, which authentication decides.

    Attributes:
        model: the model's name, as operators know it.
        weights_digest: 32 bytes, SHA-256 over the sorted tensors.
        adapter: identity of a LoRA adapter, "" for none.
        page_tokens: tokens in a page.
        salt: the caller's cache salt, b"" for none.
    """

    model: str
    weights_digest: bytes
    adapter: str = ""
    page_tokens: int = 64
    salt: bytes = b""

    def __post_init__(self) -> None:
        Namespace(  # checks every field; the domain is the daemon's to say
            domain="unknown",
            model=self.model,
            weights_digest=self.weights_digest,
            adapter=self.adapter,
            page_tokens=self.page_tokens,
            salt=self.salt,
        )

    def message(self) -> store.NamespaceSpec:
        """As Attach sends it."""
        return store.NamespaceSpec(
            model=self.model,
            weights_digest=self.weights_digest,
            adapter=self.adapter,
            page_tokens=self.page_tokens,
            salt=self.salt,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves.

    Attributes:
        name: shown by `anchorstore status`.
        token: credentials for tcp://; the Unix socket goes by peer credentials.
        deadline_seconds: longest any call takes, connecting included.  A put or a remote read of
            many blocks is several calls, each with this deadline.
        retry_seconds: after a daemon did not answer, calls return misses at once for so long;
            then one call tries again.
        release_linger_seconds: ended leases wait so long for a lookup that takes them along.
        staging_bytes: memory for blocks on their way to the daemon; 0 for a client that only
            reads.
        checksum_reads: same host: copy_into also compares each block's xxh3 with the sealed one.
            Reads from a remote daemon always do.
        checksum_writes: same host: send each block's xxh3 along, so that the daemon notices where
            it was damaged in staging.  Writes to a remote daemon always do.
        max_lineage: deepest lineage that the namespace stores; None leaves it to the daemon.
        device: the CUDA device on which this client copies blocks (client.device.open_device); None
            for a client that reads in host memory alone.
        device_place: place on the bus of the device that the session's readers are on, where they
            are other processes (Client.join); `device` says it otherwise.
        tls_ca: file of the authority that signed the daemon's certificate; turns TLS on.
        tls: a ready context instead of `tls_ca` (client certificates, for example).
    """

    name: str = ""
    token: str = dataclasses.field(default="", repr=False)
    deadline_seconds: float = 1.0
    retry_seconds: float = 1.0
    release_linger_seconds: float = 0.25
    staging_bytes: int = 64 * 2**20
    checksum_reads: bool = False
    checksum_writes: bool = False
    max_lineage: int | None = None
    device: CudaDevice | None = None
    device_place: str = ""
    tls_ca: str | None = None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for name in ("deadline_seconds", "retry_seconds", "release_linger_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"client option {name} is {value}, must be above 0")
        if self.staging_bytes < 0:
            raise InvalidRequest(
                f"client option staging_bytes is {self.staging_bytes}, must be 0 or more"
            )
        if self.max_lineage is not None:
            check_range("client option max_lineage", self.max_lineage, LINEAGE_ANY)

    @property
    def place_of_device(self) -> str:
        """Of the device that is read on; "" for none."""
        return self.device_place if self.device is None else self.device.bus_id

    def tls_context(self) -> ssl.SSLContext | None:
        """The context for tcp://; None for plain TCP."""
        if self.tls is not None or self.tls_ca is None:
            return self.tls
        return ssl.create_default_context(cafile=self.tls_ca)


@dataclasses.dataclass(frozen=True, slots=True)
class NeedAll:
    """Every page of a layout from `first_page` up to the resume point (kv)."""

    layout: int
    first_page: int = 0

    def message(self) -> store.Need:
        """As Lookup sends it."""
        check_range("need: first_page", self.first_page, UINT32_MAX)
        return store.Need(layout=self.layout, all=store.NeedAll(first_page=self.first_page))


@dataclasses.dataclass(frozen=True, slots=True)
class NeedWindow:
    """The trailing pages that hold min(ceil(ratio n), max_rows) rows, n = tokens resumed (anchors).

    Fewer rows are accepted, down to `min_rows`; 0 accepts none fewer.
    """

    layout: int
    ratio: float
    max_rows: int
    rows_per_page: int
    min_rows: int = 0

    def message(self) -> store.Need:
        """As Lookup sends it."""
        if not (math.isfinite(self.ratio) and 0 <= self.ratio <= 1):
            raise InvalidRequest(f"need: ratio is {self.ratio}, must be 0 to 1")
        for name in ("max_rows", "rows_per_page"):
            check_range(f"need: {name}", getattr(self, name), UINT32_MAX, least=1)
        check_range("need: min_rows", self.min_rows, UINT32_MAX)
        window = store.NeedWindow(
            ratio=self.ratio,
            max_rows=self.max_rows,
            rows_per_page=self.rows_per_page,
            min_rows=self.min_rows,
        )
        return store.Need(layout=self.layout, window=window)


@dataclasses.dataclass(frozen=True, slots=True)
class NeedLast:
    """The last page before the resume point alone (an exact state)."""

    layout: int

    def message(self) -> store.Need:
        """As Lookup sends it."""
        return store.Need(layout=self.layout, last=store.NeedLast())


Need = NeedAll | NeedWindow | NeedLast


def check_address(address: str) -> None:
    """InvalidRequest where this is no address of a daemon."""
    parse_address(address)


def is_whole(value: object) -> bool:
    """Whether it counts something: int, numpy's integers; no bool."""
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def check_range(name: str, value: int, limit: int, *, least: int = 0) -> None:
    """InvalidRequest unless it is a whole number from `least` to `limit`."""
    if not is_whole(value):
        raise InvalidRequest(f"{name} is {value!r}, must be a whole number")
    if not least <= value <= limit:
        raise InvalidRequest(f"{name} is {value}, must be {least} to {limit}")


def check_wait(seconds: float) -> None:
    """InvalidRequest unless it is 0 up to a day."""
    if not 0 <= seconds <= WAIT_SECONDS_MAX:  # also false for a NaN
        raise InvalidRequest(f"wait_seconds is {seconds}, must be 0 to {WAIT_SECONDS_MAX:g}")


def check_hashes(hashes: bytes, max_pages: int | None) -> int:
    """Pages in a run of path hashes; InvalidRequest unless 32 n bytes, n up to `max_pages`."""
    pages, rest = divmod(len(hashes), DIGEST_BYTES)
    if rest:
        raise InvalidRequest(
            f"path hashes have {len(hashes)} bytes, must be a multiple of {DIGEST_BYTES}"
        )
    if max_pages is not None and pages > max_pages:
        raise InvalidRequest(f"path hashes name {pages} pages, limit {max_pages} in one call")
    return pages


def check_layout(layout: int, known: int) -> None:
    """InvalidRequest unless it is a position among `known` layouts."""
    if not (is_whole(layout) and 0 <= layout < known):
        raise InvalidRequest(f"layout {layout!r} is unknown, this client has {known}")


def check_layouts(layouts: Sequence[int], known: int) -> None:
    """InvalidRequest unless each of `layouts` is a position among `known` layouts, once."""
    for layout in layouts:
        check_layout(layout, known)
    if len(set(layouts)) != len(layouts):
        raise InvalidRequest(f"layouts {list(layouts)} name one twice")
