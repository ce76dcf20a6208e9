"""What the shell asks of a tier: memory in segments of equal size, written by the daemon alone.

The core decides which slot of which segment holds a block; a tier only keeps the bytes, gives
segments their headers, and names the descriptors that a client may map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from anchorstore.transport.segment import Records

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may be called from another thread."""


class FormatAction(Protocol):
    """The core's order to give a segment a new identity and slots of a new size."""

    @property
    def index(self) -> int: ...
    @property
    def segment_id(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def first_generation(self) -> int: ...
    @property
    def fresh_memory(self) -> bool: ...


class Tier(Protocol):
    """Segments of `segment_bytes`, numbered 0 to `segments` - 1."""

    name: str
    segments: int
    segment_bytes: int

    def format(self, action: FormatAction) -> None:
        """Gives one segment a new identity; new memory where the action asks for it."""

    def memory(self, index: int) -> npt.NDArray[np.uint8]:
        """All bytes of a segment, writable [segment_bytes]."""

    def records(self, index: int) -> Records:
        """The records of a formatted segment's slots, writable [slots] of segment.RECORD."""

    def index_of(self, segment_id: int) -> int:
        """Where the segment with this id lies; LookupError for an id that is not in use."""

    def descriptor(self, index: int) -> int:
        """File descriptor that a client maps read-only; stays the tier's."""

    def close(self) -> None:
        """Gives the memory back."""
