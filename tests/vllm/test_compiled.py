"""Goal: rows are captured under torch.compile, and what a replay then differs by is bounded.
Method: the five branches on engines that compile.  A replay calls the layers as they are written;
compiled code rounds less on the way (it keeps float32 where bfloat16 was written between fused
operations).  So the floor is what compiling alone changes: the same prompts, uncached, compiled
and not.  The zero-state control stands beside it.  Compiling takes a minute an engine, and a C++
compiler with Python's headers.
"""

from __future__ import annotations

import pathlib
import shutil
import sysconfig
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, agreed, clear_flips, cold, distance
from tests.vllm.conftest import CUTS, EVERY_ROW
from tests.vllm.served import Served

PAGE = 64


@pytest.mark.slow
def test_branches_on_compiled_engines_differ_by_no_more_than_compiling_does(
    models: pathlib.Path,
    daemon: Daemon,
    tmp_path: pathlib.Path,
    base: list[int],
    branches: list[list[int]],
) -> None:
    headers = pathlib.Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which("g++") is None or not headers.exists():
        pytest.skip("torch.compile needs g++ and Python's headers")
    model = tiny.make("qwen3_5", models)
    compiled: dict[str, Any] = {
        "daemon": daemon.address,
        "options": {"enforce_eager": False},
        "variables": {"VLLM_CACHE_ROOT": str(tmp_path / "compiled")},
    }
    with Served(model, tmp_path / "eager") as engine:
        eager = cold(engine, branches)
    with Served(model, tmp_path / "reader", **compiled, extra=EVERY_ROW) as engine:
        engine.generate([base])
        plain = cold(engine, branches, [str(cut) for cut in CUTS])
    second = {**compiled, "role": "kv_consumer"}
    with Served(model, tmp_path / "second", **second, extra=EVERY_ROW) as engine:
        shared = cold(engine, branches)
    control = {**EVERY_ROW, "strategy": "kv_only"}
    with Served(model, tmp_path / "zero", **second, extra=control) as engine:
        zero_state = cold(engine, branches)
    assert [reply.cached for reply in plain] == [0] * len(CUTS)
    assert [reply.cached for reply in shared] == [cut // PAGE * PAGE for cut in CUTS]
    floor = max(NOISE_LEAST, distance(eager, plain))
    assert distance(shared, plain) <= floor
    assert distance(zero_state, plain) > floor
    assert clear_flips(shared, plain, floor) == []
    assert agreed(zero_state, plain) < agreed(shared, plain) / 2
