"""Goal: in vLLM, too, a replayed state is worth nearly the exact one, and the defaults lose next to
nothing.
Method: the two trained tiny models sit exams; each question is asked alone and finds nothing but
the store, so that its answer rests on how the linear states were rebuilt.  "exact" is stock vLLM,
which computes everything.  The zero state and KV only stand beside every figure, and an exam on
which the zero state does well would prove nothing, so that is a failure, too.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from benchmarks.engine.models import serving_copy
from benchmarks.engine.quality import Document, recall_document, text_documents
from benchmarks.training.recall_task import make_exam
from engine_adapter.budget import MARGIN_TOKENS_DEFAULT
from tests.vllm.served import Served

pytestmark = pytest.mark.slow

MODELS = pathlib.Path(__file__).resolve().parents[2] / "engine_adapter" / "models"
TEXTS, EXAMS, REDUNDANT_EXAMS = 12, 16, 8
UNIQUE_TOKENS, REDUNDANT_TOKENS = 512, 1024
KEPT = 0.97
ZERO: dict[str, Any] = {"strategy": "kv_only", "margin_tokens": 0}
KV_ONLY: dict[str, Any] = {"strategy": "kv_only"}
FOUR_ROWS: dict[str, Any] = {"margin_tokens": 0}
LAST_ROWS: dict[str, Any] = {
    "rows_per_page": 64,
    "ratio": 1.0,
    "max_rows": 128,
    "margin_tokens": 0,
}
TRIES, PAUSE_SECONDS = 100, 0.1


@dataclasses.dataclass(frozen=True)
class Sitting:
    """An engine's log-probabilities of every token after each question [questions][vocabulary]."""

    chances: list[list[float]]
    answers: list[int]

    def accuracy(self) -> float:
        """Share of questions whose likeliest next token is the answer."""
        pairs = zip(self.chances, self.answers, strict=True)
        return sum(max(each) == each[answer] for each, answer in pairs) / len(self.answers)

    def bits(self) -> float:
        """Mean bits of the answer."""
        pairs = zip(self.chances, self.answers, strict=True)
        return -sum(each[answer] for each, answer in pairs) / math.log(2) / len(self.answers)

    def divergence(self, exact: Sitting) -> float:
        """Mean KL divergence from `exact`, nats."""
        total = 0.0
        for ours, theirs in zip(self.chances, exact.chances, strict=True):
            total += sum(math.exp(p) * (p - q) for p, q in zip(theirs, ours, strict=True))
        return total / len(self.chances)


def sit(engine: Served, documents: Sequence[Document], margin_tokens: int | None) -> Sitting:
    """Every question to an engine that resumes W tokens below the prefix; None: from nothing."""
    chances = []
    for document in documents:
        resumed = 0
        if margin_tokens is not None:
            resumed = len(document.prefix) - margin_tokens
            _store(engine, document, resumed)
        for question in document.questions:
            engine.reset()
            found, cached = engine.chances(question.prompt)
            assert cached == resumed
            chances.append(found)
    return Sitting(chances, [q.answer for document in documents for q in document.questions])


def _store(engine: Served, document: Document, resumed: int) -> None:
    """Asks until the prefix is found: it is saved behind the answer."""
    for _ in range(TRIES):
        engine.reset()
        if engine.chances(document.questions[-1].prompt)[1] == resumed:
            return
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"the prefix was not found up to {resumed} tokens")


class Hall:
    """Where a model's exams are sat: one engine after another on one daemon."""

    def __init__(self, model: pathlib.Path, logs: pathlib.Path, daemon: str) -> None:
        self._model, self._logs, self._daemon = model, logs, daemon

    def sittings(
        self, documents: Sequence[Document], variants: Mapping[str, dict[str, Any]]
    ) -> dict[str, Sitting]:
        """By variant's name, and "exact"."""
        options = {"max_logprobs": -1, "max_model_len": 2048}
        with Served(self._model, self._logs / "exact", options=options) as engine:
            found = {"exact": sit(engine, documents, None)}
        for name, extra in variants.items():
            margin = extra.get("margin_tokens", MARGIN_TOKENS_DEFAULT)
            given = {"deadline_seconds": 5.0, **extra}
            with Served(
                self._model, self._logs / name, daemon=self._daemon, extra=given, options=options
            ) as engine:
                found[name] = sit(engine, documents, margin)
        for name, sitting in found.items():
            print(
                f"{name:8s} accuracy {sitting.accuracy():.3f}, bits {sitting.bits():.4f}, "
                f"KL {sitting.divergence(found['exact']):.4f}"
            )
        return found


@pytest.fixture(scope="module", params=["text", "unique", "redundant"])
def exam(
    request: pytest.FixtureRequest,
    daemon: Daemon,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, dict[str, Sitting]]]:
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    model = serving_copy(MODELS / ("text" if kind == "text" else "recall"), folder)
    rows = FOUR_ROWS if kind == "text" else LAST_ROWS
    variants = {"rows": rows, "zero": ZERO, "defaults": {}, "kv only": KV_ONLY}
    yield kind, Hall(model, folder, daemon.address).sittings(documents_of(kind), variants)


def documents_of(kind: str) -> list[Document]:
    """The exam's documents: every question is longer than its prefix of whole pages."""
    if kind == "text":
        texts = text_documents((MODELS / "text" / "sample.txt").read_bytes(), TEXTS)
        return [Document(each.prefix, each.questions[1:]) for each in texts]
    source = random.Random(123)
    if kind == "unique":
        exams = [make_exam(source, UNIQUE_TOKENS) for _ in range(EXAMS)]
    else:
        exams = [
            make_exam(source, REDUNDANT_TOKENS, keys=6, redundant=True)
            for _ in range(REDUNDANT_EXAMS)
        ]
    return [recall_document(each) for each in exams]


def test_replay_alone_keeps_what_the_gates_of_the_reference_engine_ask(
    exam: tuple[str, dict[str, Sitting]],
) -> None:
    kind, found = exam
    exact, rows, zero = found["exact"], found["rows"], found["zero"]
    if kind == "text":
        assert zero.divergence(exact) > 0.02
        assert rows.divergence(exact) <= 0.35 * zero.divergence(exact)
    else:
        assert exact.accuracy() >= 0.8
        assert zero.accuracy() < 0.7 * exact.accuracy()
        assert rows.accuracy() >= 0.95 * exact.accuracy()


def test_defaults_keep_nearly_all_of_the_exact_answers(
    exam: tuple[str, dict[str, Sitting]],
) -> None:
    kind, found = exam
    exact, ours = found["exact"], found["defaults"]
    if kind == "text":
        assert exact.bits() / ours.bits() >= KEPT
        assert ours.divergence(exact) < found["zero"].divergence(exact) / 2
    else:
        assert ours.accuracy() >= KEPT * exact.accuracy()
        assert found["zero"].accuracy() < KEPT * exact.accuracy()
