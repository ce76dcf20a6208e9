"""Goal: text prompts to a model that also sees are reused as those to a plain one.
Method: the tiny Qwen3.5 in the class that it is published in, a vision tower beside its language
model; one branch on a second engine that never saw the base, against the first one's full prefill,
with the zero state beside it.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, clear_flips, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Served

OPTIONS = {"limit_mm_per_prompt": {"image": 0, "video": 0}}


@pytest.mark.slow
def test_text_prompts_to_a_model_with_a_vision_tower_are_reused(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    base = text(130, 1000)
    branch = [*base[:700], *text(131, 37)]
    shared: dict[str, Any] = {"daemon": daemon.address, "options": OPTIONS}
    model = tiny.make("qwen3_5_vision", models)
    with Served(model, tmp_path / "reader", **shared, extra=EVERY_ROW) as engine:
        engine.generate([base])
        uncached = engine.generate([branch], salts=["alone"])
    second = {**shared, "role": "kv_consumer"}
    with Served(model, tmp_path / "second", **second, extra=EVERY_ROW) as engine:
        reused = engine.generate([branch])
    control = {**EVERY_ROW, "strategy": "kv_only"}
    with Served(model, tmp_path / "zero", **second, extra=control) as engine:
        zero_state = engine.generate([branch])
    assert [run[0].cached for run in (uncached, reused, zero_state)] == [0, 640, 640]
    assert distance(reused, uncached) <= NOISE_LEAST
    assert clear_flips(reused, uncached, NOISE_LEAST) == []
    assert distance(zero_state, uncached) > 2 * NOISE_LEAST
