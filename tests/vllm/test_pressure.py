"""Goal: requests that lose their blocks, are dropped, or meet a daemon that is gone answer as ever
and leave nothing behind.
Method: a cache that holds a few sequences under eight of them, beside stock vLLM under the same
pressure: what that changes without us is the floor; requests aborted before, while and after their
prefix arrives, and the blocks in use counted; the daemon killed and frozen.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import CHANCE, NOISE_LEAST, clear_flips, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Reply, Served

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 24 * 2**20, "disable_log_stats": False}
TOKENS = 48
PROMPTS = [text(80 + number, 1250 + number) for number in range(8)]
"""Each is about to need another block of 640 tokens once it answers."""


@pytest.fixture(scope="module")
def engine(
    models: pathlib.Path, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    model, log = tiny.make("qwen3_5", models), tmp_path_factory.mktemp("logs") / "small"
    with Served(model, log, daemon=daemon.address, extra=EVERY_ROW, options=SMALL) as running:
        yield running


def crowds(engine: Served) -> list[list[Reply]]:
    """All prompts at once, twice, vLLM's own cache emptied before; some have lost their blocks."""
    runs = []
    for _ in range(2):
        engine.reset()
        runs.append(engine.generate(PROMPTS, TOKENS))
    assert engine.preemptions() > 0, "the cache is too large: nothing was preempted"
    return runs


def test_preempted_requests_answer_as_those_of_stock_vllm_do(
    engine: Served, models: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with Served(tiny.make("qwen3_5", models), tmp_path / "stock", options=SMALL) as stock:
        alone = []
        for prompt in PROMPTS:
            stock.reset()
            alone += stock.generate([prompt], TOKENS)
        floor = max(distance(run, alone) for run in crowds(stock))
    limit = CHANCE * max(NOISE_LEAST, floor)
    first, again = crowds(engine)
    assert all(reply.cached > 0 for reply in again)
    for run in (first, again):
        assert [len(reply.tokens) for reply in run] == [TOKENS] * len(PROMPTS)
        apart = [distance([a], [b]) for a, b in zip(run, alone, strict=True)]
        print(f"stock differs by {floor:.4f}, this run by {max(apart):.4f}")
        assert max(apart) <= limit, (apart, floor)
        assert clear_flips(run, alone, limit) == []


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 20])
def test_aborted_request_leaves_no_block_in_use(engine: Served, steps: int) -> None:
    engine.reset()
    assert engine.abort([*PROMPTS[7][:1000], *text(90 + steps, 37)], steps) == 0


def test_engine_without_its_daemon_is_the_stock_engine(engine: Served, daemon: Daemon) -> None:
    prompt = text(95, 900)
    engine.reset()
    first = engine.generate([prompt])
    engine.reset()
    assert engine.generate([prompt])[0].cached == 896
    daemon.kill()
    engine.reset()
    gone = engine.generate([prompt])
    daemon.start()
    daemon.freeze()
    engine.reset()
    hung = engine.generate([prompt])
    daemon.thaw()
    for run in (gone, hung):
        assert run[0].cached == 0
        assert run[0].tokens == first[0].tokens
