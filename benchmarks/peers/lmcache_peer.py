"""LMCache's multiprocess server with a CPU worker: prefix match of 512 chunks.

Wants lmcache without its CUDA dependencies.  Its own benchmark client drives it.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import sys
import tempfile
from typing import Any

from benchmarks import harness
from benchmarks.harness import Effort, Result
from benchmarks.peers.process import free_port, server

CHUNK_TOKENS = 256
PATH_CHUNKS = 512
ENVIRONMENT = {
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "LMCACHE_TRACK_USAGE": "false",
    "OMP_NUM_THREADS": "1",
}


def measure(effort: Effort) -> tuple[list[Result], str]:
    """One line of the report, and the version that gave it."""
    os.environ.update(ENVIRONMENT)
    version = importlib.metadata.version("lmcache")
    port, http, metrics = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(pathlib.Path(sys.executable).with_name("lmcache")), "server"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1"]
        command += ["--http-port", str(http), "--prometheus-port", str(metrics)]
        command += ["--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "2", "--no-l1-use-lazy"]
        command += ["--supported-transfer-mode", "engine_driven", "--max-workers", "1"]
        command += ["--shm-name", f"bench_{os.getpid()}", "--eviction-policy", "LRU"]
        with server(command, port, pathlib.Path(folder) / "log", seconds=120):
            result = _lookup(port, http, effort)
    return [result], f"lmcache {version}, CPU worker, shared memory"


def _lookup(port: int, http: int, effort: Effort) -> Result:
    from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
    from lmcache.cli.commands.bench.server_bench.config import BenchConfig

    blocks = PATH_CHUNKS * CHUNK_TOKENS // 16 + 64
    client: Any = ServerBenchClient(
        BenchConfig(
            rpc_url=f"tcp://127.0.0.1:{port}",
            http_url=f"http://127.0.0.1:{http}",
            mode="cpu",
            transfer_mode="engine_driven",
            tp_size=1,
            use_mla=False,
            num_tokens=PATH_CHUNKS * CHUNK_TOKENS,
            kvcache_shape_spec=f"(2,{blocks},16,1,64):float16:1",
            num_blocks=blocks,
            block_size=16,
        ),
        lambda *_: None,
    )
    client.start()
    cold = client.create_request(1, "cold", "cold")
    assert client.store(cold, 0, PATH_CHUNKS * CHUNK_TOKENS).succeeded
    requests = 0

    def lookup() -> None:
        nonlocal requests
        requests += 1
        request = client.create_request(1, f"warm{requests}", "warm")
        assert client.lookup(request).is_full_hit
        client.end_session(request)

    case = "lmcache_prefix_match"
    taken = harness.interleave({case: lookup}, effort.rounds, min(effort.per_round, 32))
    client.close()
    return harness.report(case, taken, batch=PATH_CHUNKS)
