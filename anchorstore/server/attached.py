"""What the shell knows of a session; the core knows the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anchorstore.server.core.types import BlockColumns
from anchorstore.transport.segment import Places

if TYPE_CHECKING:
    from anchorstore.server.hot import Hot


@dataclasses.dataclass(slots=True)
class Attached:
    """A session.

    Attributes:
        number: for logs: the id is a secret.
        block_bytes: by layout.
        device: place on the bus of the device that it reads on, "" = none.
        hot: where copies lie for it; None where none do.
    """

    number: int
    domain: str
    block_bytes: tuple[int, ...]
    device: str = ""
    hot: Hot | None = None

    def on_device(self, columns: Sequence[BlockColumns]) -> list[Places]:
        """Where the blocks of an answer's columns also lie; empty where it has no copies."""
        return [] if self.hot is None else self.hot.places(self.domain, columns, self.block_bytes)
