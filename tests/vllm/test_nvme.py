"""Goal: what was stored outlives the daemon: engines resume from nvme after a restart as they did
from memory.
Method: one engine reads 2000 tokens beside a daemon with a device, and a second one gets the five
branches; the daemon ends, another one takes the device over, and a third engine gets the branches.
Hit lengths, tokens and log-probabilities are the second one's, to the last bit.
"""

from __future__ import annotations

import pathlib
from typing import Any

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import cold
from tests.vllm.conftest import CUTS, EVERY_ROW, POOL
from tests.vllm.served import Served

PAGE = 64
EXTRA: dict[str, Any] = {**EVERY_ROW, "bring_in_seconds": 60.0}


def test_branches_resume_from_nvme_after_the_daemon_was_started_anew(
    models: pathlib.Path, tmp_path: pathlib.Path, base: list[int], branches: list[list[int]]
) -> None:
    model = tiny.make("qwen3_next", models)
    settings = {**POOL, "tiers.nvme.devices": f"{tmp_path}:512MiB"}
    with Daemon(tmp_path / "first", settings=settings) as first:
        with Served(model, tmp_path / "reader", daemon=first.address, extra=EXTRA) as engine:
            engine.generate([base])
        second: dict[str, Any] = {"daemon": first.address, "extra": EXTRA, "role": "kv_consumer"}
        with Served(model, tmp_path / "second", **second) as engine:
            from_memory = cold(engine, branches)
    with Daemon(tmp_path / "again", settings=settings) as again:
        third: dict[str, Any] = {"daemon": again.address, "extra": EXTRA, "role": "kv_consumer"}
        with Served(model, tmp_path / "third", **third) as engine:
            from_nvme = cold(engine, branches)
    assert [reply.cached for reply in from_nvme] == [cut // PAGE * PAGE for cut in CUTS]
    assert from_nvme == from_memory
