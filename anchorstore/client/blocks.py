"""The blocks of one need of a window: read in place, copied out, fetched, and checked afterwards.

::

    places --same host--> views of mapped segments --copy--> the caller's memory --> generations
       |                        `-- in place: memoryview, numpy, torch
       +-----remote-----> Read -----------------------copy--> the caller's memory --> xxh3
       +-----device-----> device.py
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from anchorstore.client import device, lookups
from anchorstore.client.buffers import Bytes, array_of, byte_array, tensor_of
from anchorstore.client.effects import Steps, Work
from anchorstore.errors import ChecksumMismatch, HandleClosed, InvalidRequest, TornBlock
from anchorstore.transport.segment import PLACE, Places, SegmentView
from anchorstore.wire.v1 import store_pb2 as store

if TYPE_CHECKING:
    from anchorstore.client.handles import WindowBase

READ_BYTES_PER_CALL = 16 * 2**20
_EVERY = slice(None)

Rows = slice | npt.NDArray[np.intp]


class BlocksBase:
    """The blocks of one need, in page order.  A sequence of read-only memoryviews.

    Attributes:
        layout: position of the layout among the client's.
        first_page: page index of blocks[0].
        block_bytes: size of each.
        device_places: where copies lie on the session's device, one record a block; segment 0
            where there is none.
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
        self.device_places = device.places_of(columns, len(self._places))
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

    def copy_to_device_steps(self, destination: Any, deadline_seconds: float | None) -> Steps[None]:
        """The same into device memory, within the device where copies lie there (device.py)."""
        self._window.check_open()
        session, places = self._session, self.device_places
        if session.options.checksum_reads:  # what never was in host memory cannot be checked here
            places = np.zeros(len(self), PLACE)
        yield from device.copy_steps(
            session,
            device.Source(self._attachment.boot_id, places, self.block_bytes, self.__getitem__),
            destination,
            deadline_seconds,
            load=self.load_steps,
            verify=self._verify_copy,
        )

    def _verify_copy(self) -> None:
        """What a copy out of the pool was worth."""
        self._window.verify()
        if self._session.options.checksum_reads:
            self.check_checksums()
        self._session.counters.add("bytes_read", self.size_bytes)

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
