"""What the client's integration tests share: layouts, namespaces, bytes, and pages of them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from anchorstore.client import ClientOptions, NamespaceSpec
from anchorstore.layout import AnchorLayout, KvLayout

KV = KvLayout(layers=2, heads=2, head_dim=32, dtype="bfloat16", head_start=0, head_stop=2)
ANCHOR = AnchorLayout(groups=3, rows=4, hidden=64, dtype="float32")
LAYOUTS = [KV, ANCHOR]
OPTIONS = ClientOptions(
    name="test", deadline_seconds=20.0, retry_seconds=0.2, staging_bytes=2 * 2**20
)
WAIT_SECONDS = 20.0


def namespace() -> NamespaceSpec:
    """One that nobody else uses."""
    return NamespaceSpec("model", b"w" * 32, salt=os.urandom(16))


@dataclasses.dataclass
class Pages:
    """A run of pages from page 0 on, with the bytes of their blocks."""

    hashes: bytes
    kv: npt.NDArray[np.uint8]
    anchor: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.hashes) // 32

    def blocks(self) -> dict[int, npt.NDArray[np.uint8]]:
        return {0: self.kv, 1: self.anchor}


def pages(client: Any, count: int, seed: int = 0) -> Pages:
    """`count` pages of tokens and bytes that `seed` decides."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 50_000, count * client.page_tokens)
    hashes = client.path_hashes(tokens)
    assert len(hashes) == 32 * count, "the client has no root digest"
    kv = random.integers(0, 256, (count, KV.block_bytes()), np.uint8)
    anchor = random.integers(0, 256, (count, ANCHOR.block_bytes()), np.uint8)
    return Pages(hashes, kv, anchor)


def stored(client: Any, count: int, seed: int = 0) -> Pages:
    """Pages that the daemon holds."""
    made = pages(client, count, seed)
    outcome = client.put(
        client.root_digest, 0, made.hashes, made.blocks(), deadline_seconds=WAIT_SECONDS
    )
    assert outcome.sealed == 2 * count, outcome
    return made


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for `condition`; what the test is about is that it comes true at all."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
