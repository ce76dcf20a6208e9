"""The store: every decision of the daemon, and no action.

::

    open_session -> reserve -> begin_seal -> (shell copies) -> finish_seal      write
                 -> lookup  -> (client reads in place)      -> release          read
    expire, evict_step     what time and pressure ask for
    status, list_pages, explain, set_enabled, remove, check    what operators ask for

`now` is monotonic seconds.  Every call runs to completion and leaves the invariants that `check`
walks; errors of anchorstore.errors leave the store as it was.  One thread calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from anchorstore.errors import InvalidRequest, UnknownSession
from anchorstore.keys import DIGEST_BYTES, Namespace
from anchorstore.layout import Layout
from anchorstore.server.core import (
    demoting,
    devices,
    ending,
    events,
    evicting,
    promoting,
    reports,
    reserving,
    restoring,
    sealing,
)
from anchorstore.server.core import lookup as reading
from anchorstore.server.core.audit import Audit
from anchorstore.server.core.check import violations
from anchorstore.server.core.planning import Plans, Reach
from anchorstore.server.core.policies import Policy
from anchorstore.server.core.restoring import Entries
from anchorstore.server.core.sessions import Kind, Session
from anchorstore.server.core.state import State
from anchorstore.server.core.tuning import Window
from anchorstore.server.core.types import (
    U8,
    U32,
    U64,
    BlockColumns,
    Bools,
    EventsResult,
    Explanation,
    Gone,
    LookupResult,
    Need,
    PageList,
    Removed,
    ReserveResult,
    SealWork,
    SessionGrant,
    StoreConfig,
    StoreStatus,
)
from anchorstore.server.core.work import DemoteWork, KnownNamespace, Restored


class Store:
    """The pure core.  `secret` keys the index against chosen collisions: the shell passes random
    bytes that it tells nobody; `boot_id`, which every client knows, is no secret."""

    def __init__(self, config: StoreConfig, boot_id: bytes, secret: bytes = b"") -> None:
        self.config = config
        self.boot_id = boot_id
        self._state = State(config, boot_id + secret)
        self._plans = Plans()
        self.audit = Audit(self._state)

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the start, by name; they only rise."""
        return self._state.counters

    def _session(self, session_id: bytes, now: float) -> Session:
        self._state.seconds = now
        return self._state.registry.session(session_id, now)

    # ---- sessions ----

    def open_session(
        self,
        session_id: bytes,
        namespace: Namespace,
        layouts: Sequence[Layout],
        *,
        max_lineage: int | None = None,
        name: str = "",
        now: float,
    ) -> SessionGrant:
        """Opens a session under an id that the shell made up (16 random bytes).

        `max_lineage` becomes the namespace's unless other sessions use it with another value
        (SpecMismatch).  Layouts that do not fit: SpecMismatch.  Limits: CapacityFull.
        """
        session = self._state.registry.attach(
            session_id, namespace, layouts, max_lineage, name, now
        )
        blocks_max = self._state.expect(session.kinds)
        self._state.counters["sessions_opened"] += 1
        self._state.note("open", session_id.hex(), name)
        sizes = tuple(kind.slot_bytes for kind in session.kinds)
        record = session.record
        return SessionGrant(record.root_digest, sizes, record.max_lineage, blocks_max)

    def connection_opened(self, session_id: bytes, domain: str) -> None:
        """Binds a connection to a session; UnknownSession for a wrong id or a foreign domain."""
        session = self._state.registry.sessions.get(session_id)
        if session is None or session.record.namespace.domain != domain:
            raise UnknownSession("session is not open here")
        session.connections += 1
        self._state.registry.idle.drop(session_id)

    def connection_closed(self, session_id: bytes, now: float) -> None:
        """Unbinds one; the session ends with its last.  Nothing happens where it has ended."""
        session = self._state.registry.sessions.get(session_id)
        if session is None:
            return
        self._state.ensure(session.connections > 0, "more connections closed than opened")
        session.connections -= 1
        if not session.connections:
            ending.end_session(self._state, session)

    def is_open(self, session_id: bytes) -> bool:
        """Whether the session has not ended; no use of it."""
        return session_id in self._state.registry.sessions

    def end_session(self, session_id: bytes, now: float) -> None:
        """Ends the session with its leases, reservations and pins."""
        ending.end_session(self._state, self._session(session_id, now))

    # ---- writing ----

    def reserve(
        self,
        session_id: bytes,
        parent_hash: bytes,
        first_page: int,
        hashes: bytes,
        layouts: Sequence[int],
        lineage: int,
        now: float,
        priority: int = 0,
    ) -> ReserveResult:
        """Asks which blocks of pages `first_page`, `first_page` + 1, ... are worth writing.  Pages
        have the highest priority that they were ever offered with, within 16 bits."""
        session = self._session(session_id, now)
        return reserving.reserve(
            self._state, session, parent_hash, first_page, hashes, layouts, lineage, now, priority
        )

    def begin_seal(
        self,
        session_id: bytes,
        reservation_id: int,
        pages: U32,
        layouts: U8,
        keep_open: bool,
        now: float,
    ) -> SealWork:
        """Takes slots for blocks of a reservation.  The shell carries out the formats at once and
        in order, then copies, then calls finish_seal with the ticket: always, exactly once."""
        session = self._session(session_id, now)
        return sealing.begin_seal(
            self._state, session, reservation_id, pages, layouts, keep_open, now
        )

    def finish_seal(self, ticket: int, copied_ok: Bools, checksums: U64, now: float) -> bytes:
        """Makes the copied blocks visible.  `copied_ok` and `checksums` have one element a copy;
        returns one `Sealed` a block that begin_seal was asked for."""
        return sealing.finish_seal(self._state, ticket, copied_ok, checksums)

    def take_gone(self) -> list[Gone]:
        """Blocks gone since the last call; ask before the formats of a seal are carried
        out.  Only hints hang on it: who asks late lets readers find what is gone a while longer."""
        return self._state.pool.take_gone()

    def abort(self, session_id: bytes, reservation_id: int, now: float) -> None:
        """Gives a reservation back; one that has ended already is no error."""
        reservation = self._session(session_id, now).reservations.get(reservation_id)
        if reservation is not None:
            reserving.abort(self._state, reservation)

    # ---- reading ----

    def lookup(
        self,
        session_id: bytes,
        hashes: bytes,
        needs: Sequence[Need],
        *,
        max_lineage: int,
        margin_pages: int,
        now: float,
        reach: Reach = Reach.ALL,
    ) -> LookupResult:
        """The largest boundary that satisfies every need, under a read lease.

        Where blocks for it are in nvme alone, and `reach` is ALL, the result is no answer yet but
        a `promotion`: the shell carries its work out, waits for all its tickets, and asks again.
        """
        session = self._session(session_id, now)
        return reading.lookup(
            self._state, self._plans, session, hashes, needs, max_lineage, margin_pages, reach, now
        )

    def finish_promote(self, ticket: int, ok: Bools, lost: Bools, now: float) -> Bools:
        """Ends a PromoteWork: `ok` [n] were read and proven, `lost` are there no more (the others
        were not tried, or too late, and stay).  Returns which can be read in dram now."""
        return promoting.finish_promote(self._state, ticket, ok, lost)

    def renew(self, session_id: bytes, lease_ids: Sequence[int], now: float) -> list[int]:
        """Extends leases; returns those that had ended."""
        return reading.renew(self._state, self._session(session_id, now), lease_ids, now)

    def release(self, session_id: bytes, lease_ids: Sequence[int], now: float) -> None:
        """Ends leases; unknown ids change nothing."""
        reading.release(self._state, self._session(session_id, now), lease_ids)

    def leased_columns(
        self, session_id: bytes, lease_id: int, need: int, now: float
    ) -> tuple[BlockColumns, Kind]:
        """Where the blocks of one need of a lease lie, and what they are; LeaseExpired where it
        has ended."""
        session = self._session(session_id, now)
        return reading.leased_columns(self._state, session, lease_id, need)

    def map_segments(self, session_id: bytes, segment_ids: Sequence[int], now: float) -> list[int]:
        """Pool indexes of segments of the session's domain; the session becomes their holder.
        InvalidRequest, alike for an id that is unknown and for another domain's."""
        session = self._session(session_id, now)
        domain = session.record.namespace.domain
        found = []
        for segment_id in segment_ids:
            segment = self._state.pool.by_id.get(segment_id)
            if segment is None or segment.slot_class.domain != domain:
                raise InvalidRequest(f"no segment {segment_id}")
            found.append(segment)
        for segment in found:
            segment.holders.add(session_id)
        return [segment.index for segment in found]

    def touch(self, session_id: bytes, hashes: bytes, now: float) -> None:
        """Pages [32 n bytes] that were read without a lookup, for the eviction's order."""
        reading.touch(self._state, self._session(session_id, now), hashes)

    def note_events(
        self, session_id: bytes, kinds: U8, hashes: bytes, is_cleared: bool, now: float
    ) -> EventsResult:
        """What the session's engine tells of its own cache: one `Event` a path hash; events.py."""
        session = self._session(session_id, now)
        return events.note(self._state, session, kinds, hashes, is_cleared, now)

    # ---- nvme ----

    def restore(
        self,
        namespaces: Sequence[KnownNamespace],
        layouts: Sequence[Layout],
        entries: Entries,
        now: float,
    ) -> Restored:
        """Takes over what the journals name, before the first session; see restoring.py."""
        return restoring.restore(self._state, namespaces, layouts, entries, now)

    @property
    def blocks_to_demote(self) -> int:
        """Sealed blocks that wait to be written to nvme."""
        return len(self._state.movement.waiting)

    def begin_demote(
        self, limit_blocks: int, now: float, room: Sequence[int] | None = None
    ) -> list[DemoteWork]:
        """What to write to nvme next, at most so many blocks: what was sealed lately, then what
        dram would give up next.  `room` says how many each device may take, None for any number.
        The shell writes each work, then calls finish_demote with its ticket."""
        return demoting.begin_demote(self._state, limit_blocks, room)

    def finish_demote(self, ticket: int, ok: Bools, now: float) -> Bools:
        """Ends a DemoteWork; returns which blocks [n] have a place in nvme now, for the journal.
        Ask take_cold_gone first."""
        return demoting.finish_demote(self._state, ticket, ok)

    def pause_demotion(self, paused: bool) -> None:
        """While nvme cannot be written: nothing waits for it."""
        self._state.movement.is_paused = paused

    def take_cold_gone(self) -> U32:
        """Units whose blocks have gone since the last call, for the journal."""
        nvme = self._state.nvme
        return np.zeros(0, np.uint32) if nvme is None else nvme.cold_pool.take_gone_units()

    def take_cold_used(self, pages_max: int) -> U32:
        """Units whose blocks were used since the last call, in order of use, for the journal."""
        return demoting.take_used(self._state, pages_max)

    def close_segments(self, segment_ids: Iterable[int]) -> None:
        """These segments of nvme get no more blocks: their device cannot be written."""
        devices.close(self._state, segment_ids)

    def reopen_segments(self, segment_ids: Iterable[int]) -> None:
        """They get blocks again."""
        devices.reopen(self._state, segment_ids)

    def lose_segments(self, segment_ids: Iterable[int]) -> int:
        """These segments of nvme are gone: what lies there alone is forgotten.  Some at a time, so
        that calls go on meanwhile.  Returns how many blocks."""
        return devices.lose(self._state, segment_ids)

    # ---- time and pressure ----

    def expire(self, now: float) -> None:
        """Ends leases, reservations, idle sessions and silent engines whose time is over."""
        ending.expire(self._state, now)

    def evict_step(self, now: float, limit_blocks: int) -> int:
        """Watermark work, about `limit_blocks` blocks a tier at most; returns how many went."""
        self._state.seconds = now
        return evicting.evict_step(self._state, limit_blocks)

    def take_window(self) -> Window | None:
        """The requests by which to tune a flop-aware last tier (tuning.py): once, when there are
        enough of them; else None."""
        bootstrap = self._state.bootstrap
        if bootstrap is None or not bootstrap.is_full:
            return None
        self._state.bootstrap = None
        return bootstrap.window()

    def follow(self, policy: Policy) -> None:
        """Evicts from the last tier in this order from now on: of the same columns as before."""
        self._state.last.queues.follow(policy)

    @property
    def last_tier(self) -> tuple[Policy, int]:
        """Order and bytes of the tier that decides what is to be computed again: nvme where there
        is one, since what leaves dram alone is only read again."""
        last = self._state.last
        return last.queues.policy, last.pool.segments * last.pool.segment_bytes

    def next_deadline(self) -> float | None:
        """When `expire` has work next."""
        return ending.next_deadline(self._state)

    # ---- operators ----

    def status(self, now: float) -> StoreStatus:
        """The whole store at a glance."""
        return reports.status(self._state)

    def list_pages(self, root: bytes, cursor: int, limit: int) -> PageList:
        """Pages of one namespace in index order; start with cursor 0."""
        return reports.list_pages(self._state, root, cursor, limit)

    def explain(self, root: bytes, hashes: bytes) -> Explanation:
        """How far a prefix matches and why it ends there."""
        return reports.explain(self._state, root, hashes)

    def set_enabled(self, root: bytes, enabled: bool) -> KnownNamespace:
        """The kill switch: a namespace that is off misses every lookup, declines every write.
        Returns what is to be kept of it over a restart."""
        record = self._state.registry.namespace_of_root(root)
        record.enabled = enabled
        self._state.note("enabled" if enabled else "disabled", root.hex())
        self._state.registry.forget_namespace_if_idle(record)
        return record.known

    def remove(self, root: bytes, path_hash: bytes | None) -> Removed:
        """Removes a namespace's blocks, or those of one page and of all that continue it."""
        if path_hash is not None and len(path_hash) != DIGEST_BYTES:
            raise InvalidRequest(f"path hash has {len(path_hash)} bytes, must have 32")
        return reports.remove(self._state, root, path_hash)

    def check(self) -> list[str]:
        """Every invariant of the store, walked; violations in words, [] where all is well."""
        return violations(self._state)
