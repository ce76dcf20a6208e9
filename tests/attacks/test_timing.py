"""Goal: how long a look-up takes tells nothing about another domain's pages.

Method: work instead of time, so that the verdict does not depend on the machine.  Every call that
Python makes while the core answers is counted; a path that another domain has stored must cost
exactly what a path that nobody has costs.
"""

from __future__ import annotations

import collections
import hashlib
import sys
from types import FrameType
from typing import Any

import pytest

from anchorstore.server.core.types import Miss, NeedAll, NeedWindow
from tests.unit.core.small import Engine, Small

PAGES = 12
NEEDS = (NeedAll(0, 0), NeedWindow(1, 0.05, 512, 4, 0))


def work(engine: Engine, path: bytes) -> collections.Counter[str]:
    """Calls by name, Python's and numpy's, that a look-up of `path` makes."""
    counted: collections.Counter[str] = collections.Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counted[argument.__qualname__] += 1

    sys.setprofile(count)
    try:
        result = engine.lookup(path, NEEDS)
    finally:
        sys.setprofile(None)
    assert result.miss is Miss.NOT_STORED
    return counted


def nobody_s(number: int) -> bytes:
    """A path that no domain has."""
    return b"".join(hashlib.sha256(f"{number} {page}".encode()).digest() for page in range(PAGES))


@pytest.mark.parametrize("trial", range(20))
def test_lookup_of_another_domain_s_path_does_the_work_of_an_unknown_one(trial: int) -> None:
    small = Small(segments=64)
    acme, globex = small.session("acme"), small.session("globex")
    globex.put(globex.path(3, "own"), layouts=[0, 1])
    stored = acme.path(PAGES, f"trial {trial}")
    acme.put(stored, layouts=[0, 1])
    assert acme.present(stored) == [True] * PAGES
    unknown = [work(globex, nobody_s(100 * trial + number)) for number in range(5)]
    assert work(globex, stored) in unknown
    assert all(sum(counted.values()) > 10 for counted in unknown)
