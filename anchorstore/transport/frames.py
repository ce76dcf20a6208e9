"""Frames: the protobuf messages of proto/anchorstore/v1 on a Unix socket or on TCP.  Sans-I/O.

::

    0      2  3  4       6       8           12          16                  24
    +------+--+--+-------+-------+-----------+-----------+-------------------+------+---------+
    | "AS" | 1|kd| method| zero  | call id   | body size | payload size      | body | payload |
    +------+--+--+-------+-------+-----------+-----------+-------------------+------+---------+
              version  kind                      all integers little-endian

kind 1 is a request, 2 its reply, 3 a refusal (ErrorReply).  The reply repeats method and call id.
A payload is raw bytes beside the message; only WriteRequest and ReadResponse have one, and only
on TCP.  Whatever breaks these rules ends the connection: there is no way to find the next frame.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from anchorstore.errors import InvalidRequest
from anchorstore.wire.v1 import admin_pb2 as admin
from anchorstore.wire.v1 import store_pb2 as store

AnyMessage = TypeVar("AnyMessage", bound=Message)

MAGIC = b"AS"
VERSION = 1
HEADER = struct.Struct("<2sBBHHIIQ")
HEADER_BYTES = HEADER.size
BODY_BYTES_MAX = 8 * 2**20  # a Lookup of 131,072 pages (8M tokens) is 4 MiB
PAYLOAD_BYTES_MAX = 2**30

assert HEADER_BYTES == 24


class Kind(enum.IntEnum):
    """What a frame is."""

    REQUEST = 1
    REPLY = 2
    ERROR = 3


class Method(enum.IntEnum):
    """Numbers on the wire; never reused."""

    ATTACH = 1
    JOIN = 2
    DETACH = 3
    RESERVE = 4
    SEAL = 5
    ABORT = 6
    LOOKUP = 7
    RENEW = 8
    RELEASE = 9
    TOUCH = 10
    EVENTS = 11
    MAP = 16
    WRITE = 17
    READ = 18
    LEND = 19
    STATUS = 32
    LIST = 33
    CHECK = 34
    EXPLAIN = 35
    SET_NAMESPACE = 36
    REMOVE = 37


MESSAGES: dict[Method, tuple[type[Message], type[Message]]] = {
    Method.ATTACH: (store.AttachRequest, store.AttachResponse),
    Method.JOIN: (store.JoinRequest, store.JoinResponse),
    Method.DETACH: (store.DetachRequest, store.DetachResponse),
    Method.RESERVE: (store.ReserveRequest, store.ReserveResponse),
    Method.SEAL: (store.SealRequest, store.SealResponse),
    Method.ABORT: (store.AbortRequest, store.AbortResponse),
    Method.LOOKUP: (store.LookupRequest, store.LookupResponse),
    Method.RENEW: (store.RenewRequest, store.RenewResponse),
    Method.RELEASE: (store.ReleaseRequest, store.ReleaseResponse),
    Method.TOUCH: (store.TouchRequest, store.TouchResponse),
    Method.EVENTS: (store.EventsRequest, store.EventsResponse),
    Method.MAP: (store.MapRequest, store.MapResponse),
    Method.WRITE: (store.WriteRequest, store.WriteResponse),
    Method.READ: (store.ReadRequest, store.ReadResponse),
    Method.LEND: (store.LendRequest, store.LendResponse),
    Method.STATUS: (admin.StatusRequest, admin.StatusResponse),
    Method.LIST: (admin.ListRequest, admin.ListResponse),
    Method.CHECK: (admin.CheckRequest, admin.CheckResponse),
    Method.EXPLAIN: (admin.ExplainRequest, admin.ExplainResponse),
    Method.SET_NAMESPACE: (admin.SetNamespaceRequest, admin.SetNamespaceResponse),
    Method.REMOVE: (admin.RemoveRequest, admin.RemoveResponse),
}
"""Request and response of every method."""

_WITH_PAYLOAD = {(Kind.REQUEST, Method.WRITE), (Kind.REPLY, Method.READ)}
_KINDS = {int(kind): kind for kind in Kind}
_METHODS = {int(method): method for method in Method}


class Header(NamedTuple):
    """A checked frame header.  A tuple, because one is made for every frame."""

    kind: Kind
    method: Method
    call_id: int
    body_bytes: int
    payload_bytes: int


class Frame(NamedTuple):
    """A whole frame without payload."""

    header: Header
    body: bytes


def encode(kind: Kind, method: Method, call_id: int, body: bytes, payload_bytes: int = 0) -> bytes:
    """Header and body; the caller sends `payload_bytes` raw bytes after it."""
    header = HEADER.pack(MAGIC, VERSION, kind, method, 0, call_id, len(body), payload_bytes)
    return header + body


def parse_header(data: bytes | memoryview, *, payload_bytes_max: int = 0) -> Header:
    """The header in the first 24 bytes of `data`; InvalidRequest names what is wrong with it.

    `payload_bytes_max` is 0 on a carrier without payloads.
    """
    magic, version, kind, method, zero, call_id, body, payload = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidRequest(f"frame starts with {magic!r}, must start with {MAGIC!r}")
    if version != VERSION:
        raise InvalidRequest(f"frame version {version} is unknown, this side speaks {VERSION}")
    if kind not in _KINDS:
        raise InvalidRequest(f"frame kind {kind} is unknown, must be 1 to 3")
    if method not in _METHODS:
        raise InvalidRequest(f"method {method} is unknown")
    if zero:
        raise InvalidRequest(f"frame: reserved field is {zero}, must be 0")
    if body > BODY_BYTES_MAX:
        raise InvalidRequest(f"frame body of {body} bytes, limit {BODY_BYTES_MAX}")
    if payload:
        limit = payload_bytes_max if (kind, method) in _WITH_PAYLOAD else 0
        if payload > limit:
            raise InvalidRequest(f"frame payload of {payload} bytes, limit {limit} here")
    return Header(_KINDS[kind], _METHODS[method], call_id, body, payload)


class Parser:
    """Cuts a stream without payloads into frames.

    feed() returns the frames that are complete; an InvalidRequest means that the stream is lost.
    At most one frame (24 bytes + BODY_BYTES_MAX) is held back.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._wanted = HEADER_BYTES  # held bytes below this complete nothing

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by `data`, in order."""
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return []  # a frame in many pieces is cut once, not copied for each of them
            data = bytes(self._held)
        frames, start, wanted = [], 0, HEADER_BYTES
        while len(data) - start >= HEADER_BYTES:
            header = parse_header(data[start : start + HEADER_BYTES])
            stop = start + HEADER_BYTES + header.body_bytes
            if len(data) < stop:
                wanted = stop - start
                break
            frames.append(Frame(header, data[start + HEADER_BYTES : stop]))
            start = stop
        self._held, self._wanted = bytearray(data[start:]), wanted
        return frames

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._held)


def parse_body(cls: type[AnyMessage], body: bytes) -> AnyMessage:
    """The message in `body`; InvalidRequest where it is not one."""
    message = cls()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidRequest(f"body is not a {cls.__name__}: {error}") from error
    return message
