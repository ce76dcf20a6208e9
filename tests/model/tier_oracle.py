"""What `evict_step` must do, in plain loops over a picture of the store.

The picture is taken from the store's own columns just before; the rules are those of the docs:
leaves of a tier first, least recently used first, a page's blocks share one fate there, busy ones
stay, dram waits for nvme, anchors and states are thinned.  Where engines are mirrored, what none of
them holds any more, and nvme has whole, leaves dram before all else.
"""

from __future__ import annotations

import collections
import dataclasses

from anchorstore.layout import Component
from anchorstore.server.core.evicting import THINNED
from anchorstore.server.core.state import State
from anchorstore.server.core.tier import Tier

Where = dict[int, frozenset[str]]  # block row -> names of the tiers that hold it


@dataclasses.dataclass(eq=False)
class Block:
    """One attached block."""

    row: int
    component: Component
    tiers: set[str]
    busy: set[str]
    sizes: dict[str, int]
    admitted: bool


@dataclasses.dataclass(eq=False)
class Page:
    """One entry."""

    parent: int
    stamp: int
    blocks: list[Block]


def where(state: State) -> Where:
    """Where each attached block lies."""
    rows = state.blocks.live_rows().tolist()
    return {
        row: frozenset(tier.name for tier in state.tiers if tier.holds_one(row))
        for row in rows
        if state.blocks.page[row]
    }


class Picture:
    """The store, as plain objects."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.freed: collections.Counter[tuple[str, Component]] = collections.Counter()
        index, table = state.index, state.blocks
        self.pages = {
            row: Page(int(index.parent[row]), int(index.stamp[row]), [])
            for row in index.live_rows().tolist()
        }
        admitted = state.admitted(table.live_rows()).tolist()
        for row, worth in zip(table.live_rows().tolist(), admitted, strict=True):
            if table.page[row]:
                kind = state.registry.by_kind_id[int(table.kind[row])]
                self.pages[int(table.page[row])].blocks.append(
                    Block(
                        row,
                        kind.component,
                        {tier.name for tier in state.tiers if tier.holds_one(row)},
                        {tier.name for tier in state.tiers if tier.busy_one(row)},
                        {t.name: int(t.slot_bytes_of_kind[kind.kind_id]) for t in state.tiers},
                        worth,
                    )
                )

    def here(self, page: Page, tier: str) -> list[Block]:
        """The page's blocks in the tier."""
        return [block for block in page.blocks if tier in block.tiers]

    def within(self, row: int, tier: str) -> bool:
        """Whether the page or one below it has a block in the tier."""
        return bool(self.here(self.pages[row], tier)) or self.has_followers(row, tier)

    def has_followers(self, row: int, tier: str) -> bool:
        """Whether one below it has."""
        return any(
            page.parent == row and self.within(other, tier) for other, page in self.pages.items()
        )

    def leave(self, block: Block, tier: str) -> None:
        """A block loses its place."""
        block.tiers.remove(tier)
        self.freed[tier, block.component] += block.sizes[tier]

    def evict(self, tier: str, component: Component, want: int, waits: bool, pages_max: int) -> int:
        """Leaves, least recently used first."""
        gone = 0
        while want > 0 and pages_max > 0:
            leaves = [
                (*self.turn(tier, row), row)
                for row, page in self.pages.items()
                if any(block.component is component for block in self.here(page, tier))
                and not self.has_followers(row, tier)
                and not any(tier in block.busy for block in page.blocks)
                and not (waits and any(self.is_awaited(block) for block in page.blocks))
            ]
            if not leaves:
                break
            pages_max -= 1
            page = self.pages[min(leaves)[-1]]
            for block in self.here(page, tier):
                want -= block.sizes[tier] if block.component is component else 0
                self.leave(block, tier)
                gone += 1
        return gone

    def turn(self, tier: str, row: int) -> tuple[bool, int]:
        """When a leaf's turn is; where engines are mirrored two neighbouring ticks are one."""
        page = self.pages[row]
        if tier != "dram" or not self.state.history.follows_engines:
            return True, page.stamp
        is_safe = all("nvme" in block.tiers for block in page.blocks)
        return not (self.state.index.let_go[row] and is_safe), page.stamp // 2

    @staticmethod
    def is_awaited(block: Block) -> bool:
        """Whether it is to be written to nvme before it leaves dram."""
        return block.admitted and "nvme" not in block.tiers

    def thin(self, tier: str, component: Component, want: int, waits: bool, blocks_max: int) -> int:
        """Blocks of inner pages, least recently used first."""
        gone = 0
        found = [
            (page.stamp, block.row, block)
            for row, page in self.pages.items()
            for block in self.here(page, tier)
            if block.component is component
            and tier not in block.busy
            and not (waits and self.is_awaited(block))
            and self.has_followers(row, tier)
        ]
        for _, _, block in sorted(found, key=lambda entry: entry[:2]):
            if want > 0 and gone < blocks_max:
                want -= block.sizes[tier]
                self.leave(block, tier)
                gone += 1
        return gone

    def step(self, tier: Tier, limit: int) -> None:
        """One tier's part of evict_step."""
        waits, draining, gone = self.state.waits_for_nvme(tier), set(tier.draining), 0
        for component in Component:
            capacity = tier.pool.capacity_bytes(component)
            used = tier.pool.used_bytes(component) - self.freed[tier.name, component]
            if used > tier.high_watermark * capacity:
                draining.add(component)
            over = used - int(tier.low_watermark * capacity)
            if component not in draining or gone >= limit or over <= 0:
                continue
            most = limit - gone
            here = self.evict(tier.name, component, over, waits, most)
            if not here and component in THINNED:
                here = self.thin(tier.name, component, over, waits, most)
            gone += here

    def where(self) -> Where:
        """Where each block lies now; those that lie nowhere are gone."""
        return {
            block.row: frozenset(block.tiers)
            for page in self.pages.values()
            for block in page.blocks
            if block.tiers
        }
