"""Windows and their blocks: what a lookup found, held by a lease, read in place or fetched.

::

    Window  lease, boundary, resume point
      |-- blocks(0) --> places: segment | slot | generation | checksum        one row a page
      |                    same host: views of mapped segments, zero copies
      |                    remote:    fetched by Read, checked by xxh3
      `-- blocks(1) ...

Reading is optimistic: copy (or compute), then verify().  Where it passes, the bytes were the
sealed ones all the while: the lease had not ended, no generation had moved, and the daemon behind
them had not been seen to change.  That holds for a daemon that was killed in between, too: nobody
else can write the memory it left behind.

The steps here are shared by both faces (blocking.py, aio.py), which add the verbs that wait.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.client import lookups
from anchorstore.client.buffers import Bytes, array_of, byte_array, tensor_of
from anchorstore.client.effects import Steps, Work
from anchorstore.client.handover import WindowRecord, encode_window
from anchorstore.client.lookups import Found
from anchorstore.client.session import Attachment, Session
from anchorstore.errors import (
    ChecksumMismatch,
    HandleClosed,
    InvalidRequest,
    LeaseExpired,
    TornBlock,
)
from anchorstore.transport.segment import PLACE, Places, SegmentView
from anchorstore.wire.v1 import store_pb2 as store

READ_BYTES_PER_CALL = 16 * 2**20
_EVERY = slice(None)

Rows = slice | npt.NDArray[np.intp]


class BlocksBase:
    """The blocks of one need, in page order.  A sequence of read-only memoryviews.

    Attributes:
        layout: position of the layout among the client's.
        first_page: page index of blocks[0].
        block_bytes: size of each.
    """

    def __init__(self, window: WindowBase[Any], need: int, columns: store.BlockColumns) -> None:
        session, attachment = window.session, window.attachment
        self._window, self._session, self._attachment = window, session, attachment
        self._need = need
        self.layout, self.first_page = columns.layout, columns.first_page
        if self.layout >= len(attachment.block_bytes):
            raise InvalidRequest(f"reply: layout {self.layout} of {len(attachment.block_bytes)}")
        self.block_bytes = attachment.block_bytes[self.layout]
        if len(columns.places) % PLACE.itemsize:
            raise InvalidRequest(f"reply: {len(columns.places)} bytes are no whole places")
        self._places: Places = np.frombuffer(columns.places, PLACE)
        self._views: dict[int, SegmentView] | None = None  # same host, once mapped
        self._groups: list[tuple[SegmentView, Rows]] = []  # and the blocks that lie in each
        self._rows: list[tuple[int, int]] | None = None  # (segment, slot), once asked for
        self._memory: memoryview | None = None  # remote, once fetched

    def __len__(self) -> int:
        return len(self._places)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return len(self) * self.block_bytes

    @property
    def is_loaded(self) -> bool:
        """Whether blocks can be read without asking the daemon."""
        return self._memory is not None or self._views is not None or not len(self)

    # ---- getting the bytes ----

    def load_steps(self, deadline_seconds: float | None) -> Steps[None]:
        """Maps the segments, or fetches the blocks."""
        self._window.check_open()
        if self.is_loaded or self._load_from_cache():
            return
        until = self._session.until(deadline_seconds)
        if not self._session.is_local:
            memory = memoryview(bytearray(self.size_bytes))
            yield from self._fetch_steps(memory, deadline_seconds)
            self._memory = memory.toreadonly()
            return
        yield from self._session.enter_or_raise(until)
        segment_ids = np.unique(self._places["segment"]).tolist()
        yield from self._session.guarded(
            lookups.map_segments(self._session, self._attachment, segment_ids, until)
        )
        if not self._load_from_cache():
            raise self._count(TornBlock("a segment was formatted anew while it was mapped"))

    def _load_from_cache(self) -> bool:
        """Takes the mappings that are there already; needs no lock."""
        if not self._session.is_local:
            return False
        views: dict[int, SegmentView] = {}
        groups: list[tuple[SegmentView, Rows]] = []
        segments = self._places["segment"]
        distinct = set(segments.tolist())
        for segment_id in distinct:
            view = self._session.cache.get(self._attachment.boot_id, segment_id)
            if view is None:
                return False
            is_only = len(distinct) == 1
            rows: Rows = _EVERY if is_only else np.flatnonzero(segments == segment_id)
            if self._places["slot"][rows].max() >= view.slots or self.block_bytes > view.slot_bytes:
                raise InvalidRequest(f"reply: a block outside segment {segment_id}")
            views[segment_id] = view
            groups.append((view, rows))
        self._views, self._groups = views, groups
        return True

    def _fetch_steps(self, into: memoryview, deadline_seconds: float | None) -> Steps[None]:
        """Reads every block straight into `into` and checks it."""
        count = max(1, READ_BYTES_PER_CALL // self.block_bytes)
        for first in range(0, len(self), count):
            stop = min(first + count, len(self))
            part = into[first * self.block_bytes : stop * self.block_bytes]
            until = self._session.until(deadline_seconds)
            yield from self._session.enter_or_raise(until)
            yield from lookups.read_blocks(
                self._session,
                self._attachment,
                self._window.lease_id,
                self._need,
                first,
                part,
                self.block_bytes,
                until,
            )
            yield Work(functools.partial(self._check, part, first), len(part))
        self._session.counters.add("bytes_read", len(into))

    def copy_steps(self, destination: Any, deadline_seconds: float | None) -> Steps[None]:
        """Copies all blocks, one after another, then verifies."""
        self._window.check_open()
        target = byte_array(destination, "destination", writable=True)
        if len(target) != self.size_bytes:
            raise InvalidRequest(
                f"destination has {len(target)} bytes, the {len(self)} blocks have "
                f"{self.size_bytes}"
            )
        if not len(self):
            return
        if not self._session.is_local and self._memory is None:
            yield from self._fetch_steps(memoryview(target), deadline_seconds)
            return
        yield from self.load_steps(deadline_seconds)
        yield Work(lambda: self._copy(target), len(target))

    def _copy(self, target: Bytes) -> None:
        if self._memory is not None:
            np.copyto(target, np.frombuffer(self._memory, np.uint8))
        else:
            for start, stop, source in self._runs():
                part = target[start * self.block_bytes : stop * self.block_bytes]
                np.copyto(part.reshape(stop - start, self.block_bytes), source)
            self._window.verify()
            if self._session.options.checksum_reads:
                self._check(memoryview(target), 0)
        self._session.counters.add("bytes_read", len(target))

    def _runs(self) -> list[tuple[int, int, Bytes]]:
        """(first, stop, bytes [stop - first, block_bytes] in place) of neighbouring slots."""
        assert self._views is not None, "copied before it was loaded"
        segments, slots = self._places["segment"], self._places["slot"]
        edges, runs = [0, len(self)], []
        if len(self) > 1:
            breaks = np.flatnonzero(
                (segments[1:] != segments[:-1]) | (slots[1:] - slots[:-1] != np.uint32(1))
            )
            edges[1:1] = (breaks + 1).tolist()
        for start, stop in itertools.pairwise(edges):
            view = self._views[int(segments[start])]
            source = view.run(int(slots[start]), stop - start, self.block_bytes)
            runs.append((start, stop, source))
        return runs

    # ---- checking them ----

    def _check(self, memory: memoryview, first: int) -> None:
        """ChecksumMismatch unless `memory` holds the blocks from `first` on as they were sealed."""
        size, sealed = self.block_bytes, self._places["checksum"][first:].tolist()
        for index in range(len(memory) // size):
            found = xxhash.xxh3_64_intdigest(memory[index * size : (index + 1) * size])
            if found != sealed[index]:
                page = self.first_page + first + index
                raise self._count(
                    ChecksumMismatch(
                        f"page {page}: xxh3 is {found:016x}, sealed as {sealed[index]:016x}"
                    )
                )

    def check_checksums(self) -> None:
        """ChecksumMismatch unless every block in place has the xxh3 it was sealed with."""
        for index in range(len(self)):
            self._check(self[index], index)

    def check_generations(self) -> None:
        """TornBlock where a block that was read in place is not the sealed one any more."""
        torn = 0
        for view, rows in self._groups:
            here = self._places[rows]
            stands = view.stands(here["slot"], here["generation"])
            torn += len(stands) - int(np.count_nonzero(stands))
        if torn:
            raise self._count(TornBlock(f"{torn} of {len(self)} blocks were given up meanwhile"))

    def _count(self, error: TornBlock | ChecksumMismatch) -> TornBlock | ChecksumMismatch:
        is_torn = isinstance(error, TornBlock)
        self._session.counters.add("torn" if is_torn else "checksum_mismatches")
        return error

    # ---- reading them ----

    def __getitem__(self, index: int) -> memoryview:
        """Block `index` [block_bytes], read-only: in place, or in what was fetched."""
        self._window.check_open()
        if not -len(self) <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        self._need_loaded()
        index %= len(self)
        if self._memory is not None:
            return self._memory[index * self.block_bytes : (index + 1) * self.block_bytes]
        assert self._views is not None
        if self._rows is None:
            self._rows = [(segment, slot) for segment, slot, _, _ in self._places.tolist()]
        segment_id, slot = self._rows[index]
        return self._views[segment_id].block(slot, self.block_bytes)

    def _need_loaded(self) -> None:
        if not self.is_loaded and not self._load_from_cache():
            raise HandleClosed("blocks are not loaded: call load() first")

    def numpy(
        self, index: int, dtype: Any = np.uint8, shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Any]:
        """Block `index` as a read-only array, zero copies."""
        return array_of(self[index], dtype, shape)

    def torch(self, index: int, dtype: Any = "uint8", shape: tuple[int, ...] | None = None) -> Any:
        """Block `index` as a CPU tensor, zero copies.  Never write to it."""
        return tensor_of(self[index], dtype, shape)


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
