"""An attached client in a namespace of its own, and path hashes that nobody has."""

from __future__ import annotations

import os
from collections.abc import Sequence

from anchorstore.client import Client, ClientOptions, NamespaceSpec
from anchorstore.keys import DIGEST_BYTES
from anchorstore.layout import Layout
from anchorstore.units import MIB

STAGING_BYTES = 256 * MIB


def connect(address: str, layouts: Sequence[Layout], name: str = "bench") -> Client:
    """A client in a namespace of its own, attached."""
    client = Client.connect(
        address,
        namespace=NamespaceSpec(model=name, weights_digest=os.urandom(32)),
        layouts=layouts,
        options=ClientOptions(name=name, deadline_seconds=30, staging_bytes=STAGING_BYTES),
    )
    assert client.attached, f"no daemon at {address}"
    return client


def random_hashes(count: int) -> bytes:
    """Path hashes of pages that nobody has."""
    return os.urandom(DIGEST_BYTES * count)
