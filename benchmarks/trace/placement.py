"""Where to put checkpoints: sparse prefix caching as an exact dynamic program.  Pure.

A request that shares `d` pages with an entry resumes at the entry's last checkpoint at or before
`d` and computes the rest.  With `p(d)` requests of each depth, M checkpoints spare them most at::

    depth       0      c1            c2                 n
    entry       |------|-------------|------------------|
    spared      ->|     ->->->->|     ->->->->->->|          sum of p(d) * last c <= d
                  0         c1              c2

A checkpoint moved right to the next depth that someone shares spares more and loses no one, so only
such depths are tried.  Best from the right: with T(c) the requests that share c pages or more,

    G_1(c) = c T(c)        G_m(c) = max over c' > c of  c (T(c) - T(c')) + G_m-1(c')
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def place(shared_by: Floats, checkpoints: int) -> list[int]:
    """Depths in pages, ascending, of at most `checkpoints` checkpoints that together spare most.

    `shared_by` [n] has, for depths 1 .. n, how many requests share exactly so many pages.  Fewer
    are placed where more would spare nothing.
    """
    depths = np.flatnonzero(shared_by > 0) + 1
    if not len(depths) or checkpoints < 1:
        return []
    tail = np.cumsum(shared_by[depths - 1][::-1])[::-1]
    step = depths[:, None] * (tail[:, None] - tail[None, :])  # first at a row's depth, next at a
    step[np.tril_indices(len(depths))] = -np.inf  # column's
    gain = depths * tail
    follow: list[npt.NDArray[np.intp]] = []  # which checkpoint comes next, layer by layer
    best, layers = float(gain.max()), 1
    for layer in range(2, min(checkpoints, len(depths)) + 1):
        choice = step + gain[None, :]
        follow.append(choice.argmax(axis=1))
        gain = choice.max(axis=1)
        if gain.max() > best:
            best, layers = float(gain.max()), layer
    return _walk(depths, tail, step, follow[: layers - 1])


def _walk(
    depths: npt.NDArray[np.intp],
    tail: Floats,
    step: Floats,
    follow: list[npt.NDArray[np.intp]],
) -> list[int]:
    """The depths of the best placement, first to last."""
    gain = depths * tail
    for _ in follow:
        gain = (step + gain[None, :]).max(axis=1)
    at = int(gain.argmax())
    chosen = [int(depths[at])]
    for layer in reversed(follow):
        at = int(layer[at])
        chosen.append(int(depths[at]))
    return chosen


def spared(shared_by: Floats, chosen: list[int]) -> float:
    """Pages that checkpoints at these depths spare all requests together."""
    total = 0.0
    for depth, requests in enumerate(shared_by.tolist(), start=1):
        total += requests * max((c for c in chosen if c <= depth), default=0)
    return total
