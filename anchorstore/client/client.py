"""Client: what an engine's threads call.  The verbs that wait, over blocking.Driver.

Ended leases wait for the next lookup to take them along, or for janitor.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from anchorstore.client import device, getting, lookups, reserving
from anchorstore.client.blocking import Driver
from anchorstore.client.blocks import BlocksBase
from anchorstore.client.buffers import BlockRows
from anchorstore.client.effects import Steps
from anchorstore.client.events import QUEUE_PAGES_DEFAULT, EventPublisher
from anchorstore.client.face import Face, joining_session, new_session, opened
from anchorstore.client.handles import WindowBase
from anchorstore.client.janitor import Janitor
from anchorstore.client.lookups import Found
from anchorstore.client.options import ClientOptions, NamespaceSpec, Need
from anchorstore.client.session import Session
from anchorstore.client.watch import WATCH
from anchorstore.client.writing import Answer, PutOutcome, ReservationBase
from anchorstore.clock import Clock, SystemClock
from anchorstore.keys import LINEAGE_ANY
from anchorstore.layout import Layout

T = TypeVar("T")


class Client(Face):
    """One engine's attachment to a daemon.  Calls never raise for a daemon that is not there.

    Errors: UsageError where the caller is wrong; reads of a window raise LeaseError, DataError or
    Unavailable, which a caller treats as a miss.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._driver = Driver(session)
        if session.is_local:
            WATCH.add(self._driver)
        self._publisher: EventPublisher | None = None
        self._janitor = Janitor(self, session.options.release_linger_seconds)

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        namespace: NamespaceSpec,
        layouts: Sequence[Layout],
        options: ClientOptions | None = None,
        clock: Clock | None = None,
    ) -> Client:
        """A client of the daemon at "unix:///path" or "tcp://host:port", attached if it is there.

        Where it is not, the first call after retry_seconds tries again.  Raises UsageError and
        Refused where the daemon says that the request or the credentials are wrong.
        """
        options = options or ClientOptions()
        session = new_session(address, namespace, layouts, options, clock or SystemClock())
        client = cls(session)
        client._run(session.connect(session.until(None)))
        return client

    @classmethod
    def join(
        cls, token: bytes, *, options: ClientOptions | None = None, clock: Clock | None = None
    ) -> Client:
        """A client in the session that `token` (session_token) comes from: reads, never writes."""
        session = joining_session(token, options or ClientOptions(), clock or SystemClock())
        client = cls(session)
        client._run(session.connect(session.until(None)))
        return client

    def _run(self, steps: Steps[T]) -> T:
        return self._driver.run(steps)

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
    ) -> Window:
        """The largest boundary that satisfies all needs, under a lease; or a miss with its reason.

        Args:
            path_hashes: 32 n bytes, page 0 first.
            needs: what each layout must have.
            max_lineage: deepest lineage accepted; 255 accepts any.
            margin_pages: the resume point lies so many pages before the boundary.
            deadline_seconds: instead of the client's own.
            wait_seconds: longest to wait for blocks that must be brought into memory first; 0
                answers at once, by what memory holds.  It ends before the deadline does, and other
                calls of this client wait meanwhile.
            prefetch: begins to bring in what the longer boundary needs, though nobody waits:
                `loading_boundary_pages` of the window says which that is.
        """
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
        return Window(self, self._run(steps))

    def get(
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
        """Copies blocks of a prefix, and returns of how many pages in a row, 0 for none.

        On the daemon's host that takes no call where the daemon's hints know the blocks and this
        client has mapped their segments, which its first get does: such blocks are found also while
        the daemon is busy.  What lies behind the pages that were copied is worth nothing.

        Args:
            path_hashes: 32 n bytes, page 0 first.
            layout: position among the client's layouts.
            destination: writable memory of exactly n - first_page blocks.
            first_page: whose block is copied first.
            max_lineage: deepest lineage accepted; 255 accepts any.
            wait_seconds: as in lookup, for blocks that are not in memory.
        """
        copied = self._run(
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

    def open_window(self, exported: bytes) -> Window:
        """A window that another process of this session exported.  Its lease stays the exporter's.

        A miss ("boot") where the daemon behind it is gone.
        """
        return Window(self, self._run(opened(self._session, exported)), is_borrowed=True)

    def lend_device_memory(
        self, address: int, size_bytes: int, deadline_seconds: float | None = None
    ) -> int:
        """Lends memory of ClientOptions.device to the daemon, which fills it with copies of hot
        blocks; how many bytes of it are used.  Good for the session: a new one must lend anew.
        The memory must stay until the client is closed and must not be written meanwhile.

        Forbidden, CapacityFull or InvalidRequest where the daemon takes none (tiers.hbm).
        """
        until = self._session.until(deadline_seconds)
        return self._run(device.lend_steps(self._session, address, size_bytes, until))

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
    ) -> Reservation:
        """Asks which blocks of a run of pages are wanted, and gives memory to write them to.

        Args:
            parent_hash: path hash before the run; root_digest (or None) for page 0.
            first_page: page index of the run's first page.
            path_hashes: 32 n bytes.
            layouts: positions among the client's layouts.
            lineage: replays behind the blocks to come; 0 for exact ones.
            priority: where the daemon evicts by priority; pages keep the highest they ever had.
        """
        path, chosen = (parent_hash, first_page, path_hashes), tuple(layouts)
        steps = reserving.reserve(self._session, *path, chosen, lineage, deadline_seconds, priority)
        return Reservation(self, chosen, self._run(steps))

    def put(
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
        """Stores a run of pages.  `blocks` maps a layout to n buffers (None: not this page's)."""
        path = (parent_hash, first_page, path_hashes)
        steps = reserving.put(self._session, *path, blocks, lineage, deadline_seconds, priority)
        return self._run(steps)

    # ---- the engine's own cache ----

    def events(
        self, queue_pages: int = QUEUE_PAGES_DEFAULT, settle_seconds: float = 0.0
    ) -> EventPublisher:
        """Where an engine tells what its own cache holds, uses and pins, so that the daemon keeps
        what engines find hot.  One a client: the first call decides.

        Args:
            queue_pages: events that may wait, one a page.
            settle_seconds: least that each waits: as long as the engine's pages may take from its
                own cache to the daemon, which knows no pages that are not there yet.
        """
        if self._publisher is None:
            self._publisher = EventPublisher(self, queue_pages, settle_seconds)
        return self._publisher

    @property
    def events_dropped(self) -> int:
        """That of counters() alone, cheap enough for every step of an engine."""
        return self._session.counters.events_dropped

    # ---- the end ----

    def flush(self, deadline_seconds: float | None = None) -> None:
        """Ends the leases of released windows now instead of with the next lookup."""
        session = self._session
        self._run(lookups.flush(session, session.until(deadline_seconds)))

    def close(self, deadline_seconds: float | None = None) -> None:
        """Ends the session.  Views that are still held stay readable until they are let go."""
        session = self._session
        if self._publisher is not None:
            self._publisher.close()
        self._run(session.close(session.until(deadline_seconds)))

    def _released(self) -> None:
        """A lease waits to be ended."""
        self._janitor.wake()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Blocks(BlocksBase):
    """The blocks of one need; reading one maps or fetches them first."""

    _window: Window

    def load(self, deadline_seconds: float | None = None) -> None:
        """Maps the segments or fetches the blocks now; reading does it where this did not."""
        self._window.run(self.load_steps(deadline_seconds))

    def copy_into(self, destination: Any, deadline_seconds: float | None = None) -> None:
        """Copies all blocks, back to back, into `destination` and verifies them.

        Raises InvalidRequest unless it has exactly size_bytes; LeaseError, DataError or
        Unavailable where the bytes are not to be had: what was copied is worth nothing then.
        """
        self._window.run(self.copy_steps(destination, deadline_seconds))

    def copy_to_device(self, destination: Any, deadline_seconds: float | None = None) -> None:
        """The same into device memory (client.device.device_bytes says what that may be), complete
        when it returns: within the device where the daemon has copies there, else from the pool.

        Needs ClientOptions.device.  Unavailable also where that device fails.
        """
        self._window.run(self.copy_to_device_steps(destination, deadline_seconds))

    def _need_loaded(self) -> None:
        if not self.is_loaded:
            self.load()


class Window(WindowBase[Blocks]):
    """What a lookup found; leaving it ends the lease (batched)."""

    def __init__(self, client: Client, found: Found, *, is_borrowed: bool = False) -> None:
        super().__init__(client._session, found, Blocks, is_borrowed=is_borrowed)
        self._client = client

    def run(self, steps: Steps[T]) -> T:
        """Performs steps of this window."""
        return self._client._run(steps)

    def copy_into(self, destinations: Sequence[Any], deadline_seconds: float | None = None) -> None:
        """Copies each need's blocks into one of `destinations` (see Blocks.copy_into)."""
        self.run(self.copy_steps(destinations, deadline_seconds))

    def renew(self, deadline_seconds: float | None = None) -> None:
        """Extends the lease by its full life; LeaseError where it has ended."""
        self.run(self.renew_steps(deadline_seconds))

    def release(self) -> None:
        """Ends the lease, with the next call or shortly after."""
        if self.end():
            self._client._released()

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Reservation(ReservationBase):
    """Blocks to be written; leaving it without seal() aborts."""

    def __init__(self, client: Client, layouts: tuple[int, ...], answer: Answer) -> None:
        super().__init__(client._session, layouts, answer)
        self._client = client

    def flush(self, deadline_seconds: float | None = None) -> PutOutcome:
        """Seals what is written so far, which makes room in the staging memory."""
        return self._client._run(self.flush_steps(deadline_seconds))

    def seal(self, deadline_seconds: float | None = None) -> PutOutcome:
        """Makes what is written visible and ends the reservation."""
        return self._client._run(self.seal_steps(deadline_seconds))

    def abort(self, deadline_seconds: float | None = None) -> None:
        """Gives the reservation back; what is not sealed is forgotten."""
        self._client._run(self.abort_steps(deadline_seconds))

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()
