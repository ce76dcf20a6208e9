"""Redis on a Unix socket: SET and GET of values, and the longest prefix of 512 keys in Lua."""

from __future__ import annotations

import os
import pathlib
import tempfile

import numpy as np
import redis

from anchorstore.units import MIB
from benchmarks import harness
from benchmarks.harness import Effort, Result
from benchmarks.peers.process import free_port, server

SIZES = (64 * 1024, MIB, 4 * MIB)
PATH_PAGES = 512
LONGEST_PREFIX = """
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then return i - 1 end
end
return #KEYS
"""


def measure(effort: Effort) -> tuple[list[Result], str]:
    """Lines of the report, and the version that gave them."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        port, path = free_port(), str(folder / "redis.sock")
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
        command += ["--appendonly", "no", "--dir", name, "--unixsocket", path]
        with server(command, port, folder / "log"):
            client = redis.Redis(unix_socket_path=path)
            version = str(client.info("server")["redis_version"])
            results = [_lookup(client, effort)]
            for size in SIZES:
                results += _values(client, size, effort)
    return results, f"redis {version}, redis-py {redis.__version__}, Unix socket"


def _lookup(client: redis.Redis, effort: Effort) -> Result:
    keys = [os.urandom(32) for _ in range(PATH_PAGES)]
    client.mset(dict.fromkeys(keys, b"1"))
    script = client.register_script(LONGEST_PREFIX)
    assert script(keys) == PATH_PAGES
    case = "redis_longest_prefix_lua"
    taken = harness.interleave({case: lambda: script(keys)}, effort.rounds, effort.per_round)
    return harness.report(case, taken, batch=PATH_PAGES)


def _values(client: redis.Redis, size: int, effort: Effort) -> list[Result]:
    client.flushall()
    count = 128 * MIB // size
    source = harness.filled(128 * MIB, 3).reshape(count, size)
    target = np.empty(size, np.uint8)
    for index in range(count):
        client.set(f"k{index}", memoryview(source[index]))
    turn = 0

    def put() -> None:
        nonlocal turn
        turn += 1
        client.set(f"k{turn % count}", memoryview(source[turn % count]))

    def get() -> None:
        value = client.get(f"k{turn * 7919 % count}")
        assert value is not None and len(value) == size

    operations = {
        "memcpy": lambda: np.copyto(target, source[turn % count]),
        "redis_put": put,
        "redis_get": get,
    }
    taken = harness.interleave(operations, effort.rounds, min(effort.per_round, 2 * count))
    return [harness.report(name, taken, block_bytes=size) for name in ("redis_put", "redis_get")]
