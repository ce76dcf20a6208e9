"""Goal: engines of any tensor-parallel size share pages: anchors are stored once, kv by head.
Method: one worker reads a text, two workers resume from it and read another, from which one worker
resumes again.  References are the same engines under a salt, where nothing is found; what one
worker and two differ by without any reuse is the floor.
"""

from __future__ import annotations

import pathlib
from typing import Any

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Served

TWO: dict[str, Any] = {"tensor_parallel_size": 2}
BOUND = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def test_pages_cross_tensor_parallel_sizes_both_ways(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    model = tiny.make("qwen3_5", models)
    shared: dict[str, Any] = {"daemon": daemon.address, "extra": EVERY_ROW}
    first, second = text(70, 1500), text(71, 1500)
    there, back = first[:900] + text(72, 37), second[:900] + text(73, 37)
    with Served(model, tmp_path / "one", **shared) as engine:
        engine.generate([first])
        one = engine.generate([there], salts=["x"]) + engine.generate([back], salts=["x"])
    with Served(model, tmp_path / "two", **shared, options=TWO, variables=BOUND) as engine:
        two = engine.generate([there], salts=["x"]) + engine.generate([back], salts=["x"])
        resumed = engine.generate([there])
        engine.generate([second])
    with Served(model, tmp_path / "back", **shared) as engine:
        resumed += engine.generate([back])
    assert [reply.cached for reply in resumed] == [896, 896]
    floor = max(NOISE_LEAST, distance(one, two))
    assert distance(resumed[:1], two[:1]) <= floor
    assert distance(resumed[1:], one[1:]) <= floor
