"""The store once more, as plain dicts and loops: what the core must agree with, step by step.

No columns, no vectors, no heaps: pages are objects in a dict, victims the minimum of a list, a
boundary the first of a descending loop that satisfies the sentence in the docs.  It does not
choose slots: it learns each block's place from begin_seal and holds the store to it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from anchorstore.layout import Component
from anchorstore.server.core.types import Miss, Need, NeedAll, NeedLast, NeedWindow, StoreConfig
from anchorstore.transport.segment import SegmentShape

Key = tuple[bytes, bytes]  # root digest, path hash
Hashes = Sequence[bytes]
SlotClass = tuple[str, Component, int]  # domain, component, slot bytes
THINNED = (Component.ANCHOR, Component.STATE)


@dataclasses.dataclass(eq=False)
class Kind:
    """One session layout within a domain."""

    domain: str
    component: Component
    slot_bytes: int
    name: str


@dataclasses.dataclass(eq=False)
class Block:
    """A sealed block, detached once `page` is None."""

    kind: Kind
    page: Key | None
    segment: int
    place: tuple[int, int, int]  # segment id, slot, generation
    checksum: int
    lineage: int
    leases: int = 0


@dataclasses.dataclass(eq=False)
class Page:
    """One entry of the trie."""

    key: Key
    index: int
    parent: Key | None
    stamp: int
    blocks: dict[Kind, Block]


@dataclasses.dataclass(eq=False)
class Segment:
    """A formatted region."""

    index: int
    slot_class: SlotClass
    slots: int
    used: int = 0
    writing: int = 0
    holders: set[bytes] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(eq=False)
class Space:
    """A namespace."""

    root: bytes
    domain: str
    quota: int
    max_lineage: int
    page_tokens: int
    enabled: bool = True
    used: int = 0
    reserved: int = 0


Asked = Sequence[tuple[Need, Kind]]


class NaivePool:
    """Segments, and the ladder by which a class gets slots."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.unused = list(range(config.segments))
        self.segments: dict[int, Segment] = {}
        self.next_id = 1
        self.patience: dict[SlotClass, int] = {}

    def allowed(self, component: Component) -> int:
        share = self.config.component_share.get(component, 0)
        return max(1, int(share * self.config.segments)) if share else 0

    def held(self, component: Component) -> list[Segment]:
        return [s for s in self.segments.values() if s.slot_class[1] == component]

    def of_class(self, slot_class: SlotClass) -> list[int]:
        return [i for i, s in self.segments.items() if s.slot_class == slot_class]

    def slots(self, slot_bytes: int) -> int:
        return SegmentShape(self.config.segment_bytes, slot_bytes).slots

    def capacity(self, component: Component) -> int:
        held = self.held(component)
        more = min(self.allowed(component) - len(held), len(self.unused))
        own = sum(s.slots * s.slot_class[2] for s in held)
        return own + max(0, more) * self.config.segment_bytes

    def take(self, slot_class: SlotClass, count: int) -> list[int]:
        """Segment ids, one a slot."""
        taken: list[int] = []
        for segment_id in self.of_class(slot_class):
            segment = self.segments[segment_id]
            here = min(count - len(taken), segment.slots - segment.used)
            segment.used += here
            segment.writing += here
            taken += [segment_id] * here
        return taken

    def can_pass(self, segment: Segment, slot_class: SlotClass) -> bool:
        return not segment.writing and (
            segment.slot_class[0] == slot_class[0] or not segment.holders
        )

    def format(self, index: int, slot_class: SlotClass, holders: set[bytes]) -> None:
        self.segments[self.next_id] = Segment(
            index, slot_class, self.slots(slot_class[2]), 0, 0, holders
        )
        self.next_id += 1

    def pass_on(self, segment_id: int, slot_class: SlotClass) -> None:
        old = self.segments.pop(segment_id)
        if not self.of_class(old.slot_class):
            self.patience.pop(old.slot_class, None)
        self.format(old.index, slot_class, old.holders)

    def extend(self, slot_class: SlotClass) -> bool:
        component = slot_class[1]
        if self.unused and len(self.held(component)) < self.allowed(component):
            self.format(self.unused.pop(0), slot_class, set())
            return True
        for segment_id, segment in self.segments.items():
            other = segment.slot_class[1] == component and segment.slot_class != slot_class
            if other and segment.used == 0 and self.can_pass(segment, slot_class):
                self.pass_on(segment_id, slot_class)
                return True
        return False


