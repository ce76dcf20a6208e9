"""The client's one implementation: attach, stay attached, call.  Generators, no I/O (effects.py).

::

    lookup, reserve ...  --> call() --> bound?  --yes--> Call ----> reply
                               ^           |                 |
                               |           no                +-- UnknownSession: attach anew, once
                               |           v                 +-- ConnectFailed: dial anew, once
                               +--- bind(): Dial, Join the old session or Attach a new one

A call that gets no reply by its deadline leaves: its connection stays, because the reply may still
come and is recognised by its call id; a second one in a row ends the connection.  Then the gate is
shut for retry_seconds.  Nothing here raises for a daemon that is not there: callers get a reason.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Sequence
from typing import Any

from anchorstore.client.attachment import Attachment
from anchorstore.client.counters import Counters
from anchorstore.client.device import DeviceSide, slab_of
from anchorstore.client.direct import DirectReader
from anchorstore.client.effects import Call, Dial, Enter, Hangup, Steps
from anchorstore.client.gate import Gate
from anchorstore.client.mapping import SegmentCache
from anchorstore.client.options import ClientOptions, NamespaceSpec
from anchorstore.client.staging import Staging
from anchorstore.clock import Clock
from anchorstore.errors import (
    AnchorStoreError,
    BootChanged,
    ConnectFailed,
    DeadlineExceeded,
    Draining,
    HandleClosed,
    LeaseError,
    LeaseExpired,
    Overloaded,
    Refused,
    SpecMismatch,
    Unavailable,
    UnknownSession,
    UsageError,
)
from anchorstore.layout import Layout
from anchorstore.transport.address import Address, UnixAddress
from anchorstore.transport.frames import VERSION, Method
from anchorstore.transport.segment import layout_key
from anchorstore.wire.convert import layout_spec
from anchorstore.wire.v1 import store_pb2 as store

log = logging.getLogger("anchorstore.client")

STRIKES_MAX = 2  # calls in a row without a reply, after which the connection is given up


class Session:
    """State of one client and the steps that change it; they run under the client's lock.

    `spec` is None for a client that joined another process's session: it cannot attach anew.
    """

    def __init__(
        self,
        address: Address,
        spec: NamespaceSpec | None,
        layouts: Sequence[Layout],
        block_bytes: tuple[int, ...],
        page_tokens: int,
        options: ClientOptions,
        clock: Clock,
    ) -> None:
        self.address, self.options, self.clock = address, options, clock
        self._spec, self._layouts = spec, tuple(layouts)
        self.block_bytes, self.page_tokens = block_bytes, page_tokens
        self.attachment: Attachment | None = None
        self.is_bound = False  # the connection is in the attachment's session
        self.is_closed = False
        self.refusal = "calls are misses"  # while the gate is shut
        self._may_join = False
        self._strikes = 0
        self.gate, self.counters, self.cache = Gate(), Counters(), SegmentCache()
        self.staging, self.staging_memory = Staging(0), memoryview(b"")
        self.pending: collections.deque[tuple[Attachment, int]] = collections.deque()
        self.needs_kept: dict[tuple[object, ...], bytes] = {}  # encoded, see lookups.py
        self.direct: DirectReader | None = None  # same host, while attached
        self.device_side: DeviceSide | None = None  # while attached, with a device

    @property
    def is_local(self) -> bool:
        """Whether blocks are read in place."""
        return isinstance(self.address, UnixAddress)

    @property
    def has_news(self) -> bool:
        """Whether leases wait to be ended, or direct reads to be told of, and somebody is there
        to be told."""
        has_touches = self.direct is not None and bool(self.direct.touched)
        return self.is_bound and (bool(self.pending) or has_touches)

    @property
    def has_memory(self) -> bool:
        """Whether anything of the daemon's is mapped."""
        return bool(len(self.cache) or len(self.staging_memory))

    def forget_news(self) -> None:
        """Nobody is told."""
        self.pending.clear()
        if self.direct is not None:
            self.direct.touched.clear()

    @property
    def can_attach(self) -> bool:
        """Whether this client has a session of its own; one that joined cannot write."""
        return self._spec is not None

    def seconds(self, deadline_seconds: float | None) -> float:
        """How long a call may take."""
        return self.options.deadline_seconds if deadline_seconds is None else deadline_seconds

    def until(self, deadline_seconds: float | None) -> float:
        """When a call that starts now must have ended."""
        return self.clock.now() + self.seconds(deadline_seconds)

    def check_open(self) -> None:
        """HandleClosed after close()."""
        if self.is_closed:
            raise HandleClosed(f"client of {self.address} is closed")

    # ---- getting in ----

    def enter(self, until: float) -> Steps[str]:
        """Takes the lock where a call is worth trying; else the reason why it is not."""
        self.check_open()
        if self.gate.reason and (reason := self.gate.refuses(self.clock.now())):
            return reason
        try:
            yield Enter(until)
        except DeadlineExceeded:
            return "deadline"
        if not self.gate.reason:
            return ""
        reason = self.gate.refuses(self.clock.now())
        if not reason:
            self.gate.probe(until)
        return reason

    def enter_or_raise(self, until: float) -> Steps[None]:
        """Takes the lock; Unavailable where a call is not worth trying."""
        reason = yield from self.enter(until)
        if reason == "deadline":
            raise DeadlineExceeded(f"{self.address}: no time left, or no reply shortly before")
        if reason:
            raise ConnectFailed(f"{self.address} is not tried again yet ({reason})")

    def failed(self, error: AnchorStoreError) -> str:
        """Shuts the gate after `error`; the miss reason that it stands for."""
        pause = self.options.retry_seconds
        if isinstance(error, DeadlineExceeded):
            reason = "deadline"
        elif isinstance(error, Overloaded | Draining | Refused):
            reason = "refused"
            pause = error.retry_after_ms / 1000 or pause
        else:
            reason = "unreachable"
        level = logging.DEBUG if self.gate.reason == reason else logging.WARNING
        text = str(error).removeprefix(f"{self.address}: ")
        log.log(level, "%s: %s; %s for %.3gs", self.address, text, self.refusal, pause)
        self.gate.shut(reason, self.clock.now() + pause)
        return reason

    def lost_connection(self) -> None:
        """The driver's connection is gone."""
        self.is_bound = False

    def let_go(self) -> None:
        """The daemon has hung up.  Should it be gone, nothing of its memory shall stay mapped for
        the sake of a client that does not call; a session that is joined again maps anew."""
        self.cache.clear()
        self.staging_memory = memoryview(b"")
        if self.attachment is not None:
            self._on_host(self.attachment)

    # ---- attaching ----

    def bind(self, until: float) -> Steps[Attachment]:
        """Connects, then joins the session there was or attaches a new one."""
        self.is_bound = False
        yield Dial(until)
        self.counters.add("connections")
        self._strikes = 0
        old = self.attachment
        if old is not None and self._may_join and not self.staging.quarantine_bytes:
            request = store.JoinRequest(
                protocol_version=VERSION, session_id=old.session_id, token=self.options.token
            )
            try:
                joined = yield Call(Method.JOIN, (request.SerializeToString(),), until)
            except UnknownSession:
                joined = None
            if joined is not None and joined.boot_id == old.boot_id:
                self.is_bound = True
                return old
        self._may_join = False
        if self._spec is None:
            yield Hangup()
            raise ConnectFailed(f"{self.address}: the session that this client joined is over")
        reply = yield Call(Method.ATTACH, (self._attach_request(self._spec),), until)
        return self._adopt(reply)

    def rebind(self, until: float) -> Steps[Attachment]:
        """bind() on behalf of a later call: a daemon that says no now is a miss, not an error."""
        try:
            return (yield from self.bind(until))
        except UsageError as error:
            raise Refused(f"{self.address} does not take this client any more: {error}") from error

    def _attach_request(self, spec: NamespaceSpec) -> bytes:
        return store.AttachRequest(
            protocol_version=VERSION,
            client_name=self.options.name,
            token=self.options.token,
            namespace=spec.message(),
            layouts=[layout_spec(layout) for layout in self._layouts],
            staging_bytes=self.options.staging_bytes,
            max_lineage=self.options.max_lineage,
            device=self.options.place_of_device,
        ).SerializeToString()

    def _adopt(self, reply: store.AttachResponse) -> Attachment:
        granted = tuple(grant.block_bytes for grant in reply.layouts)
        if granted != self.block_bytes:
            raise SpecMismatch(
                f"{self.address}: blocks of {granted} bytes granted, {self.block_bytes} asked for"
            )
        self.take_over(
            Attachment(
                session_id=reply.session_id,
                boot_id=reply.boot_id,
                domain=reply.domain,
                root_digest=reply.root_digest,
                block_bytes=granted,
                staging_bytes=reply.staging_bytes,
                max_pages=reply.max_pages,
                max_lineage=reply.max_lineage,
                read_ttl_seconds=reply.read_ttl_ms / 1000,
                slab=slab_of(reply),
            )
        )
        assert self.attachment is not None
        self.is_bound = True
        self.counters.add("sessions")
        log.info("%s: attached to boot %s", self.address, reply.boot_id.hex())
        return self.attachment

    def take_over(self, attachment: Attachment) -> None:
        """`attachment` is the one from now on; what hung on the one before is void."""
        if self.attachment is None or self.attachment.boot_id != attachment.boot_id:
            self.cache.clear()
        self.attachment, self._may_join, self.is_bound = attachment, True, False
        self.staging, self.staging_memory = Staging(attachment.staging_bytes), memoryview(b"")
        self.pending.clear()
        self._on_host(attachment)

    def _on_host(self, attachment: Attachment) -> None:
        """Reads in place begin with nothing mapped."""
        self.direct = self._direct_reader(attachment)
        self._leave_device()
        if self.options.device is not None:
            self.device_side = DeviceSide(self.options.device, attachment.slab)

    def _leave_device(self) -> None:
        side, self.device_side = self.device_side, None
        if side is not None:
            side.close()

    def _direct_reader(self, attachment: Attachment) -> DirectReader | None:
        """None for a remote client, and for one that joined: it knows no layouts."""
        if not self.is_local or not self._layouts:
            return None
        return DirectReader(
            attachment.boot_id,
            self.cache,
            tuple(
                layout_key(attachment.root_digest, layout.digest(), layout.shard())
                for layout in self._layouts
            ),
            self.block_bytes,
            self.options.checksum_reads,
        )

    def ended(self, attachment: Attachment) -> LeaseError:
        """Why handles of `attachment`, which is not the current one, are void."""
        current = self.attachment
        if current is not None and current.boot_id != attachment.boot_id:
            return BootChanged(f"{self.address} was restarted: boot {current.boot_id.hex()} now")
        return LeaseExpired(f"{self.address}: session {attachment.session_id.hex()} has ended")

    # ---- calling ----

    def call(
        self,
        method: Method,
        build: Callable[[Attachment], tuple[bytes, ...]],
        until: float,
        *,
        pinned: Attachment | None = None,
        attempts: int = 2,
        on_late: Callable[[Any], None] | None = None,
        payload: Sequence[memoryview] = (),
        into: memoryview | None = None,
    ) -> Steps[Any]:
        """One call inside the session, attached first where needed.

        With `pinned` it is made in that attachment or not at all (LeaseError).  `attempts` of 1 is
        for calls that must not run twice.
        """
        for attempt in range(attempts):
            is_last, was_bound = attempt == attempts - 1, self.is_bound
            if self.is_bound and self.attachment is not None:
                attachment = self.attachment
            else:
                attachment = yield from self.rebind(until)
            if pinned is not None and attachment is not pinned:
                raise self.ended(pinned)
            try:
                reply = yield Call(method, build(attachment), until, payload, into, on_late)
            except UnknownSession as error:
                self._may_join = False
                yield Hangup()
                if pinned is not None:
                    raise LeaseExpired(str(error)) from error
                if is_last:
                    raise ConnectFailed(f"{self.address}: {error}") from error
            except ConnectFailed:
                if is_last or not was_bound:
                    raise
            except DeadlineExceeded:
                self._strikes += 1
                if self._strikes >= STRIKES_MAX:
                    yield Hangup()
                raise
            except Unavailable:
                raise
            except AnchorStoreError:
                self.gate.open()
                raise
            else:
                self._strikes = 0
                self.gate.open()
                return reply
        raise AssertionError("unreachable")

    def connect(self, until: float) -> Steps[None]:
        """Attaches where a daemon is there; UsageError and Refused where it says no."""
        if (yield from self.enter(until)):
            return
        try:
            yield from self.bind(until)
            self.gate.open()
        except Unavailable as error:
            self.failed(error)
        except AnchorStoreError:
            yield Hangup()
            raise

    def guarded(self, steps: Steps[Any]) -> Steps[Any]:
        """`steps`; an Unavailable shuts the gate and goes on its way."""
        try:
            return (yield from steps)
        except Unavailable as error:
            self.failed(error)
            raise

    # ---- the end ----

    def close(self, until: float) -> Steps[None]:
        """Ends the session (a joined one only leaves it) and lets go of the mappings."""
        if self.is_closed:
            return
        reason = yield from self.enter(until)
        self.is_closed = True
        if not reason and self.is_bound and self._spec is not None and self.attachment is not None:
            request = store.DetachRequest(session_id=self.attachment.session_id)
            try:
                yield Call(Method.DETACH, (request.SerializeToString(),), until)
            except AnchorStoreError as error:
                log.debug("%s: detach: %s", self.address, error)
        yield Hangup()
        self.pending.clear()
        self.cache.clear()
        self.direct = None
        self._leave_device()
        self.staging_memory = memoryview(b"")
