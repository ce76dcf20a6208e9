"""Windows and their blocks: what a lookup found, held by a lease, read in place or fetched.

::

    Window  lease, boundary, resume point
      |-- blocks(0) --> places: segment | slot | generation | checksum        one row a page
      |                    same host: views of mapped segments, zero copies
      |                    remote:    fetched by Read, checked by xxh3
      `-- blocks(1) ...    (blocks.py)

Reading is optimistic: copy (or compute), then verify().  Where it passes, the bytes were the
sealed ones all the while: the lease had not ended, no generation had moved, and the daemon behind
them had not been seen to change.  That holds for a daemon that was killed in between, too: nobody
else can write the memory it left behind.

The steps here are shared by both faces (blocking.py, aio.py), which add the verbs that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from anchorstore.client import lookups
from anchorstore.client.attachment import Attachment
from anchorstore.client.blocks import BlocksBase
from anchorstore.client.effects import Steps
from anchorstore.client.handover import WindowRecord, encode_window
from anchorstore.client.lookups import Found
from anchorstore.client.session import Session
from anchorstore.errors import HandleClosed, InvalidRequest, LeaseExpired
from anchorstore.wire.v1 import store_pb2 as store

BlocksT = TypeVar("BlocksT", bound=BlocksBase)


class WindowBase(Generic[BlocksT]):
    """What a lookup found.  After a miss only `hit`, `miss` and `loading_boundary_pages` mean
    anything.

    Attributes:
        hit: whether there is a boundary.
        miss: why not, one of counters.MISS_REASONS; "" for a hit.
        boundary_pages, resume_pages: as the daemon answered; blocks end at resume_pages.
        lineage: deepest among the leased blocks.
        loading_boundary_pages: what the boundary will be once what is on its way into memory has
            come; 0 where nothing is, or where the lookup neither waited nor prefetched.
        lease_id: 0 where nothing is held.
    """

    def __init__(
        self,
        session: Session,
        found: Found,
        blocks_type: Callable[[WindowBase[Any], int, store.BlockColumns], BlocksT],
        *,
        is_borrowed: bool = False,
    ) -> None:
        self.session, self.miss, self._reply = session, found.miss, found.reply
        self.hit = not found.miss
        self.loading_boundary_pages = found.loading_boundary_pages
        self._attachment, self._expires_at = found.attachment, found.expires_at
        self._blocks_type, self._is_borrowed = blocks_type, is_borrowed
        self._blocks: dict[int, BlocksT] = {}
        self.is_closed = False
        reply = found.reply
        self.boundary_pages = reply.boundary_pages if reply is not None else 0
        self.resume_pages = reply.resume_pages if reply is not None else 0
        self.lineage = reply.lineage if reply is not None else 0
        self.lease_id = reply.lease_id if reply is not None else 0

    @property
    def attachment(self) -> Attachment:
        """The attachment that the lease belongs to."""
        assert self._attachment is not None, "a miss has no attachment"
        return self._attachment

    def check_open(self) -> None:
        """HandleClosed for a miss and after the end."""
        if not self.hit:
            raise HandleClosed(f"the lookup was a miss ({self.miss}): it has no blocks")
        if self.is_closed:
            raise HandleClosed("the window was released")

    def blocks(self, need: int) -> BlocksT:
        """Blocks of need number `need` of the lookup."""
        found = self._blocks.get(need)
        if found is not None:
            return found
        self.check_open()
        assert self._reply is not None
        if not 0 <= need < len(self._reply.columns):
            raise InvalidRequest(f"need {need}: the lookup had {len(self._reply.columns)}")
        found = self._blocks_type(self, need, self._reply.columns[need])
        self._blocks[need] = found
        return found

    def verify(self) -> None:
        """Says whether what was read so far were the sealed bytes; call it after the last read.

        Raises:
            TornBlock: a slot was reused while it was read.
            LeaseExpired: the lease, or the session that it belongs to, has ended.
            BootChanged: the daemon was restarted since.
        """
        self.check_open()
        current = self.session.attachment
        if current is not self._attachment:
            raise self._lost(self.session.ended(self.attachment))
        if not self.session.is_local:
            return  # fetched bytes are the caller's own and were checked on arrival
        for blocks in self._blocks.values():
            blocks.check_generations()
        if self.lease_id and self.session.clock.now() >= self._expires_at:
            raise self._lost(LeaseExpired(f"lease {self.lease_id} ran out; renew() in time"))

    def _lost(self, error: Any) -> Any:
        self.session.counters.add("leases_lost")
        return error

    def renew_steps(self, deadline_seconds: float | None) -> Steps[None]:
        """Extends the lease by its full life."""
        self.check_open()
        if not self.lease_id:
            return
        until = self.session.until(deadline_seconds)
        self._expires_at = yield from lookups.renew(
            self.session, self.attachment, self.lease_id, until
        )

    def copy_steps(self, destinations: Any, deadline_seconds: float | None) -> Steps[None]:
        """Copies each need's blocks into one of `destinations`, in order of the needs."""
        self.check_open()
        assert self._reply is not None
        if len(destinations) != len(self._reply.columns):
            raise InvalidRequest(
                f"{len(destinations)} destinations, the lookup had {len(self._reply.columns)} needs"
            )
        for need, destination in enumerate(destinations):
            yield from self.blocks(need).copy_steps(destination, deadline_seconds)

    def export(self) -> bytes:
        """The lease and its columns, for client.open_window() in another process of the session.

        The lease stays this window's: keep it open (and renewed) until the readers are done.
        Secret: it carries the session's id.
        """
        self.check_open()
        assert self._reply is not None
        left = self._expires_at - self.session.clock.now()
        return encode_window(WindowRecord(self.attachment, self._reply, self._expires_at, left))

    def end(self) -> bool:
        """Lets go of the mappings; True where the lease is to be ended, too (it waits for that)."""
        if self.is_closed:
            return False
        self.is_closed = True
        self._blocks.clear()
        if not self.lease_id or self._is_borrowed or self.session.is_closed:
            return False
        self.session.pending.append((self.attachment, self.lease_id))
        return True
