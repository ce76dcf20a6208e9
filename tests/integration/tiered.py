"""What tests of the nvme tier share: a daemon with a small device, puts that are waited for, reads
that are compared."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

from anchorstore.config import Config, DeviceConfig
from anchorstore.wire.v1 import store_pb2 as pb
from tests.integration.harness import (
    MIB,
    WAIT_SECONDS,
    Engine,
    Running,
    block_of,
    chain,
    config_of,
)

PAGES = 6
WAIT_MS = 5000
CAPACITY = 64 * MIB


def tiered(tmp_path: pathlib.Path, **changes: Any) -> Config:
    """A pool of 16 MiB above a device of 64 MiB in the same folder."""
    values: dict[str, Any] = {
        "tiers__nvme__devices": [(str(tmp_path), CAPACITY)],
        "tiers__nvme__segment": 4 * MIB,
    }
    values |= changes
    places = values["tiers__nvme__devices"]
    values["tiers__nvme__devices"] = tuple(DeviceConfig(*place) for place in places)
    return config_of(tmp_path, **values)


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits until something has happened."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.01)


def counter(here: Running, name: str) -> int:
    """A counter of the core."""
    return int(here.do(lambda: here.daemon.core.counters[name]))


def put(here: Running, seed: int, pages: int = PAGES) -> bytes:
    """Puts pages whose keys differ by the seed; their hashes."""
    engine = Engine(here.socket)
    hashes = chain(engine.grant.root_digest, range(seed, seed + pages))
    assert set(engine.put(hashes)) == {1}
    engine.close()
    return hashes


def put_to_nvme(here: Running, seed: int = 1, pages: int = PAGES) -> bytes:
    """The same, and waits until all of it is written and noted."""
    written = counter(here, "nvme_blocks_written")
    hashes = put(here, seed, pages)
    until(lambda: counter(here, "nvme_blocks_written") == written + 2 * pages, "written behind")
    movement = here.daemon.service.movement
    assert movement is not None
    assert here.on_loop(lambda: movement.flushed(WAIT_SECONDS))
    return hashes


def assert_right(engine: Engine, answer: pb.LookupResponse, pages: int = PAGES) -> None:
    """A hit of so many pages, each block the one that was put."""
    assert answer.miss == 0 and answer.boundary_pages == pages
    for layout, columns in enumerate(answer.columns):
        blocks = engine.read(columns)
        assert len(blocks) == pages
        for page, data in enumerate(blocks):
            assert data == block_of(100 * page + layout, len(data)), f"page {page}"
