"""Goal: engines of any tensor-parallel size share pages: anchors are stored once, kv by head.
Method: one worker reads a text, two workers resume from it and read another, from which one worker
resumes again.  References are the same engines under a salt, where nothing is found.
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
    model = tiny.make("qwen3_next", models)
    shared: dict[str, Any] = {"daemon": daemon.address, "extra": EVERY_ROW}
    first, second = text(70, 1500), text(71, 1500)
    with Served(model, tmp_path / "one", **shared) as engine:
        engine.generate([first])
    branch = first[:900] + text(72, 37)
    with Served(model, tmp_path / "two", **shared, options=TWO, variables=BOUND) as engine:
        reference = engine.generate([branch], salts=["x"])
        engine.reset()
        resumed = engine.generate([branch])
        assert [reply.cached for reply in (*reference, *resumed)] == [0, 896]
        assert distance(resumed, reference) <= NOISE_LEAST
        engine.generate([second])
    branch = second[:900] + text(73, 37)
    with Served(model, tmp_path / "back", **shared) as engine:
        reference = engine.generate([branch], salts=["x"])
        engine.reset()
        resumed = engine.generate([branch])
    assert [reply.cached for reply in (*reference, *resumed)] == [0, 896]
    assert distance(resumed, reference) <= NOISE_LEAST
