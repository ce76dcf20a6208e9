"""The asyncio driver: the same steps, performed on an event loop.

::

    AsyncClient.lookup(...) --> run(steps) --> Call: write, await the reply
                                               Work: large copies on a thread
                                               Map:  on a thread (it blocks)

Replies are received into the steps' own buffers (asyncio.BufferedProtocol), so a payload of a
remote read lands in its destination without a copy in between, over TLS as well.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

from anchorstore.client import mapping
from anchorstore.client.effects import (
    THREAD_BYTES,
    Call,
    Dial,
    Effect,
    Enter,
    Hangup,
    Map,
    Steps,
    Work,
)
from anchorstore.client.exchange import Exchange, decode
from anchorstore.client.session import Session
from anchorstore.errors import (
    AnchorStoreError,
    ConnectFailed,
    DeadlineExceeded,
    HandleClosed,
    Refused,
)
from anchorstore.transport.address import UnixAddress
from anchorstore.transport.frames import Frame
from anchorstore.transport.reasons import reason_of
from anchorstore.transport.tcp import remaining, set_tcp_options

T = TypeVar("T")


class AsyncDriver:
    """Performs the steps' effects on the running loop."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = asyncio.Lock()
        self._process = os.getpid()
        self._tls = session.options.tls_context()
        self._link: _Link | None = None
        self._letting_go: set[asyncio.Task[None]] = set()

    async def run(self, steps: Steps[T]) -> T:
        """The steps' result; raises what they raise."""
        if os.getpid() != self._process:
            steps.close()
            raise HandleClosed(
                f"client of {self.session.address} belongs to process {self._process}, this is "
                f"{os.getpid()}: use AsyncClient.join here"
            )
        is_inside = False
        try:
            effect = next(steps)
            while True:
                try:
                    result: Any = None
                    if isinstance(effect, Enter):
                        is_inside = is_inside or await self._enter(effect.until)
                    elif isinstance(effect, Work):
                        if is_inside:
                            is_inside = False
                            self._leave()
                        result = await _work(effect)
                    else:
                        result = await self._perform(effect)
                except AnchorStoreError as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()
            if is_inside:
                self._leave()

    def _leave(self) -> None:
        self.session.gate.settle()
        self._lock.release()

    async def _enter(self, until: float) -> bool:
        try:
            async with asyncio.timeout(until - self.session.clock.now()):
                return await self._lock.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded("another call of this client took too long") from error

    async def _perform(self, effect: Effect) -> Any:
        session = self.session
        if isinstance(effect, Call):
            if self._link is None or self._link.is_lost:
                raise ConnectFailed(f"{session.address}: not connected")
            frame = await self._link.exchange(effect, effect.until - session.clock.now())
            return decode(effect, frame)
        if isinstance(effect, Dial):
            self._hang_up()
            self._link = await self._dial(effect.until)
        elif isinstance(effect, Map):
            assert isinstance(session.address, UnixAddress), "mapped over TCP"
            return await asyncio.to_thread(mapping.fetch, session.address, effect, session.clock)
        else:
            assert isinstance(effect, Hangup), effect
            link = self._link
            self._hang_up()
            if link is not None:
                await link.lost.wait()
        return None

    async def _dial(self, until: float) -> _Link:
        session, loop = self.session, asyncio.get_running_loop()
        address = session.address
        try:
            async with asyncio.timeout(remaining(until, session.clock, f"connect to {address}")):
                if isinstance(address, UnixAddress):
                    _, link = await loop.create_unix_connection(
                        lambda: _Link(session, self._hung_up), address.path
                    )
                    return link
                transport, link = await loop.create_connection(
                    lambda: _Link(session, self._hung_up), address.host, address.port, ssl=self._tls
                )
        except TimeoutError as error:
            raise DeadlineExceeded(f"{address}: no connection in time") from error
        except OSError as error:
            raise ConnectFailed(f"{address}: {reason_of(error)}") from error
        set_tcp_options(transport.get_extra_info("socket"))
        return link

    def _hung_up(self) -> None:
        """By the daemon, perhaps between calls; see Session.let_go."""
        task = asyncio.ensure_future(self._let_go())
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)

    async def _let_go(self) -> None:
        async with self._lock:
            if not self.session.is_bound:  # no other connection has taken its place
                self.session.let_go()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.hang_up()
            self._link = None
        self.session.lost_connection()


async def _work(work: Work) -> Any:
    if work.size_bytes < THREAD_BYTES:
        return work.function()
    thread = asyncio.ensure_future(asyncio.to_thread(work.function))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})  # it still writes to the caller's memory
        raise


class _Link(asyncio.BufferedProtocol):
    """One connection.  It tells the session when it is lost."""

    def __init__(self, session: Session, on_hung_up: Callable[[], None]) -> None:
        self._session, self._on_hung_up = session, on_hung_up
        self._exchange = Exchange()
        self._waiter: asyncio.Future[Frame] | None = None
        self._transport: Any = None  # uvloop's transports share no base with asyncio's
        self.is_lost = False  # no call can be made any more
        self.lost = asyncio.Event()  # the transport has let go

    async def exchange(self, call: Call, left_seconds: float) -> Frame:
        """The frame that answers `call`."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(self._exchange.start(call))
        for part in call.payload:
            self._transport.write(part)
        try:
            async with asyncio.timeout(left_seconds):
                return await self._waiter
        except TimeoutError as error:
            self._leave()
            raise DeadlineExceeded(
                f"{self._session.address}: no reply to {call.method.name} in time"
            ) from error
        except asyncio.CancelledError:
            self._leave()
            raise
        finally:
            self._waiter = None

    def _leave(self) -> None:
        if not self._exchange.leave():
            self.hang_up()

    def hang_up(self) -> None:
        """Closes at once; what is not sent yet is dropped."""
        if not self.is_lost:
            self.is_lost = True
            self._transport.abort()
            self._session.lost_connection()

    def _fail(self, error: AnchorStoreError) -> None:
        self.hang_up()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._exchange.receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._exchange.receiver.filled(nbytes)
        if self.is_lost:
            return
        try:
            frame = self._exchange.poll()
        except (ConnectFailed, Refused) as error:
            self._fail(error)
            return
        if frame is not None and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(frame)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        if not self.is_lost:
            self._on_hung_up()
        self._fail(ConnectFailed(f"{self._session.address} hung up: {error or 'end of stream'}"))
