"""Goal: what a replay touched is never passed off as exact, however long the chain.
Method: ten resumes through a real daemon, each from the pages of the one before, with the deepest
lineage a namespace stores set to 1 and to any; every step's lineage, reuse and stored blocks are
worked out by hand.  Drift is measured on a trained model in test_quality.py.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import pytest

from anchorstore.testing.daemon import Daemon
from engine_adapter.strategy import NoReuse
from engine_adapter.transformers.engine import Engine
from tests.adapter.engines import DEFAULTS, OPTIONS, PAGE, engine_of, save_model
from tests.adapter.zoo import random_tokens

FIRST_PAGES, STEP_PAGES, STEPS = 8, 3, 10
TOKENS = random_tokens((FIRST_PAGES + STEPS * STEP_PAGES) * PAGE + 1, seed=5)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return save_model("qwen3_5", tmp_path_factory.mktemp("models"))


def _engine(model: pathlib.Path, daemon: Daemon, deepest: int, salt: bytes) -> Engine:
    options = dataclasses.replace(OPTIONS, max_lineage=deepest)
    return engine_of(model, daemon, options=options, salt=salt)


def _upto(pages: int) -> list[int]:
    """The prompt that fills `pages` pages and one token more."""
    return TOKENS[: pages * PAGE + 1]


def test_chain_of_ten_resumes_counts_every_replay(daemon: Daemon, model: pathlib.Path) -> None:
    first = _engine(model, daemon, 255, b"any")
    first.prefill(_upto(FIRST_PAGES))
    for step in range(1, STEPS + 1):
        engine = _engine(model, daemon, 255, b"any")
        before = FIRST_PAGES + (step - 1) * STEP_PAGES
        session, resume = engine.prefill(_upto(before + STEP_PAGES))
        assert resume.reused_tokens == (before - 1) * PAGE
        assert resume.lineage == session.lineage == step
        assert engine.counters["put_sealed"] == 2 * STEP_PAGES
        assert engine.counters["put_known"] == 2  # the margin's page was there, more exact
        engine.close()
    first.close()


def test_chain_in_a_namespace_that_stores_one_replay_stays_at_two(
    daemon: Daemon, model: pathlib.Path
) -> None:
    first = _engine(model, daemon, 1, b"one")
    first.prefill(_upto(FIRST_PAGES))
    reusable = FIRST_PAGES
    for step in range(1, STEPS + 1):
        engine = _engine(model, daemon, 1, b"one")
        _, resume = engine.prefill(_upto(FIRST_PAGES + step * STEP_PAGES))
        assert resume.reused_tokens == (reusable - 1) * PAGE, step
        assert resume.lineage == min(step, 2), step
        if step == 1:  # lineage 1 is stored, 2 never is
            assert engine.counters["put_sealed"] == 2 * STEP_PAGES
            reusable += STEP_PAGES
        else:
            assert engine.counters["put_sealed"] == 0
            assert engine.counters["put_reason_lineage"] == 1
        engine.close()
    first.close()


def test_lookup_that_accepts_only_exact_pages_stops_before_replayed_ones(
    daemon: Daemon, model: pathlib.Path
) -> None:
    engine = _engine(model, daemon, 255, b"exact")
    engine.prefill(_upto(FIRST_PAGES))
    engine.prefill(_upto(FIRST_PAGES + STEP_PAGES))
    strict = engine_of(model, daemon, salt=b"exact", max_lineage=0)
    _, resume = strict.prefill(_upto(FIRST_PAGES + 2 * STEP_PAGES), store_pages=False)
    assert resume.reused_tokens == (FIRST_PAGES - 1) * PAGE
    assert resume.lineage == 1
    for each in (engine, strict):
        each.close()


def test_exact_pages_replace_replayed_ones(daemon: Daemon, model: pathlib.Path) -> None:
    engine = _engine(model, daemon, 255, b"replace")
    engine.prefill(_upto(FIRST_PAGES))
    prompt = _upto(FIRST_PAGES + STEP_PAGES)
    assert engine.prefill(prompt)[1].lineage == 1
    later = _upto(FIRST_PAGES + 2 * STEP_PAGES)
    assert engine.prefill(later, store_pages=False)[1].lineage == 2
    before = engine.counters["put_sealed"]
    engine.prefill(prompt, strategy=NoReuse(DEFAULTS))
    assert engine.counters["put_sealed"] - before == 2 * STEP_PAGES
    assert engine.prefill(later, store_pages=False)[1].lineage == 1
    engine.close()
