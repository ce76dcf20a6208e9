"""Which of vLLM's own blocks hold pages of ours: told to the daemon, so that its memory keeps what
engines find hot.  Pure, but for the publishers.

::

    a request's full blocks --noted--> block id: vLLM's hash of it, our path hashes
                                            |
    some each step, in turn  --swept-->  the same hash still?  no: vLLM has given the block away

vLLM's KV events would say the same, were they on, and cost every store a copy of its token ids;
a look at the hash that the pool keeps beside each block needs neither.  They never say that a block
was used, nor by whom it is held: that the scheduler knows.

A running request pins the last page of what it resumed from: leaves go first, so that one keeps all
that leads to it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from anchorstore.keys import DIGEST_BYTES
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.tally import Tally

SWEPT_A_STEP = 128


class Publisher(Protocol):
    """Where events go (anchorstore.client.EventPublisher): nothing here waits."""

    @property
    def epoch(self) -> object: ...

    def stored(self, path_hashes: bytes) -> None: ...

    def removed(self, path_hashes: bytes) -> None: ...

    def touched(self, path_hashes: bytes) -> None: ...

    def pinned(self, path_hashes: bytes) -> None: ...

    def unpinned(self, path_hashes: bytes) -> None: ...


@dataclasses.dataclass(slots=True)
class Held:
    """A block that vLLM's cache holds: `block_hash` as its pool shows it, `epoch` of the publisher
    that was told of it, None where none was there."""

    space: SpaceKey
    block_hash: Any
    pages: bytes
    epoch: object | None = None

    @property
    def key(self) -> tuple[SpaceKey, bytes]:
        """Equal for copies of the same block."""
        return self.space, self.pages[-DIGEST_BYTES:]


class Resident:
    """The table of such blocks, and the pins of running requests."""

    def __init__(
        self,
        hash_of: Callable[[int], Any],
        publisher_of: Callable[[SpaceKey], Publisher | None],
        pages_per_block: int,
        tally: Tally,
    ) -> None:
        """Knows nothing yet.

        Args:
            hash_of: what vLLM's pool says a block (by id) is cached under; None for nothing.
            publisher_of: where a space's events go; None where it has no session now.
        """
        self._hash_of, self._publisher_of = hash_of, publisher_of
        self._pages_per_block, self._tally = pages_per_block, tally
        self._held: dict[int, Held] = {}
        self._turn: collections.deque[int] = collections.deque()
        self._copies: collections.Counter[tuple[SpaceKey, bytes]] = collections.Counter()
        self._pins: dict[str, tuple[SpaceKey, bytes]] = {}
        self._pinners: collections.Counter[tuple[SpaceKey, bytes]] = collections.Counter()
        self._told: dict[tuple[SpaceKey, bytes], object | None] = {}  # pin -> epoch, as in Held

    # ---- blocks ----

    def note(
        self, space: SpaceKey, hashes: bytes, block_ids: Sequence[int], blocks: range, reused: int
    ) -> None:
        """A request's blocks with these numbers are full; the first `reused` of the request were
        there before it.  `hashes` are those of all its pages up to there."""
        publisher, size = self._publisher_of(space), self._pages_per_block * DIGEST_BYTES
        for number in blocks:
            block_id, pages = block_ids[number], hashes[number * size : (number + 1) * size]
            block_hash = self._hash_of(block_id)
            if block_hash is None or len(pages) < size:
                continue
            old = self._held.get(block_id)
            if old is not None and old.block_hash == block_hash and old.space == space:
                if number < reused:
                    self._tell(publisher, old, is_used=True)
                continue
            if old is not None:
                self._gone(old)
            else:
                self._turn.append(block_id)
            held = self._held[block_id] = Held(space, block_hash, pages)
            self._copies[held.key] += 1
            self._tell(publisher, held, is_used=False)

    def _tell(self, publisher: Publisher | None, held: Held, *, is_used: bool) -> None:
        """That vLLM holds a block; that it was used is told once."""
        if publisher is None:
            return
        held.epoch = publisher.epoch
        (publisher.touched if is_used else publisher.stored)(held.pages)
        self._tally.add("events", self._pages_per_block, "touched" if is_used else "stored")

    def _gone(self, held: Held) -> None:
        """A block is vLLM's no more; its pages are where no copy of it is."""
        self._copies[held.key] -= 1
        if self._copies[held.key]:
            return
        del self._copies[held.key]
        publisher = self._publisher_of(held.space)
        if publisher is not None:
            publisher.removed(held.pages)
            self._tally.add("events", self._pages_per_block, "removed")

    def sweep(self) -> None:
        """Looks at some blocks in turn; what the daemon has lost it is told again.

        Part of every step of the engine: neighbours are mostly of one space, asked for once.
        """
        count = min(SWEPT_A_STEP, len(self._turn))
        space: SpaceKey | None = None
        publisher = epoch = None
        for block_id in [self._turn.popleft() for _ in range(count)]:
            held = self._held[block_id]
            if self._hash_of(block_id) != held.block_hash:
                del self._held[block_id]
                self._gone(held)
                continue
            self._turn.append(block_id)
            if held.space is not space:
                space = held.space
                publisher = self._publisher_of(space)
                epoch = None if publisher is None else publisher.epoch
            if publisher is not None and held.epoch is not epoch:
                self._tell(publisher, held, is_used=False)
        self._tell_pins()

    # ---- pins ----

    def pin(self, request_id: str, space: SpaceKey, path_hash: bytes) -> None:
        """A request runs behind this page."""
        self.unpin(request_id)
        pin = self._pins[request_id] = space, path_hash
        self._pinners[pin] += 1
        self._told.setdefault(pin, None)
        self._tell_pins()

    def unpin(self, request_id: str) -> None:
        """It does not any more."""
        pin = self._pins.pop(request_id, None)
        if pin is None:
            return
        self._pinners[pin] -= 1
        if self._pinners[pin]:
            return
        del self._pinners[pin]
        publisher = self._publisher_of(pin[0])
        if self._told.pop(pin) is not None and publisher is not None:
            publisher.unpinned(pin[1])
            self._tally.add("events", 1, "unpinned")

    def _tell_pins(self) -> None:
        """Pins what the daemon does not know of, or no more."""
        for (space, path_hash), epoch in self._told.items():
            publisher = self._publisher_of(space)
            if publisher is not None and epoch is not publisher.epoch:
                self._told[space, path_hash] = publisher.epoch
                publisher.pinned(path_hash)
                self._tally.add("events", 1, "pinned")
