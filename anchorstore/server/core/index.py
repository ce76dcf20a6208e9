"""The index of pages: (namespace, path hash) -> page row.  Columns and open addressing.

::

    mix(namespace, hash) --> 64 bits:  | bucket number ... | tag (16) | ... |
                                               |
    bucket   tags  [ t0 | t1 | t2 | 0 | ...  ] 16 x u16     overflow u32: keys that went past
             rows  [ r0 | r1 | r2 | 0 | ...  ] 16 x u32     because the bucket was full

Many keys are probed at once: gather 512 buckets of tags, compare, verify the full 32 bytes and
the namespace of what matches, go on to the next bucket only where one overflowed (the table is at
most half full, so some 1 key in 1,000).  Deleting counts `overflow` down again: no tombstones.

Most need not be probed.  The pages of one seal get rows one after another, as far as free rows lie
so, and a path is a few such runs: finding its first page is a guess about the next 511, which one
comparison of memory proves.  A wrong guess costs a probe, never a wrong answer.

A path hash ought to be a SHA-256, but a client may present any 32 bytes, so the mix is keyed with
a secret of this boot: multilinear hashing over 32-bit words (Lemire and Kaser, "Strongly
universal string hashing is fast", 2013), all eight words of the hash and the namespace in it.
Whoever does not know the secret cannot build a chain of collisions.

A page's parent is the page whose path is one page shorter.  Links are made, and heal after an
eviction, wherever a path is seen in order, and only from index i - 1 to i in one namespace: no
input can close a circle.
"""

from __future__ import annotations

import hashlib
import operator
import struct

import numpy as np

from anchorstore.server.core.columns import Columns, Table
from anchorstore.server.core.types import U8, U16, U32, U64, Bools, Positions

count_nonzero = np.count_nonzero  # on bools three times as fast as any() and all()

WAYS = 16
WAY_BITS = 4
FIRST_BITS = 6
FILED_AT_ONCE = 16_384  # bounds the memory that a rebuild takes on the side
RUN_PAGES_MIN = 8  # below that a run is not worth the lookup of its first key
MASK_64 = 2**64 - 1
_WORDS = struct.Struct("=8I")  # of one hash
SAME_WORDS = np.uint32(0x01010101)  # four bools that are all true, seen as one integer


