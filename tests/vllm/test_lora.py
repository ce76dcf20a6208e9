"""Goal: prefixes of one LoRA adapter never serve another, nor the plain model; its own are reused.
Method: one text under no adapter and under two; the second has the first one's name and other
weights, which are then put over the first one's files.  Reuse is what vLLM reports after its own
cache is emptied; an adapter's answer from reused pages is its uncached one, the plain model's is
not.
"""

from __future__ import annotations

import pathlib
import shutil

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, clear_flips, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Served

OPTIONS = {"enable_lora": True, "max_loras": 2, "max_lora_rank": tiny.LORA_RANK}


def test_prefixes_of_an_adapter_are_its_own(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    model, prompt = tiny.make("qwen3_5", models), text(120, 700)
    first = ("style", 1, tiny.make_lora(model, tmp_path / "first", seed=1))
    other = ("style", 2, tiny.make_lora(model, tmp_path / "other", seed=2))
    with Served(
        model, tmp_path / "log", daemon=daemon.address, extra=EVERY_ROW, options=OPTIONS
    ) as engine:
        plain = engine.generate([prompt])
        engine.reset()
        uncached = engine.generate([prompt], lora=first)
        engine.reset()
        others = engine.generate([prompt], lora=other)
        assert [run[0].cached for run in (plain, uncached, others)] == [0, 0, 0]
        engine.reset()
        reused = engine.generate([prompt], lora=first)
        engine.reset()
        plain_again = engine.generate([prompt])
        engine.reset()
        shutil.copy(other[2] / "adapter_model.safetensors", first[2])
        overwritten = engine.generate([prompt], lora=first)
        engine.reset()
        renewed = engine.generate([prompt], lora=("style", 3, first[2]))
    assert [run[0].cached for run in (overwritten, renewed)] == [0, 640]
    assert distance(renewed, others) <= NOISE_LEAST
    assert [run[0].cached for run in (reused, plain_again)] == [640, 640]
    for again, before in ((reused, uncached), (plain_again, plain)):
        assert distance(again, before) <= NOISE_LEAST
        assert clear_flips(again, before, NOISE_LEAST) == []
    for differing in (plain, others):
        assert distance(uncached, differing) > 2 * NOISE_LEAST
