"""Goal: on trained models a replayed state is worth nearly the exact one, and damage shows.
Method: the two shipped models through the product's own capture and replay, without a margin so
that replay is what is tested.  Each gate is a function of measured numbers; the same gate must
reject zeroed anchors, swapped groups and shifted rows.  The zero state is measured beside every
figure: where it did well, the figure would prove nothing.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random

import pytest
import torch

from anchorstore.client import ClientOptions
from anchorstore.testing.daemon import Daemon
from benchmarks.training.recall_task import IGNORE, make_exam
from engine_adapter.budget import Budget
from engine_adapter.strategy import KvOnly, NoReuse, Strategy, SuffixReplay, zero_state
from engine_adapter.transformers.engine import Engine
from engine_adapter.transformers.model import LoadedModel
from engine_adapter.transformers.session import Session
from tests.adapter.quality import (
    MODELS,
    MUTATIONS,
    PAGE,
    Mutation,
    Trial,
    agreement,
    divergence,
    stored_rows_zeroed,
)

TEXT_PREFIX, CONTINUATION, DOCUMENTS = 1024, 32, 12
RECALL_PREFIX, EXAMS = 512, 32

SPARSE = Budget(rows_per_page=4, margin_tokens=0)
DENSE = Budget(rows_per_page=PAGE, ratio=1.0, max_rows=128, margin_tokens=0)


# ---- text: four rows of 64 ----


@dataclasses.dataclass(frozen=True)
class TextFigures:
    """Mean KL over the continuation, in nats."""

    replayed: float
    zero: float

    def passes(self) -> bool:
        """The gate."""
        return self.zero > 0.02 and self.replayed <= 0.35 * self.zero


@pytest.fixture(scope="module")
def text_trials() -> list[tuple[Trial, torch.Tensor, torch.Tensor]]:
    """Trials over the sample, with exact and zero-state logits."""
    loaded = LoadedModel.load(MODELS / "text", "float32", SPARSE.rows_per_page, PAGE)
    text = (MODELS / "text" / "sample.txt").read_bytes()
    length = TEXT_PREFIX + CONTINUATION
    starts = [(len(text) - length) * number // (DOCUMENTS - 1) for number in range(DOCUMENTS)]
    trials = [Trial(loaded, list(text[at : at + length]), TEXT_PREFIX) for at in starts]
    return [(trial, trial.exact(), trial.zero()) for trial in trials]


def _text_figures(
    trials: list[tuple[Trial, torch.Tensor, torch.Tensor]], mutation: Mutation | None
) -> TextFigures:
    replayed = [divergence(exact, each.replayed(SPARSE, mutation)) for each, exact, _ in trials]
    zero = [divergence(exact, logits) for _, exact, logits in trials]
    return TextFigures(float(torch.stack(replayed).mean()), float(torch.stack(zero).mean()))


def test_text_with_four_rows_a_page_keeps_most_of_the_state(
    text_trials: list[tuple[Trial, torch.Tensor, torch.Tensor]],
) -> None:
    figures = _text_figures(text_trials, None)
    assert figures.passes(), figures


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_text_gate_rejects_damaged_rows(
    name: str, text_trials: list[tuple[Trial, torch.Tensor, torch.Tensor]]
) -> None:
    figures = _text_figures(text_trials, MUTATIONS[name])
    assert not figures.passes(), figures


def test_text_with_only_its_stored_rows_zeroed_is_several_times_worse(
    text_trials: list[tuple[Trial, torch.Tensor, torch.Tensor]],
) -> None:
    """The token embedding alone, which needs no store, does not make the figure."""
    good = _text_figures(text_trials, None)
    damaged = _text_figures(text_trials, stored_rows_zeroed)
    assert damaged.replayed > 3 * good.replayed, (good, damaged)


# ---- recall: the last 128 rows ----


@dataclasses.dataclass(frozen=True)
class RecallFigures:
    """Share of right answers after the boundary."""

    exact: float
    replayed: float
    zero: float

    def passes(self) -> bool:
        """The gate."""
        return (
            self.exact >= 0.8
            and self.zero < 0.7 * self.exact
            and self.replayed >= 0.95 * self.exact
        )


@pytest.fixture(scope="module")
def recall_trials() -> list[tuple[Trial, torch.Tensor]]:
    """Trials over exams of writes that each say something else, with their labels."""
    loaded = LoadedModel.load(MODELS / "recall", "float32", DENSE.rows_per_page, PAGE)
    rng = random.Random(123)
    exams = [make_exam(rng, RECALL_PREFIX) for _ in range(EXAMS)]
    return [
        (
            Trial(loaded, exam.prefix + exam.asks, RECALL_PREFIX),
            torch.tensor(exam.labels[RECALL_PREFIX:]),
        )
        for exam in exams
    ]


def _right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    asked = labels != IGNORE
    return (logits[asked].argmax(-1) == labels[asked]).float()


def _recall_figures(
    trials: list[tuple[Trial, torch.Tensor]], mutation: Mutation | None
) -> RecallFigures:
    exact = [_right(trial.exact(), labels) for trial, labels in trials]
    replayed = [_right(trial.replayed(DENSE, mutation), labels) for trial, labels in trials]
    zero = [_right(trial.zero(), labels) for trial, labels in trials]
    means = (float(torch.cat(each).mean()) for each in (exact, replayed, zero))
    return RecallFigures(*means)


def test_recall_with_the_last_rows_answers_as_the_exact_state_does(
    recall_trials: list[tuple[Trial, torch.Tensor]],
) -> None:
    figures = _recall_figures(recall_trials, None)
    assert figures.passes(), figures


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_recall_gate_rejects_damaged_rows(
    name: str, recall_trials: list[tuple[Trial, torch.Tensor]]
) -> None:
    figures = _recall_figures(recall_trials, MUTATIONS[name])
    assert not figures.passes(), figures


# ---- a chain of resumes ----

CHAIN_START, CHAIN_STEP, CHAIN_STEPS = 1024, 256, 10


def _chain(
    address: str, deepest: int, strategy: Strategy | None, salt: bytes
) -> list[tuple[int, float, float]]:
    """(lineage, KL, top-1 agreement) over CONTINUATION bytes after each of ten resumes."""
    text = list((MODELS / "text" / "sample.txt").read_bytes())
    options = ClientOptions(deadline_seconds=5.0, max_lineage=deepest)
    writer = Engine.load(
        MODELS / "text", client_address=address, options=options, salt=salt, margin_tokens=0
    )
    strategy = strategy or writer.strategy
    exact = _exact_session(writer, text)
    rows = []
    for step in range(CHAIN_STEPS):
        start = CHAIN_START + step * CHAIN_STEP
        reference = exact.extend(text[start : start + CHAIN_STEP], CHAIN_STEP)[:CONTINUATION]
        session, resume = writer.prefill(text[: start + 1], strategy=strategy, store_pages=False)
        found = session.extend(text[start + 1 : start + CONTINUATION], CONTINUATION)
        pairs = reference[1:], found
        kl, top1 = (float(measure(*pairs).mean()) for measure in (divergence, agreement))
        rows.append((resume.lineage, kl, top1))
        writer.prefill(text[: start + CHAIN_STEP + 1], strategy=strategy)
    writer.close()
    return rows


def _exact_session(engine: Engine, text: list[int]) -> Session:
    """A live session that holds the chain's start; its pages are stored."""
    session, _ = engine.prefill(text[:CHAIN_START], strategy=NoReuse(engine.strategy.budget))
    return session


