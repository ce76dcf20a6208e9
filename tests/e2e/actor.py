"""A client process that tests kill: attaches, does one thing, says so, and waits for its end.

python actor.py ADDRESS SEED half-write|read|reserve|put-forever
"""

from __future__ import annotations

import sys
import time

from anchorstore.client import Client, ClientOptions, NamespaceSpec, NeedAll
from anchorstore.layout import KvLayout

PAGES = 16
LAYOUT = KvLayout(1, 1, 256, "bfloat16", 0, 1)  # 64 KiB a block


def connect(address: str, name: str = "actor", deadline_seconds: float = 5.0) -> Client:
    """A client in the one namespace that all actors share."""
    return Client.connect(
        address,
        namespace=NamespaceSpec(model="faults", weights_digest=bytes(32)),
        layouts=[LAYOUT],
        options=ClientOptions(
            name=name,
            deadline_seconds=deadline_seconds,
            retry_seconds=0.2,
            staging_bytes=4 * 2**20,
        ),
    )


def tokens(seed: int) -> list[int]:
    """A prompt of PAGES pages that differs from other seeds' in every page."""
    return [seed * 1_000_003 % 1_000_000_007 % 2**31] * (64 * PAGES)


def block(seed: int, page: int) -> bytes:
    """What is sealed under a page: recognisable anywhere."""
    return bytes([(seed * 31 + page * 7 + 1) % 256]) * LAYOUT.block_bytes()


def put(client: Client, seed: int) -> int:
    """Stores every page of a prompt; blocks sealed."""
    root = client.root_digest
    if root is None:
        return 0
    blocks = {0: [block(seed, page) for page in range(PAGES)]}
    return client.put(root, 0, client.path_hashes(tokens(seed)), blocks).sealed


def main() -> None:
    address, seed, role = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    client = connect(address)
    root = client.root_digest
    assert root is not None, f"no daemon at {address}"
    hashes = client.path_hashes(tokens(seed))
    if role == "read":
        window = client.lookup(hashes, [NeedAll(0)])
        assert window.hit, window.miss
    elif role == "put-forever":
        print("ready", flush=True)
        while True:
            put(client, seed)
            seed += 1
    else:
        reservation = client.reserve(root, 0, hashes, layouts=[0])
        wanted = list(reservation.wanted())
        assert len(wanted) == PAGES
        if role == "half-write":
            for page, layout in wanted[: PAGES // 2]:
                reservation.buffer(page, layout)[:] = block(seed, page)
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
