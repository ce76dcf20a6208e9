"""An engine's events on their way to the daemon: a bounded queue and a thread of its own.

::

    engine's thread   stored, removed, touched, pinned, unpinned
                            | never waits; what does not fit is dropped, with all that waits
                            v
                      [ queue, so many pages ]  --batches, or a word now and then-->  daemon
                        each for a while         over a connection of its own

An engine knows that it holds a page before the daemon has the page, which some other thread is
still putting there, and an event of a page that is not there is worth nothing.  So events wait, all
of them equally long, in order.

What the daemon knows of an engine can be lost: events were dropped, the daemon was restarted, the
engine was silent for too long.  Then `epoch` is another object, and the daemon is told that
whatever it may still know is void: who goes by a table of what it has told tells it again.  While
no daemon answers nothing waits for it, and the epoch stays: there is nobody to be told again.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import weakref
from typing import TYPE_CHECKING

from anchorstore.client.effects import Steps
from anchorstore.client.face import joining_session
from anchorstore.client.options import check_hashes
from anchorstore.client.session import Session, log
from anchorstore.clock import Clock
from anchorstore.errors import AnchorStoreError, HandleClosed, UsageError
from anchorstore.keys import DIGEST_BYTES
from anchorstore.transport.frames import Method
from anchorstore.wire.v1 import store_pb2 as store

if TYPE_CHECKING:
    from anchorstore.client.client import Client

QUEUE_PAGES_DEFAULT = 65_536
BATCH_PAGES = 1024
LINGER_SECONDS = 0.02  # what comes within it goes along
ANSWER_SECONDS = 2.0  # least that a call may take: nobody waits but the thread
WORD_SECONDS = 5.0  # between two signs of life, until the daemon has said how often it wants one
WORDS_PER_TTL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """What goes in one call: one kind a page."""

    kinds: bytes
    hashes: bytes
    cleared: bool
    dropped: int


class EventQueue:
    """Events that wait.  Safe from any thread; nothing here takes longer than a moment.

    Attributes:
        epoch: another object whenever what the daemon knew is void.
    """

    def __init__(self, limit_pages: int, settle_seconds: float, clock: Clock) -> None:
        """Holds so many pages, each event for `settle_seconds` at least."""
        self._limit_pages, self._settle_seconds, self._clock = limit_pages, settle_seconds, clock
        self._ready = threading.Condition()
        self._waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
        self._pages = 0
        self._dropped = 0  # and not told yet
        self._is_void = False
        self._is_away = False  # the daemon does not answer
        self.is_closed = False
        self.epoch = object()

    def put(self, kind: int, hashes: bytes) -> int:
        """Appends one event a page; returns how many were dropped for want of room."""
        pages = check_hashes(hashes, None)
        with self._ready:
            if self.is_closed or not pages:
                return 0
            if self._is_away:
                self._dropped += pages
                return pages
            if self._pages + pages > self._limit_pages:
                self.epoch = object()
                return self._drop(pages)
            self._waiting.append((self._clock.now() + self._settle_seconds, kind, hashes))
            self._pages += pages
            self._ready.notify()
            return 0

    def void(self, sent: Batch | None = None) -> int:
        """The daemon does not answer, or is another one: what it knows, and what waits, is worth
        nothing, and a batch may have been lost.  Returns how many events that drops."""
        with self._ready:
            self._is_away = True
            if sent is None:
                return self._drop(0)
            self._dropped += sent.dropped  # counted before, and still to be told
            return self._drop(len(sent.kinds))

    def back(self) -> None:
        """The daemon has answered."""
        with self._ready:
            if self._is_away:
                self._is_away, self.epoch = False, object()

    def renew(self) -> None:
        """The daemon knows no more than what the last batch said."""
        with self._ready:
            self.epoch = object()

    def _drop(self, more: int) -> int:
        dropped = self._pages + more
        self._waiting.clear()
        self._pages, self._dropped, self._is_void = 0, self._dropped + dropped, True
        return dropped

    def wait(self, seconds: float) -> None:
        """Returns when there is something to send, when the queue is closed, or after a while."""
        until = self._clock.now() + seconds
        with self._ready:
            while not self.is_closed:
                due = min(until, self._waiting[0][0]) if self._waiting else until
                left = due - self._clock.now()
                if left <= 0:
                    return
                self._ready.wait(left)

    def pause(self, seconds: float) -> None:
        """Returns after so long, or when the queue is closed."""
        with self._ready:
            self._ready.wait_for(lambda: self.is_closed, seconds)

    def take(self, limit_pages: int) -> Batch:
        """The next batch; an empty one is a sign of life."""
        with self._ready:
            kinds, hashes, now = bytearray(), bytearray(), self._clock.now()
            while self._waiting and self._waiting[0][0] <= now and len(kinds) < limit_pages:
                due, kind, some = self._waiting.popleft()
                room = DIGEST_BYTES * (limit_pages - len(kinds))
                if len(some) > room:
                    self._waiting.appendleft((due, kind, some[room:]))
                    some = some[:room]
                kinds += bytes([kind]) * (len(some) // DIGEST_BYTES)
                hashes += some
            self._pages -= len(kinds)
            batch = Batch(bytes(kinds), bytes(hashes), self._is_void, self._dropped)
            self._is_void, self._dropped = False, 0
            return batch

    def close(self) -> None:
        """Nothing is taken any more; who waits goes on."""
        with self._ready:
            self.is_closed = True
            self._waiting.clear()
            self._ready.notify_all()


class EventPublisher:
    """Tells the daemon what an engine's own cache holds, uses and pins: `Client.events`.

    Path hashes are 32 n bytes.  No method waits, and none raises for a daemon that is not there.
    """

    def __init__(self, client: Client, limit_pages: int, settle_seconds: float) -> None:
        self._client = weakref.ref(client)
        self._counters = client._session.counters
        self._queue = EventQueue(limit_pages, settle_seconds, client._session.clock)
        self._lock = threading.Lock()
        self._is_started = False

    @property
    def epoch(self) -> object:
        """Another object whenever what was told before must be told again."""
        return self._queue.epoch

    def stored(self, path_hashes: bytes) -> None:
        """The engine holds these pages now."""
        self._put(store.EVENT_KIND_STORED, path_hashes)

    def removed(self, path_hashes: bytes) -> None:
        """It does not any more."""
        self._put(store.EVENT_KIND_REMOVED, path_hashes)

    def touched(self, path_hashes: bytes) -> None:
        """It holds these pages and has used them, without asking the daemon."""
        self._put(store.EVENT_KIND_TOUCHED, path_hashes)

    def pinned(self, path_hashes: bytes) -> None:
        """These pages are to stay in the daemon's memory, and so does what leads to them."""
        self._put(store.EVENT_KIND_PINNED, path_hashes)

    def unpinned(self, path_hashes: bytes) -> None:
        """They need not any more."""
        self._put(store.EVENT_KIND_UNPINNED, path_hashes)

    def close(self) -> None:
        """Tells nothing more; the daemon forgets the engine with its session."""
        self._queue.close()

    def _put(self, kind: int, path_hashes: bytes) -> None:
        dropped = self._queue.put(kind, path_hashes)
        if dropped:
            self._counters.add("events_dropped", dropped)
        if not self._is_started:
            self._start()

    def _start(self) -> None:
        with self._lock:
            is_started, self._is_started = self._is_started, True
        if not is_started:
            sender = _Sender(self._client, self._queue)
            threading.Thread(target=sender.run, name="anchorstore-events", daemon=True).start()


