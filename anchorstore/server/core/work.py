"""Work between the tiers, as columns: what to copy where, and what to say afterwards.

::

    begin_demote   -> DemoteWork  -> write to nvme, footer -> finish_demote(ticket, ok)
    lookup         -> Promotion
                      PromoteWork -> read into dram slots  -> finish_promote(ticket, ok, lost)
    journal        -> entries     -> restore                  before the first session

All arrays are [n], one element a block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from anchorstore.keys import Namespace
from anchorstore.layout import Layout
from anchorstore.server.core.types import U8, U16, U32, U64, FormatSegment


class KnownNamespace(NamedTuple):
    """What of a namespace is kept over a restart."""

    namespace: Namespace
    max_lineage: int
    enabled: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DemoteWork:
    """Work: copy blocks from dram to one device of nvme, then finish_demote(ticket), exactly once.

    The dram slots stay as they are until then.

    Attributes:
        device: its place among NvmeShape.devices.
        segment_index, offset, block_bytes: where each lies in dram.
        unit, generation: its nvme slot, and the even number that the slot's footer shall show.
        page, parent_hash u64[n, 4], path_hash u64[n, 4]: its place in the tree; the parent is
            zero where it is not known.
        kind_id, namespace_id: keys of `kinds` and `namespaces`.
        layout_key, lineage, checksum: as in the record of the dram slot.
    """

    ticket: int
    device: int
    segment_index: U32
    offset: U64
    block_bytes: U64
    unit: U32
    generation: U32
    page: U32
    parent_hash: U64
    path_hash: U64
    kind_id: U16
    namespace_id: U32
    layout_key: U64
    lineage: U8
    checksum: U64
    kinds: Mapping[int, Layout]
    namespaces: Mapping[int, KnownNamespace]

    def __len__(self) -> int:
        return len(self.unit)


@dataclasses.dataclass(frozen=True, slots=True)
class PromoteWork:
    """Work: `formats` at once, in order; then copy blocks from nvme into dram slots, in this order
    (anchors first, kv last); then finish_promote(ticket), exactly once, and not before the last
    byte has moved: who waits may be answered earlier, by a lookup of dram alone.

    Attributes:
        namespace_id, domain: of all blocks.
        segment_index, segment_id, slot, offset, block_bytes: where each goes.
        generation: odd: what the slot's record shows meanwhile; + 1 once the bytes are proven.
        unit, cold_generation: its nvme slot, and the generation that its footer shows.
        path_hash u64[n, 4], layout_key, lineage, checksum: what proves it, and what the slot's
            record shows.
    """

    ticket: int
    namespace_id: int
    domain: str
    formats: list[FormatSegment]
    segment_index: U32
    segment_id: U32
    slot: U32
    offset: U64
    block_bytes: U64
    generation: U32
    unit: U32
    cold_generation: U32
    path_hash: U64
    layout_key: U64
    lineage: U8
    checksum: U64

    def __len__(self) -> int:
        return len(self.unit)


@dataclasses.dataclass(frozen=True, slots=True)
class Promotion:
    """What a lookup of a namespace waits for: all `tickets`; `work` is the one that it has begun
    itself, None where every block is being read already.  `boundary_pages` is what it then finds.
    """

    namespace_id: int
    work: PromoteWork | None
    tickets: tuple[int, ...]
    boundary_pages: int


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """What came of a journal's entries.  `dropped` counts by reason; `lost_units` are those of the
    dropped ones: their slots are free."""

    pages: int
    blocks: int
    dropped: Mapping[str, int]
    lost_units: U32
