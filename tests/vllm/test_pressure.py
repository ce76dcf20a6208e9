"""Goal: requests that lose their blocks, are dropped, or meet a daemon that is gone answer as ever
and leave nothing behind.
Method: a cache that holds a few sequences under eight of them; requests aborted before, while and
after their prefix arrives, and the blocks in use counted; the daemon killed and frozen.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, clear_flips, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Served

SMALL_CACHE = 24 * 2**20
CROWD_NOISE = 2 * NOISE_LEAST
"""Batches that change with every preemption; a lost state would show ten times this."""

PROMPTS = [text(80 + number, 1220 + number) for number in range(8)]
"""Each is about to need another block of 640 tokens once it answers."""


@pytest.fixture(scope="module")
def engine(
    models: pathlib.Path, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("logs") / "small"
    options = {"kv_cache_memory_bytes": SMALL_CACHE, "disable_log_stats": False}
    with Served(
        tiny.make("qwen3_5", models),
        log,
        daemon=daemon.address,
        extra=EVERY_ROW,
        options=options,
    ) as running:
        yield running


def test_preempted_requests_answer_as_they_do_alone(engine: Served) -> None:
    alone = []
    for number, prompt in enumerate(PROMPTS):
        engine.reset()
        alone += engine.generate([prompt], 120, salts=[f"alone-{number}"])
    engine.reset()
    crowd = engine.generate(PROMPTS, 120)
    assert engine.preemptions() > 0, "the cache is too large: nothing was preempted"
    engine.reset()
    again = engine.generate(PROMPTS, 120)
    assert all(reply.cached > 0 for reply in again)
    for run in (crowd, again):
        assert [len(reply.tokens) for reply in run] == [120] * len(PROMPTS)
        apart = [distance([a], [b]) for a, b in zip(run, alone, strict=True)]
        assert max(apart) <= CROWD_NOISE, apart
        assert clear_flips(run, alone, CROWD_NOISE) == []


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