class NaiveStore:
    """Pages, blocks, victims and boundaries.  Sessions' bookkeeping is the walk's."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.pool = NaivePool(config)
        self.pages: dict[Key, Page] = {}
        self.spaces: dict[bytes, Space] = {}
        self.detached: dict[Block, Space] = {}
        self.draining: set[Component] = set()
        self.tick = 1

    # ---- pages ----

    def children(self, key: Key) -> list[Page]:
        return [p for p in self.pages.values() if p.parent == key]

    def touch(self, keys: Sequence[Key]) -> int:
        first = self.tick + 1
        for position, key in enumerate(keys):
            if key in self.pages:
                self.pages[key].stamp = first + position
        self.tick += len(keys)
        return first

    def heal(self, keys: Sequence[Key]) -> None:
        for above, below in itertools.pairwise(keys):
            if above in self.pages and below in self.pages:
                page = self.pages[below]
                if page.parent is None and page.index == self.pages[above].index + 1:
                    page.parent = above

    def drop_block(self, block: Block) -> None:
        assert block.page is not None
        space = self.spaces[block.page[0]]
        del self.pages[block.page].blocks[block.kind]
        block.page = None
        if block.leases:
            self.detached[block] = space
        else:
            self.free(block, space)

    def free(self, block: Block, space: Space) -> None:
        self.pool.segments[block.segment].used -= 1
        space.used -= block.kind.slot_bytes

    def drop_if_bare(self, key: Key) -> None:
        page = self.pages.get(key)
        if page is not None and not page.blocks and not self.children(key):
            del self.pages[key]
            if page.parent is not None:
                self.drop_if_bare(page.parent)

    def drop_pages(self, keys: Sequence[Key]) -> tuple[int, int]:
        gone = kept = 0
        for key in keys:
            for block in list(self.pages[key].blocks.values()):
                gone += 1
                kept += block.leases > 0
                self.drop_block(block)
        for key in keys:
            self.drop_if_bare(key)
        return gone, kept

    # ---- room ----

    def evict(
        self, inside: Callable[[Block], bool], want: int, before: int, pages_max: int = 2**32
    ) -> int:
        gone = 0
        while want > 0 and pages_max > 0:
            leaves = [
                page
                for page in self.pages.values()
                if page.stamp < before
                and not self.children(page.key)
                and not any(block.leases for block in page.blocks.values())
                and any(inside(block) for block in page.blocks.values())
            ]
            if not leaves:
                break
            victim = min(leaves, key=lambda page: page.stamp)
            want -= sum(b.kind.slot_bytes for b in victim.blocks.values() if inside(b))
            gone += self.drop_pages([victim.key])[0]
            pages_max -= 1
        return gone

    def thin(
        self, inside: Callable[[Block], bool], want: int, before: int, blocks_max: int = 2**32
    ) -> int:
        gone = 0
        for page in sorted(self.pages.values(), key=lambda page: page.stamp):
            for block in list(page.blocks.values()):
                inner = page.stamp < before and bool(self.children(page.key))
                is_wanted = want > 0 and gone < blocks_max
                if is_wanted and inner and inside(block) and not block.leases:
                    self.drop_block(block)
                    want -= block.kind.slot_bytes
                    gone += 1
        return gone

    def take_slots(self, kind: Kind, count: int, before: int) -> list[int]:
        slot_class = (kind.domain, kind.component, kind.slot_bytes)

        def inside(block: Block) -> bool:
            return self.pool.segments[block.segment].slot_class == slot_class

        taken = self.pool.take(slot_class, count)
        while len(taken) < count:
            want = (count - len(taken)) * kind.slot_bytes
            if not self.pool.extend(slot_class):
                gone = self.take_colder(slot_class, count - len(taken), inside, before)
                gone = gone or self.evict(inside, want, before)
                if not gone and kind.component in THINNED:
                    gone = self.thin(inside, want, before)
                own = self.pool.of_class(slot_class)
                if not gone and (own or not self.empty_oldest(slot_class, before)):
                    break
            taken += self.pool.take(slot_class, count - len(taken))
        return taken

    def take_colder(
        self, slot_class: SlotClass, missing: int, inside: Callable[[Block], bool], before: int
    ) -> int:
        """1 where a segment of another class, colder than the next victim, changed hands."""
        if not self.pool.of_class(slot_class):
            return 0
        patience = self.pool.patience.get(slot_class, 0)
        if patience > 0:
            self.pool.patience[slot_class] = patience - missing
            return 0
        if self.take_coldest(slot_class, inside, before):
            return 1
        self.pool.patience[slot_class] = self.pool.slots(slot_class[2]) - missing
        return 0

    def take_coldest(
        self, slot_class: SlotClass, inside: Callable[[Block], bool], before: int
    ) -> int:
        leaves = [
            page.stamp
            for page in self.pages.values()
            if not self.children(page.key) and any(inside(b) for b in page.blocks.values())
        ]
        last_used = {
            segment_id: max((page.stamp for page in self.pages_in(segment_id)), default=0)
            for segment_id, segment in self.pool.segments.items()
            if segment.slot_class[1] == slot_class[1] and segment.slot_class != slot_class
        }
        for segment_id in sorted(last_used, key=lambda i: last_used[i]):
            if not leaves or last_used[segment_id] >= min([*leaves, before]):
                return 0
            if self.pass_emptied(segment_id, slot_class, before):
                return 1
        return 0

    def empty_oldest(self, slot_class: SlotClass, before: int) -> bool:
        component = slot_class[1]
        if not self.pool.allowed(component):
            return False
        if not self.pool.held(component):
            component = max(Component, key=lambda c: len(self.pool.held(c)))
        return any(
            segment.slot_class[1] == component and self.pass_emptied(segment_id, slot_class, before)
            for segment_id, segment in list(self.pool.segments.items())
        )

    def pages_in(self, segment_id: int) -> list[Page]:
        return [
            page
            for page in self.pages.values()
            if any(block.segment == segment_id for block in page.blocks.values())
        ]

    def pass_emptied(self, segment_id: int, slot_class: SlotClass, before: int) -> bool:
        """Empties the segment and gives it to the class, unless something in it is used."""
        if not self.pool.can_pass(self.pool.segments[segment_id], slot_class):
            return False
        pages = self.pages_in(segment_id)
        busy = any(block.leases for page in pages for block in page.blocks.values())
        busy |= any(block.segment == segment_id for block in self.detached)
        if busy or any(page.stamp >= before for page in pages):
            return False
        self.drop_pages([page.key for page in pages])
        self.pool.pass_on(segment_id, slot_class)
        return True

    def evict_step(self, limit: int) -> int:
        gone = 0
        for component in Component:
            capacity = self.pool.capacity(component)
            used = sum(s.used * s.slot_class[2] for s in self.pool.held(component))
            if used > self.config.high_watermark * capacity:
                self.draining.add(component)
            over = used - int(self.config.low_watermark * capacity)
            if component not in self.draining or gone >= limit:
                continue

            def inside(block: Block, component: Component = component) -> bool:
                return block.kind.component == component

            most = limit - gone
            here = self.evict(inside, over, self.tick + 1, most)
            if not here and component in THINNED:
                here = self.thin(inside, over, self.tick + 1, most)
            gone += here
            if not here or over <= 0:
                self.draining.discard(component)
        return gone

    # ---- boundaries ----

    def block_at(self, space: Space, hashes: Hashes, page: int, kind: Kind) -> Block | None:
        entry = self.pages.get((space.root, hashes[page]))
        return entry.blocks.get(kind) if entry is not None and entry.index == page else None

    def reads(
        self,
        space: Space,
        hashes: Hashes,
        need: Need,
        kind: Kind,
        b: int,
        r: int,
        deep: int,
    ) -> range | None:
        """Pages that `need` reads at boundary b with resume point r; None where b is not valid."""

        def there(page: int) -> bool:
            block = self.block_at(space, hashes, page, kind)
            return block is not None and (deep >= 255 or block.lineage <= deep)

        if isinstance(need, NeedAll):
            whole = all(there(page) for page in range(need.first_page, b))
            return range(min(need.first_page, r), r) if whole else None
        if isinstance(need, NeedLast):
            return range(r - 1, r) if there(r - 1) else None
        assert isinstance(need, NeedWindow)
        rows = math.ceil(need.ratio * (r * space.page_tokens))
        rows = min(rows, need.max_rows, r * need.rows_per_page)
        run = 0
        while run < -(-rows // need.rows_per_page) and there(r - 1 - run):
            run += 1
        fewest = min(rows, need.min_rows) if need.min_rows else rows
        return range(r - run, r) if run * need.rows_per_page >= fewest else None

    def boundary(
        self,
        space: Space,
        hashes: Hashes,
        needs: Asked,
        deep: int,
        margin: int,
    ) -> tuple[int, list[range]]:
        for b in range(len(hashes), margin, -1):
            found = [self.reads(space, hashes, n, k, b, b - margin, deep) for n, k in needs]
            if None not in found:
                return b, [pages for pages in found if pages is not None]
        return 0, []

    def why(
        self,
        space: Space,
        hashes: Hashes,
        needs: Asked,
        deep: int,
        margin: int,
    ) -> Miss:
        pages = range(len(hashes))
        if not any(self.block_at(space, hashes, p, k) for p in pages for _, k in needs):
            return Miss.NOT_STORED
        if self.boundary(space, hashes, needs, 255, margin)[0]:
            return Miss.LINEAGE
        if self.boundary(space, hashes, needs, deep, 0)[0]:
            return Miss.MARGIN
        return Miss.INCOMPLETE
