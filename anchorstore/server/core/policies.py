"""In which order pages go: small classes behind one interface.

A policy turns columns of the page table into keys, many pages at once; the page with the smallest
key goes first (among leaves: leaf_order.py sees to that)::

    bits of a key     63 ... 48              47 ... 0
    lru               0                      tick of the last use
    lfu               uses, saturating       tick of the last use
    slru              1 where protected      tick of the last use
    priority          priority + 32768       tick of the last use
    ttl               1 where still fresh    tick of the last use
    segment-length    log2 of the length     tick of the last use
    fifo              0                      tick at which the page came
    flop-aware        a score, as a float64 whose bits sort like the number

No two pages share a tick, so only scores can tie; the lower row goes first then.

lru, lfu, slru, priority and fifo order pages as the strategies of those names order nodes in
SGLang's radix tree.  There a use that counts is an insert that covers the page, the first one
included, and never a match; a page has the highest priority of the inserts that covered it.

A use never lowers a key.  That of a policy that *drifts* changes without a use, by time or by what
happens to other pages: a scan fixes what it is measured by (`fixed`), and the order holds for it.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from anchorstore.server.core.types import U32, U64

STAMP_BITS = 48
"""Enough for ten million uses a second over ten months."""

CLASS_MAX = 2**16 - 1
SHIFT = np.uint64(STAMP_BITS)
SIGN = np.uint64(1 << 63)


class Moment(NamedTuple):
    """Now: the store's tick, and monotonic seconds."""

    tick: int
    seconds: float = 0.0


Pages: TypeAlias = Any
"""The page table: has the columns that a policy names as attributes, indexed by page row.

stamp (tick of the last use), uses, created (tick at which the page came), sealed_second (second at
which it came), priority, page (its number in the prefix), bytes (of its slots), segment_pages
(`PrivatePages`).  Indexed by rows [n] a column gives an array, and `item(row)` one cell as a plain
number, which arrays of one would take ten times as long for.
"""


def classed(group: Any, stamp: Any) -> U64:
    """Keys that sort by group (0 to CLASS_MAX), then by stamp."""
    keys: U64 = (group.astype(np.uint64) << SHIFT) | stamp
    return keys


def sortable(numbers: npt.NDArray[np.float64]) -> U64:
    """Bits that sort like these numbers, negative ones too."""
    bits = numbers.view(np.uint64)
    turned: U64 = np.where(bits & SIGN, ~bits, bits | SIGN)
    return turned


def sortable_one(number: float) -> int:
    """The same of one number."""
    bits = int.from_bytes(struct.pack(">d", number), "big")
    return bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63


