"""Which pages are worth a place in a slower tier: small classes behind one interface.

::

    sealed pages --admits--> copied behind          the others are forgotten when dram drops them

A page used twice lies at or before a branch point, or ends a prefix that came back: what
SecondSight lets pass is what more than one request wanted.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from anchorstore.server.core.policies import Pages
from anchorstore.server.core.types import U32, Bools


class Admission:
    """A rule.  `columns` are those of the page table that it reads (policies.py)."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ()

    def admits(self, pages: Pages, rows: U32) -> Bools:
        """Which of these page rows [n] pass."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Always(Admission):
    """Everything passes."""

    name: ClassVar[str] = "always"

    def admits(self, pages: Pages, rows: U32) -> Bools:
        return np.ones(len(rows), np.bool_)


@dataclasses.dataclass(frozen=True)
class SecondSight(Admission):
    """What was used `uses` times passes: the first use is the write itself."""

    uses: int = 2

    name: ClassVar[str] = "second-sight"
    columns: ClassVar[tuple[str, ...]] = ("uses",)

    def admits(self, pages: Pages, rows: U32) -> Bools:
        return np.asarray(pages.uses[rows] >= self.uses)


@dataclasses.dataclass(frozen=True)
class Size(Admission):
    """Pages whose slots take at least `least_bytes` and at most `most_bytes` pass."""

    least_bytes: int = 0
    most_bytes: int = 2**63 - 1

    name: ClassVar[str] = "size"
    columns: ClassVar[tuple[str, ...]] = ("bytes",)

    def admits(self, pages: Pages, rows: U32) -> Bools:
        sizes = pages.bytes[rows]
        return np.asarray((sizes >= self.least_bytes) & (sizes <= self.most_bytes))


ADMISSIONS: dict[str, type[Admission]] = {rule.name: rule for rule in (Always, SecondSight, Size)}