class _Sender:
    """The thread's part: batches over a client that has joined the engine's session."""

    def __init__(self, client: weakref.ref[Client], queue: EventQueue) -> None:
        self._client, self._queue = client, queue
        self._joined: Client | None = None
        self._token: bytes | None = None  # of the session that it has joined
        self._is_known = False  # the daemon has answered there
        self._word_seconds = WORD_SECONDS

    def run(self) -> None:
        """Until the queue is closed or the engine's client is gone."""
        pause_seconds = 0.0
        while not self._queue.is_closed and self._client() is not None:
            if not pause_seconds:
                self._queue.wait(self._word_seconds)
            self._queue.pause(pause_seconds or LINGER_SECONDS)
            pause_seconds = self._round()
        if self._joined is not None:
            self._joined.close()

    def _round(self) -> float:
        """Sends one batch, where there is somebody to send it to; seconds to leave the daemon
        alone afterwards."""
        client = self._client()
        if client is None or self._queue.is_closed:
            return 0.0
        token, retry_seconds = client.session_token, client._session.options.retry_seconds
        batch = None
        try:
            joined = self._join(client, token)
            if joined is None:
                return retry_seconds
            batch = self._queue.take(min(BATCH_PAGES, client.max_pages or 1))
            session = joined._session
            reply = joined._run(_send(session, batch, session.until(None)))
        except UsageError as error:
            if not isinstance(error, HandleClosed):
                log.warning("%s: tells no events any more: %s", client.address, error)
            self._queue.close()
            return 0.0
        except AnchorStoreError as error:
            log.debug("%s: events were not told: %s", client.address, error)
            if batch is not None:
                client._session.counters.add("events_dropped", self._queue.void(batch))
            return retry_seconds
        self._note(client, batch, reply)
        return 0.0

    def _join(self, client: Client, token: bytes | None) -> Client | None:
        """The client that is in the engine's session; None where there is no session."""
        if token is None:
            return None
        if self._joined is None or token != self._token:
            if self._joined is not None:
                self._joined.close()
                client._session.counters.add("events_dropped", self._queue.void())
            options = client._session.options
            seconds = max(options.deadline_seconds, ANSWER_SECONDS)
            options = dataclasses.replace(options, staging_bytes=0, deadline_seconds=seconds)
            session = joining_session(token, options, client._session.clock)
            session.refusal = "no events are told"
            self._joined, self._token = type(client)(session), token
            self._is_known = False
        return self._joined

    def _note(self, client: Client, batch: Batch, reply: store.EventsResponse) -> None:
        counters = client._session.counters
        counters.add("events_sent", len(batch.kinds))
        counters.add("events_unknown", reply.unknown)
        counters.add("pins_refused", reply.pins_refused)
        self._queue.back()
        if reply.is_new and self._is_known and not batch.cleared:
            self._queue.renew()
        self._is_known = True
        self._word_seconds = reply.ttl_ms / 1000 / WORDS_PER_TTL


def _send(session: Session, batch: Batch, until: float) -> Steps[store.EventsResponse]:
    """One Events call, made once."""
    yield from session.enter_or_raise(until)
    reply: store.EventsResponse = yield from session.guarded(
        session.call(
            Method.EVENTS,
            lambda attachment: (
                store.EventsRequest(
                    session_id=attachment.session_id,
                    kinds=batch.kinds,
                    path_hashes=batch.hashes,
                    cleared=batch.cleared,
                    dropped=batch.dropped,
                ).SerializeToString(),
            ),
            until,
            attempts=1,
        )
    )
    return reply