def test_chain_of_ten_resumes_drifts_no_further_than_one(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zero = zero_state(SPARSE)
    with Daemon(tmp_path) as daemon:
        tables = {
            "4 rows, W=0, any lineage": _chain(daemon.address, 255, None, b"any"),
            "4 rows, W=0, one replay": _chain(daemon.address, 1, None, b"one"),
            "4 rows, W=64, any lineage": _chain(
                daemon.address, 255, _with_margin(SPARSE), b"margin"
            ),
            "kv only, W=64, any lineage": _chain(daemon.address, 255, KvOnly(Budget()), b"kv"),
            "zero state, any lineage": _chain(daemon.address, 255, zero, b"zero"),
        }
    with capsys.disabled():
        for name, rows in tables.items():
            print(f"\n{name}: lineage, KL, top-1 after each resume")
            print("  ".join(f"{lineage}:{kl:.4f}/{top1:.2f}" for lineage, kl, top1 in rows))
    lineages = {name: [row[0] for row in rows] for name, rows in tables.items()}
    counted = list(range(1, CHAIN_STEPS + 1))
    assert lineages["4 rows, W=0, any lineage"] == counted
    assert lineages["4 rows, W=64, any lineage"] == counted
    assert lineages["4 rows, W=0, one replay"] == [1] + [2] * (CHAIN_STEPS - 1)
    mean = {name: sum(row[1] for row in rows) / CHAIN_STEPS for name, rows in tables.items()}
    assert mean["4 rows, W=0, any lineage"] <= 0.5 * mean["zero state, any lineage"]
    assert mean["4 rows, W=64, any lineage"] <= mean["4 rows, W=0, any lineage"]


def _with_margin(budget: Budget) -> Strategy:
    return SuffixReplay(dataclasses.replace(budget, margin_tokens=PAGE))
