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

from anchorstore.clock import Clock
from anchorstore.errors import AnchorStoreError, InvalidRequest, Unavailable, code_of
from anchorstore.server.admin import Admin
from anchorstore.server.peer import Peer
from anchorstore.server.service import Service
from anchorstore.server.supervisor import Supervisor
from anchorstore.transport.frames import MESSAGES, Kind, Method, encode, parse_body
from anchorstore.wire.status import error_message

T = TypeVar("T")
Answer = Message | asyncio.Task[Any]
Handler = Callable[[Any, Peer], Answer]


class Observer(Protocol):
    """Counts calls and connections (anchorstore.server.metrics.Metrics)."""

    def call_ended(self, method: str, outcome: str, seconds: float) -> None: ...

    def connection_opened(self, carrier: str) -> None: ...

    def connection_closed(self, carrier: str) -> None: ...

    def connection_refused(self, carrier: str, reason: str) -> None: ...


class NullObserver:
    """Counts nothing."""

    def call_ended(self, method: str, outcome: str, seconds: float) -> None:
        """Ignored."""

    def connection_opened(self, carrier: str) -> None:
        """Ignored."""

    def connection_closed(self, carrier: str) -> None:
        """Ignored."""

    def connection_refused(self, carrier: str, reason: str) -> None:
        """Ignored."""


def error_frame(error: AnchorStoreError, method: Method, call_id: int) -> bytes:
    """A refusal on the wire."""
    return encode(Kind.ERROR, method, call_id, error_message(error).SerializeToString())


class Dispatcher:
    """Answers calls for every carrier.  On the event loop only."""

    def __init__(
        self,
        service: Service,
        admin: Admin,
        supervisor: Supervisor,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.service, self.clock, self.observer = service, clock, observer
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
            Method.STATUS: admin.status,
            Method.LIST: admin.list_pages,
            Method.CHECK: admin.check,
            Method.EXPLAIN: admin.explain,
            Method.SET_NAMESPACE: admin.set_namespace,
            Method.REMOVE: admin.remove,
        }

    def call(self, method: Method, request: Message, peer: Peer) -> Answer:
        """The answer of one call, or the task that will give it; raises AnchorStoreError."""
        handler = self._handlers.get(method)
        if handler is None:
            raise InvalidRequest(f"{method.name.lower()} is not a call of this carrier")
        return self.guard(method.name, lambda: handler(request, peer))

    def guard(self, name: str, work: Callable[[], T]) -> T:
        """`work()`; an error that is not the caller's stops the daemon and looks Unavailable."""
        try:
            return work()
        except AnchorStoreError:
            raise
        except Exception as error:
            self._supervisor.fail(name.lower(), error)
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

        def reply(result: Message) -> bytes:
            self.observer.call_ended(method.name.lower(), "ok", self.clock.now() - started)
            return encode(Kind.REPLY, method, call_id, result.SerializeToString())

        def refuse(error: AnchorStoreError) -> bytes:
            seconds = self.clock.now() - started
            self.observer.call_ended(method.name.lower(), code_of(error), seconds)
            return error_frame(error, method, call_id)

        def done(task: asyncio.Task[Any]) -> None:
            error = task.exception() if not task.cancelled() else None
            if task.cancelled() or error is not None:  # the supervisor knows
                later(refuse(Unavailable("the daemon stops")))
            else:
                later(reply(task.result()))

        try:
            result = self.call(method, parse_body(MESSAGES[method][0], body), peer)
        except AnchorStoreError as error:
            return refuse(error)
        if isinstance(result, asyncio.Task):
            result.add_done_callback(done)
            return None
        return reply(result)
