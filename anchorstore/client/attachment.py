"""What a daemon granted when a client attached."""

from __future__ import annotations

import dataclasses

from anchorstore.transport.device_memory import SlabExport


@dataclasses.dataclass(frozen=True, slots=True)
class Attachment:
    """What the daemon granted.  Handles keep the one they were made under.

    Attributes:
        session_id, boot_id: 16 bytes each.
        root_digest: 32 bytes, parent of every first page.
        block_bytes: by layout, in the order of Attach.
        staging_bytes: 0 where this process may not write.
        max_pages: in one lookup or reserve.
        read_ttl_seconds: life of a lease.
        slab: where the daemon keeps copies on the session's device; None where it does not.
    """

    session_id: bytes
    boot_id: bytes
    domain: str
    root_digest: bytes
    block_bytes: tuple[int, ...]
    staging_bytes: int
    max_pages: int
    max_lineage: int
    read_ttl_seconds: float
    slab: SlabExport | None = None