class PageIndex(Table):
    """Pages as rows.  Row 0 is no page.

    Columns: hashes u64[4], parent (row), children (count, in dram: tier.py), stamp (tick of the
    last use), namespace (id), page (index in its prefix), first_block (row in the block table);
    where there is an nvme tier, cold_children (count, in it).
    """

    COLUMNS = (
        ("hashes", np.uint64, 4),
        ("stamp", np.uint64, 1),
        ("parent", np.uint32, 1),
        ("children", np.uint32, 1),
        ("namespace", np.uint32, 1),
        ("page", np.uint32, 1),
        ("first_block", np.uint32, 1),
    )
    hashes: U64
    stamp: U64
    parent: U32
    children: U32
    namespace: U32
    page: U32
    first_block: U32
    cold_children: U32
    holders: U64  # this and the next only where engines are mirrored: page_columns.py
    let_go: U8

    COLD_COLUMNS: Columns = (("cold_children", np.uint32, 1),)

    def __init__(self, secret: bytes, more: Columns = ()) -> None:
        super().__init__(more)
        stream = b"".join(hashlib.sha512(secret + bytes([i])).digest() for i in range(2))
        keys = np.frombuffer(stream, np.uint64)
        self._word_keys = keys[:8].copy()
        self._word_factors = self._word_keys.tolist()
        self._namespace_key, self._offset_key = int(keys[8]), int(keys[9])
        self.version = 0  # changes whenever a page comes or goes
        self._numbers = np.arange(1024, dtype=np.uint32)
        self._allocate_buckets(FIRST_BITS)

    def _allocate_buckets(self, bits: int) -> None:
        self._bits = bits
        self._bucket_shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        self._tags = np.zeros((1 << bits, WAYS), np.uint16)
        self._slots = np.zeros((1 << bits, WAYS), np.uint32)
        self._overflow = np.zeros(1 << bits, np.uint32)
        self._overflows = 0  # the sum of all

    @property
    def nbytes(self) -> int:
        """Bytes in use, buckets included."""
        return super().nbytes + self._tags.nbytes + self._slots.nbytes + self._overflow.nbytes

    # ---- addressing ----

    def mixed(self, namespaces: int | U64, hashes: U64) -> U64:
        """64 bits of each key [n] that only who knows the secret can foresee."""
        mixed: U64 = hashes.view(np.uint32).astype(np.uint64) @ self._word_keys
        if isinstance(namespaces, int):
            start = (namespaces * self._namespace_key + self._offset_key) & MASK_64
            mixed += np.uint64(start)
        else:
            mixed += namespaces * np.uint64(self._namespace_key) + np.uint64(self._offset_key)
        return mixed

    def _place(self, namespaces: int | U64, hashes: U64) -> tuple[Positions, U16]:
        """Home bucket and tag of each key [n].  A tag may be 0, like an empty place: what a tag
        finds is verified anyway."""
        mixed = self.mixed(namespaces, hashes)
        tag = mixed.view(np.uint16)[2::4]  # bits 32 to 47
        return (mixed >> self._bucket_shift).view(np.intp), tag

    def find(self, namespace: int, hashes: U64) -> U32:
        """Row of each path hash [n, 4] in `namespace`; 0 where it is not there.

        Run by run: one key is looked up, then the rows behind its own are compared with the keys
        behind it.  Where runs are short, buckets are probed for all the rest at once.
        """
        found = np.zeros(len(hashes), np.uint32)
        start = 0
        while start < len(hashes):
            row = self._row_of(namespace, hashes[start])
            if not row:
                start += 1
                break
            length = self._run(namespace, row, hashes[start:])
            found[start : start + length] = np.arange(row, row + length, dtype=np.uint32)
            start += length
            if length < RUN_PAGES_MIN:
                break
        if start < len(hashes):
            found[start:] = self.probe(namespace, hashes[start:])
        return found

    def _row_of(self, namespace: int, key: U64) -> int:
        """Row of one path hash [4]; 0 where it is not there."""
        words = _WORDS.unpack(key)
        mixed = sum(map(operator.mul, words, self._word_factors), self._offset_key)
        mixed += namespace * self._namespace_key
        bucket = (mixed & MASK_64) >> (64 - self._bits)
        tag = mixed >> 32 & 0xFFFF
        for _ in range(self._mask + 1):
            tags = self._tags[bucket].tolist()
            if tag in tags:
                rows = self._slots[bucket].tolist()
                for row, other in zip(rows, tags, strict=True):
                    mine = other == tag and self.namespace[row] == namespace
                    if mine and self.hash_of(row) == key.tobytes():
                        return int(row)
            if not self._overflow[bucket]:
                return 0
            bucket = (bucket + 1) & self._mask
        raise AssertionError("index: a probe went round all buckets")

    def _run(self, namespace: int, row: int, hashes: U64) -> int:
        """How many of `hashes`, from the first on, lie in the rows from `row` on, in order."""
        stop = row + len(hashes)
        differs = (self.hashes[row:stop] != hashes[: len(self.hashes) - row]).ravel()
        first = int(differs.argmax())
        length = first // 4 if differs[first] else len(differs) // 4
        foreign = self.namespace[row : row + length] != namespace
        first = int(foreign.argmax())
        return first if foreign[first] else length

    def probe(self, namespace: int, hashes: U64) -> U32:
        """What `find` returns, by way of the buckets alone."""
        bucket, tag = self._place(namespace, hashes)
        matches = np.flatnonzero(self._tags.take(bucket, axis=0) == tag[:, None])
        found = np.zeros(len(hashes), np.uint32)
        if not len(matches) and not self._overflows:
            return found
        query: Positions | None = None  # the keys still open; None: all, in order
        for _ in range(self._mask + 1):
            which = matches >> WAY_BITS
            rows = self._slots.take((bucket.take(which) << WAY_BITS) + (matches & (WAYS - 1)))
            asked = which if query is None else query.take(which)
            same = self.hashes.take(rows, axis=0) == hashes.take(asked, axis=0)
            right = same.view(np.uint32).ravel() == SAME_WORDS
            right &= self.namespace.take(rows) == namespace
            if count_nonzero(right) < len(right):
                asked, rows = asked[right], rows[right]
            found[asked] = rows
            if not self._overflows:
                return found
            onward = self._overflow.take(bucket) != 0
            onward &= (found if query is None else found.take(query)) == 0
            if not count_nonzero(onward):
                return found
            rest = np.flatnonzero(onward)
            query = rest if query is None else query.take(rest)
            bucket, tag = (bucket.take(rest) + 1) & self._mask, tag.take(rest)
            matches = np.flatnonzero(self._tags.take(bucket, axis=0) == tag[:, None])
        raise AssertionError("index: a probe went round all buckets")

    def insert(self, namespace: int, hashes: U64, pages: U32, stamp: int) -> U32:
        """New rows for path hashes that are not there; each named once.  Parents link later."""
        self.version += 1
        rows = self.take_rows(len(hashes))
        self.hashes[rows] = hashes
        self.namespace[rows] = namespace
        self.page[rows] = pages
        self.stamp[rows] = stamp
        self.parent[rows] = 0
        self.first_block[rows] = 0
        if 2 * len(self) > WAYS << self._bits:
            self._rebuild(len(self))
        else:
            self._file(rows)
        return rows

    def expect(self, rows: int) -> None:
        """Room for `rows` pages in all, buckets included."""
        super().expect(rows)
        if 2 * rows > WAYS << self._bits:
            self._rebuild(rows)

    def _rebuild(self, pages: int) -> None:
        """Files every live row again in buckets enough for `pages`."""
        bits = self._bits
        while 2 * pages > WAYS << bits:
            bits += 1
        self._allocate_buckets(bits)
        rows = self.live_rows()
        for start in range(0, len(rows), FILED_AT_ONCE):
            self._file(rows[start : start + FILED_AT_ONCE])

    def _keys_of(self, rows: U32) -> tuple[Positions, U16]:
        return self._place(self.namespace.take(rows).astype(np.uint64), self.hashes[rows])

    def _file(self, rows: U32) -> None:
        """Puts rows into the first bucket, from home on, that has room."""
        bucket, tag = self._keys_of(rows)
        while len(rows):
            order = np.argsort(bucket, kind="stable")
            bucket, tag, rows = bucket[order], tag[order], rows[order]
            starts = np.flatnonzero(np.r_[True, bucket[1:] != bucket[:-1]])
            rank = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
            taken = np.count_nonzero(self._slots.take(bucket, axis=0), axis=1)
            fits = rank + taken < WAYS
            way = self._nth_empty(bucket[fits], rank[fits])
            self._slots[bucket[fits], way] = rows[fits]
            self._tags[bucket[fits], way] = tag[fits]
            full = ~fits
            np.add.at(self._overflow, bucket[full], 1)
            bucket, tag, rows = (bucket[full] + 1) & self._mask, tag[full], rows[full]
            self._overflows += len(rows)

    def _nth_empty(self, bucket: Positions, rank: Positions) -> Positions:
        """Way of the rank-th empty place of each bucket."""
        empty = self._slots.take(bucket, axis=0) == 0
        ordinal = np.cumsum(empty, axis=1) - 1
        ways: Positions = np.argmax(empty & (ordinal == rank[:, None]), axis=1)
        return ways

    def remove(self, rows: U32) -> None:
        """Takes rows out; the caller has unlinked parents, children and blocks."""
        self.version += 1
        bucket, _ = self._keys_of(rows)
        left, at = rows, bucket
        while len(left):
            here = self._slots.take(at, axis=0) == left[:, None]
            which, way = np.nonzero(here)
            self._slots[at[which], way] = 0
            self._tags[at[which], way] = 0
            passed = np.ones(len(left), np.bool_)
            passed[which] = False
            assert self._overflow[at[passed]].all(), "index: a row that is in no bucket"
            np.subtract.at(self._overflow, at[passed], 1)
            left, at = left[passed], (at[passed] + 1) & self._mask
            self._overflows -= len(left)
        self.namespace[rows] = 0
        self.rows.give(rows)

    # ---- links ----

    def is_chain(self, path: U32, known: int) -> bool:
        """Whether the first `known` rows of a path, and no others, are there and linked from page
        0 on: the common case."""
        there = path[:known]
        if not there[0] or self.page[there[0]]:
            return False
        linked = self.parent.take(there[1:]) == there[:-1]
        return int(count_nonzero(linked)) == known - 1

    def misplaced(self, path: U32) -> Bools:
        """Which rows of a path [n] from page 0 lie at another place than their own."""
        return np.asarray(self.page.take(path) != self._counting(len(path)))

    def _counting(self, count: int) -> U32:
        """0, 1, 2, ... [count], kept from call to call."""
        if count > len(self._numbers):
            self._numbers = np.arange(2 * count, dtype=np.uint32)
        return self._numbers[:count]

    def link(self, path: U32) -> tuple[U32, U32]:
        """Links each page of a path seen in order, [n] distinct rows and 0 for holes, to the one
        before.  Returns the pages newly linked and their parents; the caller counts children."""
        child, parent = path[1:], path[:-1]
        loose = (self.parent.take(child) == 0) & (child != 0) & (parent != 0)
        if not loose.any():
            return child[:0], parent[:0]
        child, parent = child[loose], parent[loose]
        fits = self.page.take(child) == self.page.take(parent) + np.uint32(1)
        child, parent = child[fits], parent[fits]
        self.parent[child] = parent
        return child, parent

    def adopt(self, children: U32, parents: U32) -> None:
        """Links pages [n], distinct and without a parent, to these rows, where they are their
        parents; the caller counts children."""
        fits = (parents != 0) & (self.page[children] == self.page[parents] + np.uint32(1))
        fits &= self.namespace[children] == self.namespace[parents]
        self.parent[children[fits]] = parents[fits]

    def live_rows(self) -> U32:
        """Rows of all pages, ascending."""
        return np.flatnonzero(self.namespace[: self.rows.top]).astype(np.uint32)

    def overflowed_buckets(self) -> float:
        """Fraction of the buckets that some key went past."""
        return float((self._overflow != 0).mean())

    def home_bucket(self, namespace: int, key: U64) -> int:
        """Number of the bucket where a key [1, 4] belongs."""
        return int(self._place(namespace, key)[0][0])

    def filed_rows(self) -> int:
        """Rows that the buckets hold, for check()."""
        return int(np.count_nonzero(self._slots))

    def hash_of(self, row: int) -> bytes:
        """The path hash of a page."""
        return bytes(self.hashes[row].tobytes())
