"""Blocks read without a call: where the hints point, if the slot's own record agrees.

::

    path hash, layout --hints--> (segment, slot) --record--> this block?  copy.  still?  done
                          |                                        |               |
                          +-- none, or its segment not mapped -----+-- no ---------+--> ask

Nothing keeps the slot from reuse meanwhile: its generation says afterwards whether it was.  The
daemon learns of such reads in batches (Touch), so that what is read stays warm.  A namespace's kill
switch moves the epoch of the hints: then the daemon is asked, until it has answered something else
than "disabled".

The processor must keep loads in order for that (x86-64 does); elsewhere, and where the client
checks its reads anyway, the copy's checksum decides.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from anchorstore.client.buffers import Bytes
from anchorstore.client.mapping import SegmentCache
from anchorstore.keys import DIGEST_BYTES
from anchorstore.transport.hints import HintView
from anchorstore.transport.segment import SegmentView

TOUCHES_KEPT = 4096
ORDERED_LOADS = platform.machine() in ("x86_64", "AMD64")


class _Place(NamedTuple):
    """A block that was found, as its record showed it."""

    view: SegmentView
    slot: int
    generation: int
    checksum: int


class DirectReader:
    """Reads blocks of one attachment by way of the hints.

    find-and-copy may run on any thread; the rest runs under the client's lock.

    Attributes:
        is_known: whether the daemon has said whether it has hints.
        asked_again_at: before that it is not asked once more.
        touched: path hashes of pages read since the daemon was told last.
    """

    def __init__(
        self,
        boot_id: bytes,
        cache: SegmentCache,
        layout_keys: tuple[int, ...],
        block_bytes: tuple[int, ...],
        check_checksums: bool,
    ) -> None:
        self._boot_id, self._cache = boot_id, cache
        self._layout_keys, self._block_bytes = layout_keys, block_bytes
        self._check_checksums = check_checksums or not ORDERED_LOADS
        self._hints: HintView | None = None
        self._epoch = 0  # under which the namespace was last seen to be on
        self.is_known = False
        self.asked_again_at = 0.0
        self.touched: dict[bytes, None] = {}

    def open(self, hints: HintView | None) -> None:
        """What the daemon gave: its hints, or that it keeps none."""
        self._hints, self.is_known, self._epoch = hints, True, 0

    @property
    def epoch(self) -> int:
        """To be read before a lookup whose answer goes to seen_enabled(); 0 without hints."""
        return 0 if self._hints is None else self._hints.epoch

    def seen_enabled(self, epoch: int) -> None:
        """A lookup that began under `epoch` was not answered with "disabled"."""
        self._epoch = epoch

    def may_read(self) -> bool:
        """Whether blocks may be read now; hints that were replaced are to be asked for anew."""
        hints = self._hints
        if hints is None:
            return False
        epoch = hints.epoch
        if not epoch:  # a larger table has taken its place, or the daemon has ended
            self.is_known, self._hints, self.asked_again_at = False, None, 0.0
            return False
        return epoch == self._epoch

    def take_touched(self, limit: int) -> bytes:
        """Up to `limit` path hashes that the daemon is to be told of, the oldest first."""
        taken = list(self.touched)[:limit]
        for path_hash in taken:
            self.touched.pop(path_hash, None)
        return b"".join(taken)

    def copy(self, path_hashes: bytes, layout: int, max_lineage: int, target: Bytes) -> int:
        """Copies the blocks of pages [32 n bytes] back to back into `target`; how many, from the
        first on, were there."""
        size = self._block_bytes[layout]
        places = self._find(path_hashes, self._layout_keys[layout], max_lineage)
        blocks = target[: len(places) * size].reshape(len(places), size)
        for start, stop in _runs(places):
            view, slot = places[start].view, places[start].slot
            np.copyto(blocks[start:stop], view.run(slot, stop - start, size))
        for index, place in enumerate(places):
            if not self._stands(place, blocks[index]):
                return index
            if len(self.touched) < TOUCHES_KEPT:
                self.touched[path_hashes[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]] = None
        return len(places)

    def _find(self, path_hashes: bytes, key: int, max_lineage: int) -> list[_Place]:
        """Where the pages' blocks lie, up to the first that is not found."""
        hints, places = self._hints, list[_Place]()
        if hints is None:
            return places
        for start in range(0, len(path_hashes), DIGEST_BYTES):
            path_hash = path_hashes[start : start + DIGEST_BYTES]
            for segment_id, slot in hints.find(path_hash, key):
                view = self._cache.get(self._boot_id, segment_id)
                place = None if view is None else _look(view, slot, (key, path_hash), max_lineage)
                if place is not None:
                    places.append(place)
                    break
            else:
                break
        return places

    def _stands(self, place: _Place, block: Bytes) -> bool:
        """Whether the copied bytes are those that the record named."""
        if self._check_checksums and xxhash.xxh3_64_intdigest(block) != place.checksum:
            return False
        return place.view.slot_stands(place.slot, place.generation)


def _look(
    view: SegmentView, slot: int, wanted: tuple[int, bytes], max_lineage: int
) -> _Place | None:
    """The block in a slot, if it is the wanted one (layout key, path hash)."""
    record = view.record(slot)
    if record is None:
        return None
    generation, lineage, key, checksum, path_hash = record
    if (key, path_hash) != wanted or lineage > max_lineage or generation % 2:
        return None
    return _Place(view, slot, generation, checksum)


def _runs(places: Sequence[_Place]) -> Iterator[tuple[int, int]]:
    """First and end of each stretch of blocks that lie side by side: one copy each."""
    start = 0
    for index in range(1, len(places) + 1):
        before = places[index - 1]
        if index < len(places):
            place = places[index]
            if place.view is before.view and place.slot == before.slot + 1:
                continue
        yield start, index
        start = index