class Policy:
    """An order of pages.  Values: two with equal fields give equal keys."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    drifts: ClassVar[bool] = False

    def keys(self, pages: Pages, rows: U32) -> U64:
        """The keys of these page rows [n]; the smallest goes first."""
        raise NotImplementedError

    def key(self, pages: Pages, row: int) -> int:
        """The key of one page row: what `keys` says of it."""
        raise NotImplementedError

    def fixed(self, pages: Pages, leaves: U32, now: Moment) -> Policy:
        """What measures these leaves, and all that come later until the next scan.  One that does
        not drift measures alike for ever."""
        return self


@dataclasses.dataclass(frozen=True)
class Lru(Policy):
    """Least recently used first."""

    name: ClassVar[str] = "lru"
    columns: ClassVar[tuple[str, ...]] = ("stamp",)

    def keys(self, pages: Pages, rows: U32) -> U64:
        stamps: U64 = pages.stamp.take(rows)
        return stamps

    def key(self, pages: Pages, row: int) -> int:
        return int(pages.stamp.item(row))


@dataclasses.dataclass(frozen=True)
class Fifo(Policy):
    """Whatever came first goes first, used or not."""

    name: ClassVar[str] = "fifo"
    columns: ClassVar[tuple[str, ...]] = ("created",)

    def keys(self, pages: Pages, rows: U32) -> U64:
        ticks: U64 = pages.created.take(rows)
        return ticks

    def key(self, pages: Pages, row: int) -> int:
        return int(pages.created.item(row))


@dataclasses.dataclass(frozen=True)
class Lfu(Policy):
    """Least often used first, then least recently."""

    name: ClassVar[str] = "lfu"
    columns: ClassVar[tuple[str, ...]] = ("uses", "stamp")

    def keys(self, pages: Pages, rows: U32) -> U64:
        return classed(np.minimum(pages.uses[rows].astype(np.uint64), CLASS_MAX), pages.stamp[rows])

    def key(self, pages: Pages, row: int) -> int:
        return int(min(pages.uses.item(row), CLASS_MAX) << STAMP_BITS | pages.stamp.item(row))


@dataclasses.dataclass(frozen=True)
class Slru(Policy):
    """Pages used fewer than `protected_uses` times first, then the others; least recently used
    first among either."""

    protected_uses: int = 2

    name: ClassVar[str] = "slru"
    columns: ClassVar[tuple[str, ...]] = ("uses", "stamp")

    def keys(self, pages: Pages, rows: U32) -> U64:
        return classed(pages.uses[rows] >= self.protected_uses, pages.stamp[rows])

    def key(self, pages: Pages, row: int) -> int:
        is_protected = pages.uses.item(row) >= self.protected_uses
        return int(is_protected << STAMP_BITS | pages.stamp.item(row))


@dataclasses.dataclass(frozen=True)
class Priority(Policy):
    """Lowest priority first, then least recently used."""

    name: ClassVar[str] = "priority"
    columns: ClassVar[tuple[str, ...]] = ("priority", "stamp")

    def keys(self, pages: Pages, rows: U32) -> U64:
        raised = np.clip(pages.priority[rows], -(2**15), 2**15 - 1).astype(np.int64) + 2**15
        return classed(raised, pages.stamp[rows])

    def key(self, pages: Pages, row: int) -> int:
        raised = min(max(pages.priority.item(row), -(2**15)), 2**15 - 1) + 2**15
        return int(raised << STAMP_BITS | pages.stamp.item(row))


@dataclasses.dataclass(frozen=True)
class Ttl(Policy):
    """Pages sealed more than `seconds` ago first, then the others; least recently used first
    among either."""

    seconds: float = 3600.0
    now: float = 0.0

    name: ClassVar[str] = "ttl"
    columns: ClassVar[tuple[str, ...]] = ("sealed_second", "stamp")
    drifts: ClassVar[bool] = True

    def keys(self, pages: Pages, rows: U32) -> U64:
        fresh = pages.sealed_second[rows] + self.seconds > self.now
        return classed(fresh, pages.stamp[rows])

    def key(self, pages: Pages, row: int) -> int:
        is_fresh = pages.sealed_second.item(row) + self.seconds > self.now
        return int(is_fresh << STAMP_BITS | pages.stamp.item(row))

    def fixed(self, pages: Pages, leaves: U32, now: Moment) -> Policy:
        return dataclasses.replace(self, now=now.seconds)


SEGMENT_PAGES_MAX = 64


@dataclasses.dataclass(frozen=True)
class SegmentLength(Policy):
    """Short private ends first: `segment_pages` counts the pages that only this leaf's path has,
    up to the last branch.  What a long end would cost to compute again grows with its length; one
    that has lost pages is shorter, so that it goes whole rather than leaving many stumps.

    Lengths count by powers of two, so that recency still decides among comparable ones.
    """

    name: ClassVar[str] = "segment-length"
    columns: ClassVar[tuple[str, ...]] = ("segment_pages", "stamp")
    drifts: ClassVar[bool] = True

    def keys(self, pages: Pages, rows: U32) -> U64:
        _, log2 = np.frexp(np.float64(pages.segment_pages[rows]))
        return classed(log2, pages.stamp[rows])

    def key(self, pages: Pages, row: int) -> int:
        length = int(pages.segment_pages.item(row))
        return int(length.bit_length() << STAMP_BITS | pages.stamp.item(row))


class PrivatePages:
    """The column `segment_pages` of a table, computed when asked for: pages from each page upwards
    to the last branch, itself included, SEGMENT_PAGES_MAX at most."""

    def __init__(self, table: Pages) -> None:
        """`table` has parent (row) and children (count)."""
        self._table = table

    def __getitem__(self, rows: U32) -> U32:
        parent, children = self._table.parent, self._table.children
        lengths = np.ones(len(rows), np.uint32)
        open_, current = np.arange(len(rows)), parent.take(rows)
        for _ in range(SEGMENT_PAGES_MAX - 1):
            onward = (current != 0) & (children.take(current) == 1)
            open_, current = open_[onward], current[onward]
            if not len(open_):
                break
            lengths[open_] += np.uint32(1)
            current = parent.take(current)
        return lengths

    def item(self, row: int) -> int:
        """Of one page."""
        parent_of, children_of = self._table.parent.item, self._table.children.item
        length, current = 1, parent_of(row)
        while current and children_of(current) == 1 and length < SEGMENT_PAGES_MAX:
            length += 1
            current = parent_of(current)
        return length


@dataclasses.dataclass(frozen=True)
class FlopAware(Policy):
    """Marconi's order (arXiv 2411.19379): recency + alpha x work saved a byte, the smallest first.

    Both terms run from 0 to 1 over the leaves of a scan: recency is 1 / (ticks since the last use),
    work saved a byte is (1 + page / balance_pages) / bytes, since attention over everything before
    a page makes it as dear again at page `balance_pages`, whatever the model.  Where a page holds
    kv and anchors the second term is nearly flat in depth and tells layouts apart instead.
    `alpha` is tuned on a window of requests (tuning.py).
    """

    alpha: float = 1.0
    balance_pages: float = 1024.0
    tick: int = 0
    recency_range: tuple[float, float] = (0.0, 1.0)
    saving_range: tuple[float, float] = (0.0, 1.0)

    name: ClassVar[str] = "flop-aware"
    columns: ClassVar[tuple[str, ...]] = ("stamp", "page", "bytes")
    drifts: ClassVar[bool] = True

    def keys(self, pages: Pages, rows: U32) -> U64:
        scores: npt.NDArray[np.float64] = self._score(
            self._recency(pages, rows), self._saving(pages, rows)
        )
        return sortable(scores)

    def key(self, pages: Pages, row: int) -> int:
        since = float(self.tick + 1) - float(pages.stamp.item(row))
        work = 1.0 + pages.page.item(row) / self.balance_pages
        return sortable_one(
            self._score(1.0 / max(since, 1.0), work / max(pages.bytes.item(row), 1))
        )

    def fixed(self, pages: Pages, leaves: U32, now: Moment) -> Policy:
        there = dataclasses.replace(self, tick=now.tick)
        if not len(leaves):
            return there
        recency, saving = there._recency(pages, leaves), there._saving(pages, leaves)
        return dataclasses.replace(
            there,
            recency_range=(float(recency.min()), float(recency.max())),
            saving_range=(float(saving.min()), float(saving.max())),
        )

    def _score(self, recency: Any, saving: Any) -> Any:
        """Of one page, or of many."""
        recent = _scaled(recency, self.recency_range)
        return recent + self.alpha * _scaled(saving, self.saving_range)

    def _recency(self, pages: Pages, rows: U32) -> npt.NDArray[np.float64]:
        since = np.float64(self.tick + 1) - pages.stamp[rows].astype(np.float64)
        recency: npt.NDArray[np.float64] = 1.0 / np.maximum(since, 1.0)  # used after the scan: 1
        return recency

    def _saving(self, pages: Pages, rows: U32) -> npt.NDArray[np.float64]:
        work = 1.0 + pages.page[rows].astype(np.float64) / self.balance_pages
        saving: npt.NDArray[np.float64] = work / np.maximum(pages.bytes[rows], 1)
        return saving


def _scaled(numbers: npt.NDArray[np.float64], span: tuple[float, float]) -> Any:
    """`numbers`, so that `span` becomes 0 to 1; as they are where it is empty."""
    low, high = span
    return (numbers - low) / ((high - low) or 1.0)


POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Lru, Lfu, Slru, Priority, Fifo, FlopAware, SegmentLength, Ttl)
}
