"""Lookups of a path of 512 pages beside the floor: hit, miss, holes, asked again, scattered."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from anchorstore.client import NeedAll, NeedWindow
from anchorstore.keys import DIGEST_BYTES
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from benchmarks import harness
from benchmarks.attached import connect, random_hashes
from benchmarks.floor import Floor
from benchmarks.harness import Effort, Result

PATH_PAGES = 512
PATHS = 24
WINDOW = NeedWindow(1, ratio=0.05, max_rows=512, rows_per_page=4)
SMALL: tuple[Layout, ...] = (
    KvLayout(1, 1, 16, "bfloat16", 0, 1),
    AnchorLayout(1, 4, 64, "bfloat16"),
)


class Paths:
    """Stored paths of 512 pages, kv and anchors, and lookups of them in turn."""

    def __init__(self, address: str, count: int = PATHS) -> None:
        """`count` paths of each kind, some 4 MiB each."""
        self.client = connect(address, SMALL)
        self.hits = [random_hashes(PATH_PAGES) for _ in range(count)]
        half = DIGEST_BYTES * (PATH_PAGES // 2)
        self.halves = [hit[:half] + random_hashes(PATH_PAGES // 2) for hit in self.hits]
        self.misses = [random_hashes(PATH_PAGES) for _ in range(count)]
        self.holes = [random_hashes(PATH_PAGES) for _ in range(count)]
        for hit, hole in zip(self.hits, self.holes, strict=True):
            self._put(hit, range(PATH_PAGES))
            self._put(hole, [page for page in range(PATH_PAGES) if page % 8 != 7])
        self.scattered = self._put_scattered()
        self._turn = 0
        self._asked = self.hits[0]

    def _put(self, hashes: bytes, pages: Sequence[int]) -> None:
        root = self.client.root_digest
        assert root is not None
        with self.client.reserve(root, 0, hashes, layouts=[0, 1]) as reservation:
            wanted = set(pages)
            for page, layout in reservation.wanted():
                if page in wanted or layout == 1:
                    reservation.buffer(page, layout)[:] = bytes(self.client.block_bytes(layout))
            outcome = reservation.seal()
        assert not outcome.declined, outcome

    def _put_scattered(self) -> list[bytes]:
        """Two paths stored page by page in turn, as two slow decodes would: in the daemon's index
        no two pages of either lie side by side."""
        root = self.client.root_digest
        assert root is not None
        paths = [random_hashes(PATH_PAGES) for _ in range(2)]
        for page in range(PATH_PAGES):
            for path in paths:
                start = DIGEST_BYTES * page
                parent = path[start - DIGEST_BYTES : start] if page else root
                blocks = {n: [bytes(self.client.block_bytes(n))] for n in (0, 1)}
                hashes = path[start : start + DIGEST_BYTES]
                assert self.client.put(parent, page, hashes, blocks).sealed == 2
        return paths

    def ask(self, paths: Sequence[bytes], pages_of_its_own: int) -> None:
        """The next question: one of `paths` and pages that nobody has, as a new request brings
        them.  The daemon remembers its last answers, so a question comes twice only on purpose."""
        self._turn += 1
        self._asked = paths[self._turn % len(paths)] + random_hashes(pages_of_its_own)

    def lookup(self, pages: int) -> None:
        """The question's answer, which must be so many pages."""
        with self.client.lookup(self._asked, [NeedAll(0, 0), WINDOW]) as window:
            assert window.resume_pages == pages, (window.resume_pages, window.miss)

    def floor_lookup(self, base: Floor, reply_bytes: int) -> None:
        """The floor's answer to the same question."""
        base.lookup(self._asked, reply_bytes)

    def reply_bytes(self, hashes: bytes) -> int:
        """Bytes of the daemon's reply: 24 a block and the message around them."""
        with self.client.lookup(hashes, [NeedAll(0, 0), WINDOW]) as window:
            blocks = len(window.blocks(0)) + len(window.blocks(1)) if window.hit else 0
        return 64 + 24 * blocks


def bench_lookups(address: str, base: Floor, effort: Effort) -> list[Result]:
    """Look up and lease a path of 512 pages.

    The floor of each case walks a dict over the same hashes, as far as they match, and answers as
    many bytes.
    """
    known = Paths(address)
    cases = {
        "lookup_hit_at_end": (known.hits, PATH_PAGES, 1),
        "lookup_hit_at_end_asked_again": (known.hits[:1], PATH_PAGES, 0),
        "lookup_hit_at_end_scattered": (known.scattered, PATH_PAGES, 1),
        "lookup_hit_in_middle": (known.halves, PATH_PAGES // 2, 1),
        "lookup_miss": (known.misses, 0, 1),
        "lookup_holes": (known.holes, 7, 1),
    }
    results = []
    for case, (paths, pages, own) in cases.items():
        for path in paths:
            base.keep(path[: DIGEST_BYTES * pages])
        reply = known.reply_bytes(paths[0])
        known.ask(paths, own)
        operations: dict[str, harness.Operation] = {
            "floor": functools.partial(known.floor_lookup, base, reply),
            case: functools.partial(known.lookup, pages),
        }
        prepare = {case: functools.partial(known.ask, paths, own)}
        taken = harness.interleave(operations, effort.rounds, effort.per_round, prepare)
        floor_line = harness.report("floor", taken, batch=PATH_PAGES)
        results.append(dataclasses.replace(floor_line, case=f"floor_of_{case}"))
        results.append(harness.report(case, taken, batch=PATH_PAGES))
    known.client.close()
    return results
