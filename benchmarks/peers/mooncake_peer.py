"""Mooncake Store: a master, a node that lends memory, and a client on the same host over SHM.

Wants the package mooncake-transfer-engine-non-cuda and Debian's libibverbs1.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any

import numpy as np

from anchorstore.units import MIB
from benchmarks import harness
from benchmarks.harness import Effort, Result
from benchmarks.peers.process import free_port, server

SIZES = (64 * 1024, MIB, 4 * MIB)
PATH_PAGES = 512
RING_BYTES = 128 * MIB
ENVIRONMENT = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "1", "MC_TCP_BIND_ADDRESS": "127.0.0.1"}


def _program(name: str) -> str:
    beside = pathlib.Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else (shutil.which(name) or name)


def measure(effort: Effort) -> tuple[list[Result], str]:
    """Lines of the report, and the version that gave them."""
    os.environ.update(ENVIRONMENT)
    version = importlib.metadata.version("mooncake-transfer-engine-non-cuda")
    port, metrics, node = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        master = [_program("mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={port}"]
        master += ["--metrics_host=127.0.0.1", f"--metrics_port={metrics}"]
        lender = [_program("mooncake_client"), f"--master_server_address=127.0.0.1:{port}"]
        lender += ["--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp"]
        lender += [f"--port={node}", "--global_segment_size=2048MB"]
        with server(master, port, folder / "master"), server(lender, node, folder / "lender"):
            time.sleep(1)  # the lender listens a little before the master knows its segment
            results = _run(node, effort)
    return results, f"mooncake {version}, same host over shared memory"


def _run(node: int, effort: Effort) -> list[Result]:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup_dummy(RING_BYTES + 64 * MIB, 64 * MIB, f"127.0.0.1:{node}")
    assert code == 0, f"mooncake setup answered {code}"
    base = store.alloc_from_mem_pool(RING_BYTES)
    ring = np.ctypeslib.as_array((ctypes.c_uint8 * RING_BYTES).from_address(base))
    ring[:] = harness.filled(RING_BYTES, 5)
    assert store.register_buffer(base, RING_BYTES) == 0
    results = [_lookup(store, base, effort)]
    for size in SIZES:
        results += _values(store, base, ring, size, effort)
    return results


def _lookup(store: Any, base: int, effort: Effort) -> Result:
    keys = [os.urandom(16).hex() for _ in range(PATH_PAGES)]
    assert not any(store.batch_put_from(keys, [base] * PATH_PAGES, [4096] * PATH_PAGES))
    assert all(code == 1 for code in store.batch_is_exist(keys))
    case = "mooncake_exists"
    operations = {case: lambda: store.batch_is_exist(keys)}
    taken = harness.interleave(operations, effort.rounds, effort.per_round)
    return harness.report(case, taken, batch=PATH_PAGES)


def _values(store: Any, base: int, ring: Any, size: int, effort: Effort) -> list[Result]:
    count = RING_BYTES // size
    target = np.empty(size, np.uint8)
    keys: list[str] = []

    def put() -> None:
        keys.append(f"{size}/{len(keys)}")
        offset = (len(keys) % count) * size
        assert store.put_from(keys[-1], base + offset, size) == 0

    def get() -> None:
        offset = (len(keys) * 31 % count) * size
        assert store.get_into(keys[-1], base + offset, size) == size

    operations = {
        "memcpy": lambda: np.copyto(target, ring[:size]),
        "mooncake_put": put,
        "mooncake_get": get,
    }
    taken = harness.interleave(operations, effort.rounds, min(effort.per_round, count))
    names = ("mooncake_put", "mooncake_get")
    return [harness.report(name, taken, block_bytes=size) for name in names]
