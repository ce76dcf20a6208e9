"""gRPC: the same calls for remote control and operators, with health and reflection.

It moves no block (a gRPC message costs three copies): engines on other hosts use framed TCP.  A
session opened here has no staging memory, so it writes nothing, and it lives by its TTL, for a
call is no connection.  A call carries its bearer token in the metadata (``authorization: Bearer
...``) or in its message.  The exact error travels as trailing metadata beside the gRPC code.
Handlers come from the schema's descriptors: a new call in the schema is a new row in the
dispatcher's table, nothing here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from anchorstore.errors import AnchorStoreError, ConfigError, DeadlineExceeded, code_of
from anchorstore.server.dispatch import Dispatcher
from anchorstore.server.peer import Carrier, Peer
from anchorstore.transport.frames import BODY_BYTES_MAX, MESSAGES, Method, parse_body
from anchorstore.wire.status import CODE_METADATA_KEY, RETRY_METADATA_KEY, STATUS_OF_CODE
from anchorstore.wire.v1 import admin_pb2, store_pb2

SERVICES: tuple[ServiceDescriptor, ...] = (
    store_pb2.DESCRIPTOR.services_by_name["StoreService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # or a second daemon would share the port unseen
    ("grpc.max_receive_message_length", BODY_BYTES_MAX),
    ("grpc.max_send_message_length", 2 * BODY_BYTES_MAX),
]


@dataclasses.dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; `client_ca` None = clients need no certificate."""

    certificate: pathlib.Path
    key: pathlib.Path
    client_ca: pathlib.Path | None


def _method_of(name: str) -> Method:
    """The frame's method of a call, e.g. SET_NAMESPACE of "SetNamespace"."""
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in name)
    return Method[words.lstrip("_").upper()]


def _read(path: pathlib.Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from error


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    pair = (_read(files.key, "tls.key"), _read(files.certificate, "tls.certificate"))
    ca = None if files.client_ca is None else _read(files.client_ca, "tls.client_ca")
    return grpc.ssl_server_credentials(
        [pair], root_certificates=ca, require_client_auth=ca is not None
    )


class RpcServer:
    """Owns the grpc.aio server.

    Args:
        call_seconds: a call is given up after this time, whatever its caller's deadline.
        calls_max: calls in progress at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        dispatcher: Dispatcher,
        tls: TlsFiles | None,
        calls_max: int,
        call_seconds: float,
    ) -> None:
        self._dispatcher, self._call_seconds = dispatcher, call_seconds
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=calls_max)
        aio: Any = vars(health)["aio"]  # the type stubs of some releases lack it
        self._health = aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.full_name for service in SERVICES]
        for service in SERVICES:
            handlers = {m.name: self._handler(_method_of(m.name)) for m in service.methods}
            generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
            self._server.add_generic_rpc_handlers((generic,))
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        self._names = names
        self.host = host
        self.port = self._bind(host, port, tls)

    def _bind(self, host: str, port: int, tls: TlsFiles | None) -> int:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, _credentials(tls))
        except RuntimeError as error:
            raise ConfigError(
                f"listen.grpc: cannot bind {address} (--grpc): the port is taken or the address "
                "is not this host's"
            ) from error

    async def start(self) -> None:
        """Begins to serve."""
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def drain(self) -> None:
        """Health says NOT_SERVING from now on."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _set_health(self, status: Any) -> None:
        for name in ["", *self._names]:
            await self._health.set(name, status)

    async def stop(self) -> None:
        """Ends every call."""
        await self._server.stop(grace=None)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        _, response_class = MESSAGES[method]

        async def serve(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
            return await self._serve(method, body, context)

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=None,  # _answer() parses, so that garbage gets a proper refusal
            response_serializer=response_class.SerializeToString,
        )

    async def _serve(
        self, method: Method, body: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Message:
        clock, observer = self._dispatcher.clock, self._dispatcher.observer
        started, name = clock.now(), method.name.lower()
        try:
            answer = await self._answer(method, body, context)
        except AnchorStoreError as error:
            observer.call_ended(name, code_of(error), clock.now() - started)
            await context.abort(
                getattr(grpc.StatusCode, STATUS_OF_CODE[code_of(error)]),
                str(error),
                (
                    (CODE_METADATA_KEY, code_of(error)),
                    (RETRY_METADATA_KEY, str(error.retry_after_ms)),
                ),
            )
            raise AssertionError("abort() returned") from error
        observer.call_ended(name, "ok", clock.now() - started)
        return answer

    async def _answer(
        self, method: Method, body: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Message:
        request = parse_body(MESSAGES[method][0], body)
        peer = Peer(Carrier.GRPC, context.peer())
        token = _bearer(context.invocation_metadata() or ()) or getattr(request, "token", "")
        peer.identity = self._dispatcher.service.auth.of_token(token)
        result = self._dispatcher.call(method, request, peer)
        if not isinstance(result, asyncio.Future):
            return result
        try:
            async with asyncio.timeout(self._call_seconds):
                answer: Message = await asyncio.shield(result)
                return answer
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{method.name.lower()} took longer than {self._call_seconds:g}s (deadlines.grpc)"
            ) from error


def _bearer(metadata: Any) -> str:
    """The token of an ``authorization: Bearer`` entry; "" without one."""
    for key, value in metadata:
        if key == "authorization" and str(value).startswith("Bearer "):
            return str(value).removeprefix("Bearer ").strip()
    return ""
