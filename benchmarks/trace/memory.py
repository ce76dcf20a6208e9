"""How much memory a cache has: parts of a trace's working set, in one tier or in two.

::

    1/8        dram alone, an eighth of the working set
    1/8+1/2    an eighth in dram and a half in nvme; rivals have the five eighths in one piece
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

PART_MAX = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Bytes to hold blocks in; no nvme tier where `nvme_bytes` is 0."""

    dram_bytes: int
    nvme_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Of both tiers."""
        return self.dram_bytes + self.nvme_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """Parts of a working set; 0 in nvme for no such tier."""

    dram: Fraction
    nvme: Fraction = Fraction(0)

    def __str__(self) -> str:
        return f"{self.dram}+{self.nvme}" if self.nvme else str(self.dram)

    def of(self, working_set_bytes: int) -> Memory:
        """In bytes."""
        return Memory(int(self.dram * working_set_bytes), int(self.nvme * working_set_bytes))


def parse_capacity(text: str) -> Capacity:
    """A capacity as people write it: 1/8, 0.5, 1/8+1/2.  ValueError says what is wrong."""
    parts = []
    for word in text.split("+"):
        try:
            part = Fraction(word)
        except (ValueError, ZeroDivisionError) as error:
            raise ValueError(f"{word!r} is no fraction such as 1/8") from error
        if not 0 < part <= PART_MAX:
            raise ValueError(f"{word} of the working set: above 0, at most {PART_MAX}")
        parts.append(part)
    if len(parts) > 2:
        raise ValueError(f"{text!r} has {len(parts)} parts: dram, or dram+nvme")
    return Capacity(*parts)
