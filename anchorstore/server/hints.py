"""The hint tables, one a domain: kept beside the core, written on the event loop alone.

::

    seal     blocks go ---> forget(gone)      their hints, found by the records in their slots
             mover copies
             finish_seal -> insert(sealed)    both homes full: one entry makes way
    attach   expect(domain, blocks)           a larger table where this one would be full

A table holds hints, not truth: see anchorstore.transport.hints.  The core knows nothing of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from anchorstore.server.core.types import U32, U64, Gone
from anchorstore.tiers.base import Tier
from anchorstore.tiers.heads import SealedMemory
from anchorstore.transport import hints as table_format

LOAD = 0.85  # of a table that holds every block: with two homes a hint, hardly any finds both full
BLOCKS_MAX = 2**21
BUCKETS_MIN = 32


class Placed(Protocol):
    """Blocks that were given slots, as seals and promotions name them; columns [n]."""

    @property
    def segment_id(self) -> U32: ...
    @property
    def slot(self) -> U32: ...
    @property
    def path_hash(self) -> U64: ...
    @property
    def layout_key(self) -> U64: ...
    def __len__(self) -> int: ...


@dataclasses.dataclass(eq=False)
class _Table:
    """One domain's table.  `entries` is u64[buckets, WAYS], shared with the clients."""

    memory: SealedMemory
    entries: U64

    @property
    def buckets(self) -> int:
        return len(self.entries)


class HintTables:
    """All of them.

    Args:
        tier: whose slots they point at.
        boot_id: 16 bytes, written into each header.
        blocks_max: for how many blocks a table is made at most; 0: no tables at all.

    Attributes:
        lost: hints that made way for others, which then cost a call.
    """

    def __init__(self, tier: Tier, boot_id: bytes, blocks_max: int = BLOCKS_MAX) -> None:
        self._tier, self._boot_id, self._blocks_max = tier, boot_id, blocks_max
        self._tables: dict[str, _Table] = {}
        self.lost = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(len(table.memory.memory) for table in self._tables.values())

    def memory_of(self, domain: str) -> SealedMemory | None:
        """What a client of the domain may map; None where nobody has attached to it."""
        table = self._tables.get(domain)
        return None if table is None else table.memory

    def expect(self, domain: str, blocks: int) -> None:
        """Room for `blocks`, up to a limit.  The hints there are move into the larger table; who
        has the old one mapped sees that its epoch has ended.  OSError without the memory."""
        if not self._blocks_max:
            return
        wanted = min(blocks, self._blocks_max) / (LOAD * table_format.WAYS)
        buckets = max(BUCKETS_MIN, int(wanted) + 1)
        old = self._tables.get(domain)
        if old is not None:
            if old.buckets >= buckets:
                return
            buckets = max(buckets, 2 * old.buckets)  # moving is dear: a few times at most
        memory = SealedMemory("anchorstore-hints", table_format.table_bytes(buckets))
        entries = table_format.format_table(memoryview(memory.memory), self._boot_id, buckets)
        self._tables[domain] = _Table(memory, entries)
        if old is not None:
            self._move(domain, old)

    def _move(self, domain: str, old: _Table) -> None:
        _end(old)
        segment_ids, slots = table_format.segments_and_slots(old.entries[old.entries != 0])
        for segment_id in np.unique(segment_ids).tolist():
            mine = slots[segment_ids == segment_id]
            keys = self._keys(segment_id, mine)
            if keys is not None:
                self._insert(domain, np.full(len(mine), segment_id, np.uint32), mine, *keys)
        old.memory.close()

    def turn_epoch(self, domain: str) -> None:
        """A namespace was turned off or on: readers ask before they go on."""
        table = self._tables.get(domain)
        if table is not None:
            place = (table.memory.memory, table_format.EPOCH_OFFSET)
            [epoch] = table_format.EPOCH.unpack_from(*place)
            table_format.EPOCH.pack_into(*place, epoch + 1)

    def insert(self, domain: str, copies: Placed, sealed: np.ndarray) -> None:
        """Hints for those of `copies` that `sealed` [n] names as visible."""
        if len(copies) and domain in self._tables:
            self._insert(
                domain,
                copies.segment_id[sealed],
                copies.slot[sealed],
                copies.path_hash[sealed, 0],
                copies.layout_key[sealed],
            )

    def _insert(
        self, domain: str, segment_ids: U32, slots: U32, first_words: U64, layout_keys: U64
    ) -> None:
        entries = self._tables[domain].entries
        fits = (segment_ids < table_format.SEGMENT_ID_LIMIT) & (slots < table_format.SLOT_LIMIT)
        if not fits.all():
            self.lost += int(len(fits) - np.count_nonzero(fits))
            segment_ids, slots = segment_ids[fits], slots[fits]
            first_words, layout_keys = first_words[fits], layout_keys[fits]
        homes, tag = table_format.places(first_words, layout_keys, len(entries))
        fresh = tag | table_format.positions(segment_ids, slots)
        while len(fresh):
            room = np.count_nonzero(entries[homes] == 0, axis=2)  # of both homes [n, 2]
            bucket = np.where(room[:, 0] >= room[:, 1], homes[:, 0], homes[:, 1])
            here, first = np.unique(bucket, return_index=True)  # one a bucket and round
            way = (entries[here] == 0).argmax(axis=1)
            full = room[first].max(axis=1) == 0
            self.lost += int(np.count_nonzero(full))
            way[full] = fresh[first[full]] % table_format.WAYS
            entries[here, way] = fresh[first]
            homes, fresh = np.delete(homes, first, axis=0), np.delete(fresh, first)

    def forget(self, gone: Iterable[Gone]) -> None:
        """Takes out the hints of blocks that are gone, before their slots are written again."""
        for part in gone:
            table = self._tables.get(part.domain)
            keys = self._keys(part.segment_id, part.slots)
            if table is None or keys is None:
                continue
            homes, tag = table_format.places(*keys, table.buckets)
            ids = np.full(len(part.slots), part.segment_id, np.uint32)
            entry = tag | table_format.positions(ids, part.slots)
            which, home, way = np.nonzero(table.entries[homes] == entry[:, None, None])
            table.entries[homes[which, home], way] = 0

    def _keys(self, segment_id: int, slots: U32) -> tuple[U64, U64] | None:
        """First words of the path hashes and layout keys in the records of these slots; None where
        the segment has another id by now."""
        try:
            records = self._tier.records(self._tier.index_of(segment_id))
        except LookupError:
            return None
        return records["path_hash"][slots, 0], records["layout_key"][slots]

    def close(self) -> None:
        """Ends every table: who has one mapped sees it, and asks.  Gives the memory back."""
        for table in self._tables.values():
            _end(table)
            table.memory.close()
        self._tables.clear()


def _end(table: _Table) -> None:
    table_format.EPOCH.pack_into(table.memory.memory, table_format.EPOCH_OFFSET, 0)
