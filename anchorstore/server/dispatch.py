"""From a frame to the frame that answers it: the table of calls, and what an error becomes.

::

    frame -> message -> Service / AdminService -> response -> frame
                            |
        AnchorStoreError ---+--> ErrorReply: the caller is told, the daemon lives on
        anything else ------+--> a bug or a broken invariant: the supervisor stops the daemon

An unexpected error stops the daemon because the core may be half-way through a change: a cache
may always forget, and must never serve what it is not sure of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message
from structlog.typing import FilteringBoundLogger

from anchorstore.clock import Clock
from anchorstore.errors import AnchorStoreError, InvalidRequest, Unavailable, code_of
from anchorstore.server.admin import Admin
from anchorstore.server.engine_events import EngineEvents
from anchorstore.server.peer import Peer
from anchorstore.server.service import Service
from anchorstore.server.supervisor import Supervisor
from anchorstore.transport.frames import (
    BODY_BYTES_MAX,
    MESSAGES,
    Kind,
    Method,
    encode,
    parse_body,
)
from anchorstore.wire.status import error_message

T = TypeVar("T")
Answer = Message | asyncio.Future[Any]
Handler = Callable[[Any, Peer], Answer]
NAMES = {method: method.name.lower() for method in Method}  # in logs and metrics


class Observer(Protocol):
    """Counts calls and connections (anchorstore.server.metrics.Metrics)."""

    def call_ended(self, method: str, outcome: str, seconds: float) -> None: ...

    def connection_opened(self, carrier: str) -> None: ...

    def connection_closed(self, carrier: str) -> None: ...

    def connection_refused(self, carrier: str, reason: str) -> None: ...


def error_frame(error: AnchorStoreError, method: Method, call_id: int) -> bytes:
    """A refusal on the wire."""
    return encode(Kind.ERROR, method, call_id, error_message(error).SerializeToString())


def is_refusal(answer: bytes | None) -> bool:
    """Whether this frame is one; not yet where the answer is still to come."""
    return answer is not None and answer[3] == Kind.ERROR


class Dispatcher:
    """Answers calls for every carrier.  On the event loop only."""

    def __init__(
        self,
        service: Service,
        admin: Admin,
        supervisor: Supervisor,
        clock: Clock,
        observer: Observer,
        log: FilteringBoundLogger,
    ) -> None:
        self.service, self.clock, self.observer, self.log = service, clock, observer, log
        self._supervisor = supervisor
        self._handlers: dict[Method, Handler] = {
            Method.ATTACH: service.attach,
            Method.JOIN: service.join,
            Method.DETACH: service.detach,
            Method.RESERVE: service.reserve,
            Method.SEAL: service.seal,
            Method.ABORT: service.abort,
            Method.LOOKUP: service.lookup,
            Method.RENEW: service.renew,
            Method.RELEASE: service.release,
            Method.TOUCH: service.touch,
            Method.LEND: service.lend,
            Method.EVENTS: EngineEvents(service).events,
            Method.STATUS: admin.status,
            Method.LIST: admin.list_pages,
            Method.CHECK: admin.check,
            Method.EXPLAIN: admin.explain,
            Method.SET_NAMESPACE: admin.set_namespace,
            Method.REMOVE: admin.remove,
        }

    def call(self, method: Method, request: Message, peer: Peer) -> Answer:
        """The answer of one call, or the future of it; raises AnchorStoreError."""
        handler = self._handlers.get(method)
        if handler is None:
            raise InvalidRequest(f"{NAMES[method]} is not a call of this carrier")
        return self.guard(NAMES[method], handler, request, peer)

    def guard(self, name: str, work: Callable[..., T], *arguments: Any) -> T:
        """`work(*arguments)`; an error that is not the caller's stops the daemon."""
        try:
            return work(*arguments)
        except AnchorStoreError:
            raise
        except Exception as error:
            self._supervisor.fail(name, error)
            raise Unavailable("the daemon met an internal error and stops") from error

    def answer(
        self,
        method: Method,
        call_id: int,
        body: bytes,
        peer: Peer,
        later: Callable[[bytes], None],
    ) -> bytes | None:
        """The frame that answers a request; None where `later` will be called with it."""
        started = self.clock.now()
        try:
            result = self.call(method, parse_body(MESSAGES[method][0], body), peer)
        except AnchorStoreError as error:
            self.log.debug("call refused", method=NAMES[method], peer=peer.name, error=str(error))
            return self._refusal(method, call_id, error, started)
        if isinstance(result, asyncio.Future):
            result.add_done_callback(
                lambda done: later(self._late_frame(method, call_id, done, started))
            )
            return None
        return self._reply(method, call_id, result, started)

    def _reply(self, method: Method, call_id: int, result: Message, started: float) -> bytes:
        body = result.SerializeToString()
        if len(body) > BODY_BYTES_MAX:
            error = InvalidRequest(
                f"{NAMES[method]}: an answer of {len(body)} bytes, limit {BODY_BYTES_MAX}: ask for "
                "less at a time"
            )
            return self._refusal(method, call_id, error, started)
        self.observer.call_ended(NAMES[method], "ok", self.clock.now() - started)
        return encode(Kind.REPLY, method, call_id, body)

    def _refusal(
        self, method: Method, call_id: int, error: AnchorStoreError, started: float
    ) -> bytes:
        self.observer.call_ended(NAMES[method], code_of(error), self.clock.now() - started)
        return error_frame(error, method, call_id)

    def _late_frame(
        self, method: Method, call_id: int, done: asyncio.Future[Any], started: float
    ) -> bytes:
        """The answer that has come; the supervisor knows of one that failed."""
        error = None if done.cancelled() else done.exception()
        if isinstance(error, AnchorStoreError):
            return self._refusal(method, call_id, error, started)
        if done.cancelled() or error is not None:
            return self._refusal(method, call_id, Unavailable("the daemon stops"), started)
        return self._reply(method, call_id, done.result(), started)
