from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Component(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPONENT_UNSPECIFIED: _ClassVar[Component]
    COMPONENT_ANCHOR: _ClassVar[Component]
    COMPONENT_KV: _ClassVar[Component]
    COMPONENT_STATE: _ClassVar[Component]

class MissReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_REASON_UNSPECIFIED: _ClassVar[MissReason]
    MISS_REASON_NOT_STORED: _ClassVar[MissReason]
    MISS_REASON_INCOMPLETE: _ClassVar[MissReason]
    MISS_REASON_LINEAGE: _ClassVar[MissReason]
    MISS_REASON_MARGIN: _ClassVar[MissReason]
    MISS_REASON_DISABLED: _ClassVar[MissReason]
    MISS_REASON_COLD: _ClassVar[MissReason]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_STORED: _ClassVar[EventKind]
    EVENT_KIND_REMOVED: _ClassVar[EventKind]
    EVENT_KIND_TOUCHED: _ClassVar[EventKind]
    EVENT_KIND_PINNED: _ClassVar[EventKind]
    EVENT_KIND_UNPINNED: _ClassVar[EventKind]
COMPONENT_UNSPECIFIED: Component
COMPONENT_ANCHOR: Component
COMPONENT_KV: Component
COMPONENT_STATE: Component
MISS_REASON_UNSPECIFIED: MissReason
MISS_REASON_NOT_STORED: MissReason
MISS_REASON_INCOMPLETE: MissReason
MISS_REASON_LINEAGE: MissReason
MISS_REASON_MARGIN: MissReason
MISS_REASON_DISABLED: MissReason
MISS_REASON_COLD: MissReason
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_STORED: EventKind
EVENT_KIND_REMOVED: EventKind
EVENT_KIND_TOUCHED: EventKind
EVENT_KIND_PINNED: EventKind
EVENT_KIND_UNPINNED: EventKind

class NamespaceSpec(_message.Message):
    __slots__ = ("model", "weights_digest", "adapter", "page_tokens", "salt")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    model: str
    weights_digest: bytes
    adapter: str
    page_tokens: int
    salt: bytes
    def __init__(self, model: _Optional[str] = ..., weights_digest: _Optional[bytes] = ..., adapter: _Optional[str] = ..., page_tokens: _Optional[int] = ..., salt: _Optional[bytes] = ...) -> None: ...

class LayoutSpec(_message.Message):
    __slots__ = ("component", "layout", "head_start", "head_stop")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    HEAD_START_FIELD_NUMBER: _ClassVar[int]
    HEAD_STOP_FIELD_NUMBER: _ClassVar[int]
    component: Component
    layout: bytes
    head_start: int
    head_stop: int
    def __init__(self, component: _Optional[_Union[Component, str]] = ..., layout: _Optional[bytes] = ..., head_start: _Optional[int] = ..., head_stop: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("protocol_version", "client_name", "token", "namespace", "layouts", "staging_bytes", "max_lineage", "device")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_name: str
    token: str
    namespace: NamespaceSpec
    layouts: _containers.RepeatedCompositeFieldContainer[LayoutSpec]
    staging_bytes: int
    max_lineage: int
    device: str
    def __init__(self, protocol_version: _Optional[int] = ..., client_name: _Optional[str] = ..., token: _Optional[str] = ..., namespace: _Optional[_Union[NamespaceSpec, _Mapping]] = ..., layouts: _Optional[_Iterable[_Union[LayoutSpec, _Mapping]]] = ..., staging_bytes: _Optional[int] = ..., max_lineage: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class Slab(_message.Message):
    __slots__ = ("device", "handle", "offset", "size_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: str
    handle: bytes
    offset: int
    size_bytes: int
    def __init__(self, device: _Optional[str] = ..., handle: _Optional[bytes] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class LayoutGrant(_message.Message):
    __slots__ = ("digest", "block_bytes", "slot_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    block_bytes: int
    slot_bytes: int
    def __init__(self, digest: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("session_id", "boot_id", "domain", "root_digest", "layouts", "staging_bytes", "max_pages", "max_lineage", "read_ttl_ms", "write_ttl_ms", "session_ttl_ms", "slab")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    READ_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    WRITE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    boot_id: bytes
    domain: str
    root_digest: bytes
    layouts: _containers.RepeatedCompositeFieldContainer[LayoutGrant]
    staging_bytes: int
    max_pages: int
    max_lineage: int
    read_ttl_ms: int
    write_ttl_ms: int
    session_ttl_ms: int
    slab: Slab
    def __init__(self, session_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., domain: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., layouts: _Optional[_Iterable[_Union[LayoutGrant, _Mapping]]] = ..., staging_bytes: _Optional[int] = ..., max_pages: _Optional[int] = ..., max_lineage: _Optional[int] = ..., read_ttl_ms: _Optional[int] = ..., write_ttl_ms: _Optional[int] = ..., session_ttl_ms: _Optional[int] = ..., slab: _Optional[_Union[Slab, _Mapping]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "session_id", "token")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    session_id: bytes
    token: str
    def __init__(self, protocol_version: _Optional[int] = ..., session_id: _Optional[bytes] = ..., token: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("boot_id",)
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    def __init__(self, boot_id: _Optional[bytes] = ...) -> None: ...

class DetachRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    def __init__(self, session_id: _Optional[bytes] = ...) -> None: ...

class DetachResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("session_id", "parent_hash", "first_page", "path_hashes", "layouts", "lineage", "priority")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PATH_HASHES_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    parent_hash: bytes
    first_page: int
    path_hashes: bytes
    layouts: _containers.RepeatedScalarFieldContainer[int]
    lineage: int
    priority: int
    def __init__(self, session_id: _Optional[bytes] = ..., parent_hash: _Optional[bytes] = ..., first_page: _Optional[int] = ..., path_hashes: _Optional[bytes] = ..., layouts: _Optional[_Iterable[int]] = ..., lineage: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("reservation_id", "verdicts", "reason", "ttl_ms")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    verdicts: bytes
    reason: str
    ttl_ms: int
    def __init__(self, reservation_id: _Optional[int] = ..., verdicts: _Optional[bytes] = ..., reason: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("session_id", "reservation_id", "pages", "layouts", "staging_offsets", "checksums", "keep_open")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    STAGING_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    KEEP_OPEN_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    reservation_id: int
    pages: bytes
    layouts: bytes
    staging_offsets: bytes
    checksums: bytes
    keep_open: bool
    def __init__(self, session_id: _Optional[bytes] = ..., reservation_id: _Optional[int] = ..., pages: _Optional[bytes] = ..., layouts: _Optional[bytes] = ..., staging_offsets: _Optional[bytes] = ..., checksums: _Optional[bytes] = ..., keep_open: bool = ...) -> None: ...

class SealResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: bytes
    def __init__(self, results: _Optional[bytes] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session_id", "reservation_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    reservation_id: int
    def __init__(self, session_id: _Optional[bytes] = ..., reservation_id: _Optional[int] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NeedAll(_message.Message):
    __slots__ = ("first_page",)
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    first_page: int
    def __init__(self, first_page: _Optional[int] = ...) -> None: ...

class NeedWindow(_message.Message):
    __slots__ = ("ratio", "max_rows", "rows_per_page", "min_rows")
    RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_PAGE_FIELD_NUMBER: _ClassVar[int]
    MIN_ROWS_FIELD_NUMBER: _ClassVar[int]
    ratio: float
    max_rows: int
    rows_per_page: int
    min_rows: int
    def __init__(self, ratio: _Optional[float] = ..., max_rows: _Optional[int] = ..., rows_per_page: _Optional[int] = ..., min_rows: _Optional[int] = ...) -> None: ...

class NeedLast(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Need(_message.Message):
    __slots__ = ("layout", "all", "window", "last")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    layout: int
    all: NeedAll
    window: NeedWindow
    last: NeedLast
    def __init__(self, layout: _Optional[int] = ..., all: _Optional[_Union[NeedAll, _Mapping]] = ..., window: _Optional[_Union[NeedWindow, _Mapping]] = ..., last: _Optional[_Union[NeedLast, _Mapping]] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("session_id", "path_hashes", "needs", "max_lineage", "margin_pages", "release_leases", "wait_ms", "prefetch")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_HASHES_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    MARGIN_PAGES_FIELD_NUMBER: _ClassVar[int]
    RELEASE_LEASES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    path_hashes: bytes
    needs: _containers.RepeatedCompositeFieldContainer[Need]
    max_lineage: int
    margin_pages: int
    release_leases: _containers.RepeatedScalarFieldContainer[int]
    wait_ms: int
    prefetch: bool
    def __init__(self, session_id: _Optional[bytes] = ..., path_hashes: _Optional[bytes] = ..., needs: _Optional[_Iterable[_Union[Need, _Mapping]]] = ..., max_lineage: _Optional[int] = ..., margin_pages: _Optional[int] = ..., release_leases: _Optional[_Iterable[int]] = ..., wait_ms: _Optional[int] = ..., prefetch: bool = ...) -> None: ...

class BlockColumns(_message.Message):
    __slots__ = ("layout", "first_page", "places", "device_places")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PLACES_FIELD_NUMBER: _ClassVar[int]
    layout: int
    first_page: int
    places: bytes
    device_places: bytes
    def __init__(self, layout: _Optional[int] = ..., first_page: _Optional[int] = ..., places: _Optional[bytes] = ..., device_places: _Optional[bytes] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("boundary_pages", "resume_pages", "lease_id", "lease_ttl_ms", "lineage", "columns", "miss", "loading_boundary_pages")
    BOUNDARY_PAGES_FIELD_NUMBER: _ClassVar[int]
    RESUME_PAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MISS_FIELD_NUMBER: _ClassVar[int]
    LOADING_BOUNDARY_PAGES_FIELD_NUMBER: _ClassVar[int]
    boundary_pages: int
    resume_pages: int
    lease_id: int
    lease_ttl_ms: int
    lineage: int
    columns: _containers.RepeatedCompositeFieldContainer[BlockColumns]
    miss: MissReason
    loading_boundary_pages: int
    def __init__(self, boundary_pages: _Optional[int] = ..., resume_pages: _Optional[int] = ..., lease_id: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., lineage: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[BlockColumns, _Mapping]]] = ..., miss: _Optional[_Union[MissReason, str]] = ..., loading_boundary_pages: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("session_id", "lease_ids")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lost: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session_id", "lease_ids")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[bytes] = ..., lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("session_id", "path_hashes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_HASHES_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    path_hashes: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., path_hashes: _Optional[bytes] = ...) -> None: ...

class TouchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("session_id", "kinds", "path_hashes", "cleared", "dropped")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    PATH_HASHES_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    kinds: bytes
    path_hashes: bytes
    cleared: bool
    dropped: int
    def __init__(self, session_id: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., path_hashes: _Optional[bytes] = ..., cleared: bool = ..., dropped: _Optional[int] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("unknown", "pins_refused", "is_new", "ttl_ms")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    PINS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    unknown: int
    pins_refused: int
    is_new: bool
    ttl_ms: int
    def __init__(self, unknown: _Optional[int] = ..., pins_refused: _Optional[int] = ..., is_new: bool = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class MapRequest(_message.Message):
    __slots__ = ("session_id", "segment_ids", "staging", "hints")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    STAGING_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    segment_ids: _containers.RepeatedScalarFieldContainer[int]
    staging: bool
    hints: bool
    def __init__(self, session_id: _Optional[bytes] = ..., segment_ids: _Optional[_Iterable[int]] = ..., staging: bool = ..., hints: bool = ...) -> None: ...

class MapResponse(_message.Message):
    __slots__ = ("segment_ids", "segment_bytes", "staging_bytes", "hint_bytes", "slab_offsets")
    SEGMENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGING_BYTES_FIELD_NUMBER: _ClassVar[int]
    HINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLAB_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    segment_ids: _containers.RepeatedScalarFieldContainer[int]
    segment_bytes: _containers.RepeatedScalarFieldContainer[int]
    staging_bytes: int
    hint_bytes: int
    slab_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, segment_ids: _Optional[_Iterable[int]] = ..., segment_bytes: _Optional[_Iterable[int]] = ..., staging_bytes: _Optional[int] = ..., hint_bytes: _Optional[int] = ..., slab_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class LendRequest(_message.Message):
    __slots__ = ("session_id", "slab")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SLAB_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    slab: Slab
    def __init__(self, session_id: _Optional[bytes] = ..., slab: _Optional[_Union[Slab, _Mapping]] = ...) -> None: ...

class LendResponse(_message.Message):
    __slots__ = ("segment_bytes", "segments")
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segment_bytes: int
    segments: int
    def __init__(self, segment_bytes: _Optional[int] = ..., segments: _Optional[int] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("session_id", "staging_offset")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STAGING_OFFSET_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    staging_offset: int
    def __init__(self, session_id: _Optional[bytes] = ..., staging_offset: _Optional[int] = ...) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session_id", "lease_id", "need", "first", "count")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    lease_id: int
    need: int
    first: int
    count: int
    def __init__(self, session_id: _Optional[bytes] = ..., lease_id: _Optional[int] = ..., need: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("block_bytes",)
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    def __init__(self, block_bytes: _Optional[int] = ...) -> None: ...

class ErrorReply(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
