"""Tiny traces over random trees of pages, and a model whose pages fill a few KiB."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from anchorstore.layout import AnchorLayout, KvLayout
from benchmarks.trace.sizes import Sizes
from benchmarks.trace.trace import U32, Trace, make_trace

SIZES = Sizes(
    model="tiny",
    kv=KvLayout(1, 1, 16, "bfloat16", 0, 1),
    anchor=AnchorLayout(1, 4, 64, "bfloat16"),
    state_bytes=3 * 4096,
)
"""4 KiB of kv and 4 KiB of anchors a page; a checkpoint takes as much as three pages of kv."""


def random_trace(seed: int, pages: int, requests: int) -> Trace:
    """Requests for paths of a random tree; some leave pages behind that they could not use."""
    chooser = random.Random(seed)
    paths: list[list[int]] = []
    for page in range(pages):
        above = chooser.choice([[], *paths])
        paths.append([*above, page])
    chosen = [chooser.choice(paths) for _ in range(requests)]
    return make_trace(
        "tiny",
        64,
        [np.array(path, np.uint32) for path in chosen],
        [len(path) - chooser.choice([0, 0, 1]) for path in chosen],
        [float(number) for number in range(requests)],
    )


TRACES = st.builds(
    random_trace,
    seed=st.integers(0, 2**32),
    pages=st.integers(1, 7),
    requests=st.integers(1, 8),
)


def parents(trace: Trace) -> dict[int, int | None]:
    """The page before each page."""
    found: dict[int, int | None] = {}
    for request in range(len(trace)):
        before = None
        for page in trace.path(request).tolist():
            found[page] = before
            before = page
    return found


def leading(there: set[int] | frozenset[int], path: U32, usable: int) -> int:
    """How many of a path's usable pages are there without a hole."""
    count = 0
    for page in path[:usable].tolist():
        if page not in there:
            break
        count += 1
    return count
