"""AsyncClient: what an engine's event loop calls.  The verbs of client.py, awaited, over aio.py.

::

    async with client.lookup(hashes, needs) as window:        or   window = await client.lookup(...)
        await window.blocks(0).load()
        window.blocks(0)[3]

Ended leases wait for the next lookup to take them along; where none comes, a timer of the loop
ends them after release_linger_seconds.  A client belongs to the loop that it was made on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from anchorstore.client import device, getting, lookups, reserving
from anchorstore.client.aio import AsyncDriver
from anchorstore.client.blocks import BlocksBase
from anchorstore.client.buffers import BlockRows
from anchorstore.client.effects import Steps
from anchorstore.client.face import Face, joining_session, new_session, opened
from anchorstore.client.handles import WindowBase
from anchorstore.client.lookups import Found
from anchorstore.client.options import ClientOptions, NamespaceSpec, Need
from anchorstore.client.session import Session, log
from anchorstore.client.writing import Answer, PutOutcome, ReservationBase
from anchorstore.clock import Clock, SystemClock
from anchorstore.errors import AnchorStoreError
from anchorstore.keys import LINEAGE_ANY
from anchorstore.layout import Layout

T = TypeVar("T")


class _Leaving(Protocol):
    """What can be left."""

    async def leave(self) -> None: ...


HandleT = TypeVar("HandleT", bound=_Leaving)


class Opening(Generic[HandleT]):
    """A handle to come: await it, or enter it."""

    def __init__(self, coming: Coroutine[Any, Any, HandleT]) -> None:
        self._coming = coming
        self._handle: HandleT | None = None

    def __await__(self) -> Generator[Any, None, HandleT]:
        return self._coming.__await__()

    async def __aenter__(self) -> HandleT:
        self._handle = await self._coming
        return self._handle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._handle is not None, "left before it was entered"
        await self._handle.leave()


class AsyncClient(Face):
    """One engine's attachment to a daemon, for one event loop.  See Client for every verb."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._driver = AsyncDriver(session)
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        namespace: NamespaceSpec,
        layouts: Sequence[Layout],
        options: ClientOptions | None = None,
        clock: Clock | None = None,
    ) -> AsyncClient:
        """See Client.connect."""
        options = options or ClientOptions()
        session = new_session(address, namespace, layouts, options, clock or SystemClock())
        client = cls(session)
        await client._run(session.connect(session.until(None)))
        return client

    @classmethod
    async def join(
        cls, token: bytes, *, options: ClientOptions | None = None, clock: Clock | None = None
    ) -> AsyncClient:
        """See Client.join."""
        session = joining_session(token, options or ClientOptions(), clock or SystemClock())
        client = cls(session)
        await client._run(session.connect(session.until(None)))
        return client

    async def _run(self, steps: Steps[T]) -> T:
        return await self._driver.run(steps)

    # ---- get ----

    def lookup(
        self,
        path_hashes: bytes,
        needs: Sequence[Need],
        *,
        max_lineage: int = LINEAGE_ANY,
        margin_pages: int = 0,
        deadline_seconds: float | None = None,
        wait_seconds: float = 0.0,
        prefetch: bool = False,
    ) -> Opening[AsyncWindow]:
        """See Client.lookup; await it or enter it."""
        steps = lookups.lookup(
            self._session,
            path_hashes,
            needs,
            max_lineage,
            margin_pages,
            deadline_seconds,
            wait_seconds,
            prefetch,
        )
        return Opening(self._window(steps, is_borrowed=False))

    async def get(
        self,
        path_hashes: bytes,
        layout: int,
        destination: Any,
        *,
        first_page: int = 0,
        max_lineage: int = LINEAGE_ANY,
        deadline_seconds: float | None = None,
        wait_seconds: float = 0.0,
    ) -> int:
        """See Client.get."""
        copied = await self._run(
            getting.get(
                self._session,
                path_hashes,
                layout,
                destination,
                first_page,
                max_lineage,
                deadline_seconds,
                wait_seconds,
            )
        )
        if self._session.has_news:
            self._released()
        return copied

    def open_window(self, exported: bytes) -> Opening[AsyncWindow]:
        """See Client.open_window; await it or enter it."""
        return Opening(self._window(opened(self._session, exported), is_borrowed=True))

    async def _window(self, steps: Steps[Found], *, is_borrowed: bool) -> AsyncWindow:
        found = await self._run(steps)
        return AsyncWindow(self, found, is_borrowed=is_borrowed)

    async def lend_device_memory(
        self, address: int, size_bytes: int, deadline_seconds: float | None = None
    ) -> int:
        """See Client.lend_device_memory."""
        until = self._session.until(deadline_seconds)
        return await self._run(device.lend_steps(self._session, address, size_bytes, until))

    # ---- put ----

    def reserve(
        self,
        parent_hash: bytes | None,
        first_page: int,
        path_hashes: bytes,
        *,
        layouts: Sequence[int],
        lineage: int = 0,
        priority: int = 0,
        deadline_seconds: float | None = None,
    ) -> Opening[AsyncReservation]:
        """See Client.reserve; await it or enter it."""
        path, chosen = (parent_hash, first_page, path_hashes), tuple(layouts)
        steps = reserving.reserve(self._session, *path, chosen, lineage, deadline_seconds, priority)
        return Opening(self._reservation(chosen, steps))

    async def _reservation(
        self, layouts: tuple[int, ...], steps: Steps[Answer]
    ) -> AsyncReservation:
        return AsyncReservation(self, layouts, await self._run(steps))

    async def put(
        self,
        parent_hash: bytes | None,
        first_page: int,
        path_hashes: bytes,
        blocks: Mapping[int, BlockRows],
        *,
        lineage: int = 0,
        priority: int = 0,
        deadline_seconds: float | None = None,
    ) -> PutOutcome:
        """See Client.put."""
        path = (parent_hash, first_page, path_hashes)
        steps = reserving.put(self._session, *path, blocks, lineage, deadline_seconds, priority)
        return await self._run(steps)

    # ---- the end ----

    async def flush(self, deadline_seconds: float | None = None) -> None:
        """See Client.flush."""
        session = self._session
        await self._run(lookups.flush(session, session.until(deadline_seconds)))

    async def close(self, deadline_seconds: float | None = None) -> None:
        """See Client.close."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing
        session = self._session
        await self._run(session.close(session.until(deadline_seconds)))

    def _released(self) -> None:
        """A lease waits to be ended."""
        if self._timer is None:
            linger = self._session.options.release_linger_seconds
            self._timer = asyncio.get_running_loop().call_later(linger, self._end_leases)

    def _end_leases(self) -> None:
        self._timer = None
        if self._session.has_news and not self._session.is_closed:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        try:
            await self.flush()
        except AnchorStoreError as error:
            log.debug("%s: leases were not ended: %s", self.address, error)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncBlocks(BlocksBase):
    """The blocks of one need; load() before reading one."""

    _window: AsyncWindow

    async def load(self, deadline_seconds: float | None = None) -> None:
        """Maps the segments or fetches the blocks."""
        await self._window.run(self.load_steps(deadline_seconds))

    async def copy_into(self, destination: Any, deadline_seconds: float | None = None) -> None:
        """See Blocks.copy_into."""
        await self._window.run(self.copy_steps(destination, deadline_seconds))

    async def copy_to_device(self, destination: Any, deadline_seconds: float | None = None) -> None:
        """See Blocks.copy_to_device."""
        await self._window.run(self.copy_to_device_steps(destination, deadline_seconds))


class AsyncWindow(WindowBase[AsyncBlocks]):
    """What a lookup found; leaving it ends the lease (batched)."""

    def __init__(self, client: AsyncClient, found: Found, *, is_borrowed: bool) -> None:
        super().__init__(client._session, found, AsyncBlocks, is_borrowed=is_borrowed)
        self._client = client

    async def run(self, steps: Steps[T]) -> T:
        """Performs steps of this window."""
        return await self._client._run(steps)

    async def copy_into(
        self, destinations: Sequence[Any], deadline_seconds: float | None = None
    ) -> None:
        """See Window.copy_into."""
        await self.run(self.copy_steps(destinations, deadline_seconds))

    async def renew(self, deadline_seconds: float | None = None) -> None:
        """See Window.renew."""
        await self.run(self.renew_steps(deadline_seconds))

    async def release(self) -> None:
        """Ends the lease, with the next call or shortly after."""
        await self.leave()

    async def leave(self) -> None:
        """What leaving an `async with` does."""
        if self.end():
            self._client._released()


class AsyncReservation(ReservationBase):
    """Blocks to be written; leaving it without seal() aborts."""

    def __init__(self, client: AsyncClient, layouts: tuple[int, ...], answer: Answer) -> None:
        super().__init__(client._session, layouts, answer)
        self._client = client

    async def flush(self, deadline_seconds: float | None = None) -> PutOutcome:
        """See Reservation.flush."""
        return await self._client._run(self.flush_steps(deadline_seconds))

    async def seal(self, deadline_seconds: float | None = None) -> PutOutcome:
        """See Reservation.seal."""
        return await self._client._run(self.seal_steps(deadline_seconds))

    async def abort(self, deadline_seconds: float | None = None) -> None:
        """See Reservation.abort."""
        await self._client._run(self.abort_steps(deadline_seconds))

    async def leave(self) -> None:
        """What leaving an `async with` does."""
        await self.abort()
