from anchorstore.wire.v1 import store_pb2 as _store_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class ComponentStatus(_message.Message):
    __slots__ = ("component", "capacity_bytes", "used_bytes", "blocks")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    component: _store_pb2.Component
    capacity_bytes: int
    used_bytes: int
    blocks: int
    def __init__(self, component: _Optional[_Union[_store_pb2.Component, str]] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class DeviceStatus(_message.Message):
    __slots__ = ("path", "state", "reason", "engine", "capacity_bytes", "blocks_read", "bytes_read", "blocks_written", "bytes_written", "read_errors", "write_errors", "late_blocks", "reads_waiting", "writes_waiting", "stalled", "domain")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    READ_ERRORS_FIELD_NUMBER: _ClassVar[int]
    WRITE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    LATE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READS_WAITING_FIELD_NUMBER: _ClassVar[int]
    WRITES_WAITING_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    path: str
    state: str
    reason: str
    engine: str
    capacity_bytes: int
    blocks_read: int
    bytes_read: int
    blocks_written: int
    bytes_written: int
    read_errors: int
    write_errors: int
    late_blocks: int
    reads_waiting: int
    writes_waiting: int
    stalled: bool
    domain: str
    def __init__(self, path: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., engine: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., blocks_read: _Optional[int] = ..., bytes_read: _Optional[int] = ..., blocks_written: _Optional[int] = ..., bytes_written: _Optional[int] = ..., read_errors: _Optional[int] = ..., write_errors: _Optional[int] = ..., late_blocks: _Optional[int] = ..., reads_waiting: _Optional[int] = ..., writes_waiting: _Optional[int] = ..., stalled: bool = ..., domain: _Optional[str] = ...) -> None: ...

class TierStatus(_message.Message):
    __slots__ = ("name", "capacity_bytes", "used_bytes", "segments", "segments_free", "huge_pages", "components", "devices", "blocks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FREE_FIELD_NUMBER: _ClassVar[int]
    HUGE_PAGES_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    segments_free: int
    huge_pages: bool
    components: _containers.RepeatedCompositeFieldContainer[ComponentStatus]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceStatus]
    blocks: int
    def __init__(self, name: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., segments_free: _Optional[int] = ..., huge_pages: bool = ..., components: _Optional[_Iterable[_Union[ComponentStatus, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[DeviceStatus, _Mapping]]] = ..., blocks: _Optional[int] = ...) -> None: ...

class NamespaceStatus(_message.Message):
    __slots__ = ("domain", "model", "root_digest", "pages", "bytes", "quota_bytes", "max_lineage", "enabled", "sessions", "nvme_bytes", "nvme_quota_bytes", "weights_digest", "adapter", "page_tokens", "salted", "share_bytes", "nvme_share_bytes")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LINEAGE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NVME_BYTES_FIELD_NUMBER: _ClassVar[int]
    NVME_QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SALTED_FIELD_NUMBER: _ClassVar[int]
    SHARE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NVME_SHARE_BYTES_FIELD_NUMBER: _ClassVar[int]
    domain: str
    model: str
    root_digest: bytes
    pages: int
    bytes: int
    quota_bytes: int
    max_lineage: int
    enabled: bool
    sessions: int
    nvme_bytes: int
    nvme_quota_bytes: int
    weights_digest: bytes
    adapter: str
    page_tokens: int
    salted: bool
    share_bytes: int
    nvme_share_bytes: int
    def __init__(self, domain: _Optional[str] = ..., model: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., pages: _Optional[int] = ..., bytes: _Optional[int] = ..., quota_bytes: _Optional[int] = ..., max_lineage: _Optional[int] = ..., enabled: bool = ..., sessions: _Optional[int] = ..., nvme_bytes: _Optional[int] = ..., nvme_quota_bytes: _Optional[int] = ..., weights_digest: _Optional[bytes] = ..., adapter: _Optional[str] = ..., page_tokens: _Optional[int] = ..., salted: bool = ..., share_bytes: _Optional[int] = ..., nvme_share_bytes: _Optional[int] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("version", "boot_id", "uptime_ms", "draining", "sessions", "leases", "reservations", "pages", "index_bytes", "tiers", "namespaces", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    boot_id: bytes
    uptime_ms: int
    draining: bool
    sessions: int
    leases: int
    reservations: int
    pages: int
    index_bytes: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierStatus]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    counters: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[str] = ..., boot_id: _Optional[bytes] = ..., uptime_ms: _Optional[int] = ..., draining: bool = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., reservations: _Optional[int] = ..., pages: _Optional[int] = ..., index_bytes: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierStatus, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("token", "root_digest", "cursor", "limit")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    token: str
    root_digest: bytes
    cursor: int
    limit: int
    def __init__(self, token: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., cursor: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class PageStatus(_message.Message):
    __slots__ = ("path_hash", "page", "children", "blocks")
    PATH_HASH_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    path_hash: bytes
    page: int
    children: int
    blocks: _containers.RepeatedCompositeFieldContainer[BlockStatus]
    def __init__(self, path_hash: _Optional[bytes] = ..., page: _Optional[int] = ..., children: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[BlockStatus, _Mapping]]] = ...) -> None: ...

class BlockStatus(_message.Message):
    __slots__ = ("component", "layout_digest", "shard", "tier", "lineage", "leases", "bytes", "tiers")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    component: _store_pb2.Component
    layout_digest: bytes
    shard: int
    tier: str
    lineage: int
    leases: int
    bytes: int
    tiers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, component: _Optional[_Union[_store_pb2.Component, str]] = ..., layout_digest: _Optional[bytes] = ..., shard: _Optional[int] = ..., tier: _Optional[str] = ..., lineage: _Optional[int] = ..., leases: _Optional[int] = ..., bytes: _Optional[int] = ..., tiers: _Optional[_Iterable[str]] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("namespaces", "pages", "next_cursor")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    pages: _containers.RepeatedCompositeFieldContainer[PageStatus]
    next_cursor: int
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[PageStatus, _Mapping]]] = ..., next_cursor: _Optional[int] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("token", "checksums", "nvme_bytes_per_second")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    NVME_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    token: str
    checksums: bool
    nvme_bytes_per_second: int
    def __init__(self, token: _Optional[str] = ..., checksums: bool = ..., nvme_bytes_per_second: _Optional[int] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("ok", "violations", "pages", "blocks", "blocks_verified", "nvme_blocks_unread", "nvme_blocks_outdated")
    OK_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    NVME_BLOCKS_UNREAD_FIELD_NUMBER: _ClassVar[int]
    NVME_BLOCKS_OUTDATED_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    violations: _containers.RepeatedScalarFieldContainer[str]
    pages: int
    blocks: int
    blocks_verified: int
    nvme_blocks_unread: int
    nvme_blocks_outdated: int
    def __init__(self, ok: bool = ..., violations: _Optional[_Iterable[str]] = ..., pages: _Optional[int] = ..., blocks: _Optional[int] = ..., blocks_verified: _Optional[int] = ..., nvme_blocks_unread: _Optional[int] = ..., nvme_blocks_outdated: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("token", "root_digest", "path_hashes")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PATH_HASHES_FIELD_NUMBER: _ClassVar[int]
    token: str
    root_digest: bytes
    path_hashes: bytes
    def __init__(self, token: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., path_hashes: _Optional[bytes] = ...) -> None: ...

class TierPages(_message.Message):
    __slots__ = ("tier", "pages")
    TIER_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    tier: str
    pages: int
    def __init__(self, tier: _Optional[str] = ..., pages: _Optional[int] = ...) -> None: ...

class LayoutMatch(_message.Message):
    __slots__ = ("component", "layout_digest", "shard", "pages", "leading_pages", "lineage_least", "lineage_most", "tiers")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    LEADING_PAGES_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_LEAST_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_MOST_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    component: _store_pb2.Component
    layout_digest: bytes
    shard: int
    pages: int
    leading_pages: int
    lineage_least: int
    lineage_most: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierPages]
    def __init__(self, component: _Optional[_Union[_store_pb2.Component, str]] = ..., layout_digest: _Optional[bytes] = ..., shard: _Optional[int] = ..., pages: _Optional[int] = ..., leading_pages: _Optional[int] = ..., lineage_least: _Optional[int] = ..., lineage_most: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierPages, _Mapping]]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("pages_asked", "pages_present", "ends_because", "layouts")
    PAGES_ASKED_FIELD_NUMBER: _ClassVar[int]
    PAGES_PRESENT_FIELD_NUMBER: _ClassVar[int]
    ENDS_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    pages_asked: int
    pages_present: int
    ends_because: str
    layouts: _containers.RepeatedCompositeFieldContainer[LayoutMatch]
    def __init__(self, pages_asked: _Optional[int] = ..., pages_present: _Optional[int] = ..., ends_because: _Optional[str] = ..., layouts: _Optional[_Iterable[_Union[LayoutMatch, _Mapping]]] = ...) -> None: ...

class SetNamespaceRequest(_message.Message):
    __slots__ = ("token", "root_digest", "enabled")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    token: str
    root_digest: bytes
    enabled: bool
    def __init__(self, token: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., enabled: bool = ...) -> None: ...

class SetNamespaceResponse(_message.Message):
    __slots__ = ("until_restart",)
    UNTIL_RESTART_FIELD_NUMBER: _ClassVar[int]
    until_restart: bool
    def __init__(self, until_restart: bool = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("token", "root_digest", "path_hash")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROOT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PATH_HASH_FIELD_NUMBER: _ClassVar[int]
    token: str
    root_digest: bytes
    path_hash: bytes
    def __init__(self, token: _Optional[str] = ..., root_digest: _Optional[bytes] = ..., path_hash: _Optional[bytes] = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("blocks_removed", "blocks_leased", "may_come_back")
    BLOCKS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_LEASED_FIELD_NUMBER: _ClassVar[int]
    MAY_COME_BACK_FIELD_NUMBER: _ClassVar[int]
    blocks_removed: int
    blocks_leased: int
    may_come_back: bool
    def __init__(self, blocks_removed: _Optional[int] = ..., blocks_leased: _Optional[int] = ..., may_come_back: bool = ...) -> None: ...
