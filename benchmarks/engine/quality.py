"""Quality through a server: what reuse costs in answers, on the trained tiny models.

::

    exam: prefix of whole pages . question . answer          the answer is known

    store the prefix -> empty the server's own cache -> ask -> ... -> ask      a token each

Asked this way a question finds nothing but what the store has, so that its answer rests on the
variant's way to rebuild the linear states; "exact" is stock vLLM, which finds nothing and computes
everything.  Accuracy counts first choices, bits are those of the right answer.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError, load_object
from benchmarks.engine.reuse import ideal_reuse
from benchmarks.engine.run import Rules, Say
from benchmarks.training.recall_task import FIRST_VALUE, IGNORE, Exam, make_exam

BYTE_VOCABULARY = 256
TEXT_PREFIX_TOKENS = 1024
CONTINUATION_TOKENS = 32
RECALL_SEED = 123
RECALL_TOKENS, QUICK_RECALL_TOKENS = 16384, 2048
"""Prefixes of one exam together."""

RESETS = 50
RESET_SECONDS = 0.1
TRIES = 20
"""How often a first question is asked anew until the store has the prefix."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt that begins with its document's prefix, and the token that follows it."""

    prompt: tuple[int, ...]
    answer: int


@dataclasses.dataclass(frozen=True)
class Document:
    """A prefix of whole pages and what is asked after it."""

    prefix: tuple[int, ...]
    questions: tuple[Question, ...]


@dataclasses.dataclass(frozen=True)
class Asked:
    """One question, answered."""

    right: bool
    bits: float
    cached_tokens: int
    ideal_tokens: int


def text_documents(text: bytes, count: int) -> list[Document]:
    """Passages evenly over `text`; each of the bytes after the prefix is asked for in turn."""
    last = len(text) - TEXT_PREFIX_TOKENS - CONTINUATION_TOKENS
    if last < 0:
        raise EndpointError(f"a text of {len(text)} bytes is too short for an exam")
    documents = []
    for number in range(count):
        at = last * number // max(1, count - 1)
        tokens = tuple(text[at : at + TEXT_PREFIX_TOKENS + CONTINUATION_TOKENS])
        stops = range(TEXT_PREFIX_TOKENS, len(tokens))
        questions = tuple(Question(tokens[:stop], tokens[stop]) for stop in stops)
        documents.append(Document(tokens[:TEXT_PREFIX_TOKENS], questions))
    return documents


def recall_document(exam: Exam) -> Document:
    """An exam's asks, each with the asks before it and their right answers."""
    tokens = tuple(exam.prefix + exam.asks)
    questions = [
        Question(tokens[: at + 1], answer)
        for at, answer in enumerate(exam.labels)
        if answer != IGNORE
    ]
    assert all(question.answer >= FIRST_VALUE for question in questions)
    return Document(tuple(exam.prefix), tuple(questions))


def exams_of(folder: pathlib.Path, vocabulary: int, quick: bool) -> dict[str, list[Document]]:
    """Exams for a trained model, by name; EndpointError for a model that has none."""
    if vocabulary == BYTE_VOCABULARY and (folder / "sample.txt").is_file():
        text = (folder / "sample.txt").read_bytes()
        name = f"text, n = {TEXT_PREFIX_TOKENS}"
        return {name: text_documents(text, 2 if quick else 8)}
    if folder.name == "recall":
        tokens = QUICK_RECALL_TOKENS if quick else RECALL_TOKENS
        found = {}
        for length, redundant in ((512, False), (1024, True)):
            count = tokens // length
            rng = random.Random(RECALL_SEED)
            keys = 6 if redundant else 12
            exams = [make_exam(rng, length, keys=keys, redundant=redundant) for _ in range(count)]
            kind = "redundant" if redundant else "unique"
            found[f"recall {kind}, n = {length}"] = [recall_document(exam) for exam in exams]
        return found
    raise EndpointError(f"--quality knows the text and recall models, not {folder}")


def forget(client: Client) -> None:
    """Empties the server's own prefix cache; EndpointError where it holds on to it."""
    for _ in range(RESETS):
        if load_object(client.post("/reset_prefix_cache")).get("success") is True:
            return
        time.sleep(RESET_SECONDS)
    raise EndpointError("the server does not let go of its prefix cache")


def ask(client: Client, question: Question, ideal_tokens: int) -> Asked:
    """One question to a server that has only its store to remember by."""
    forget(client)
    extra = {
        "logprobs": 1,
        "logprob_token_ids": [question.answer],
        "return_tokens_as_token_ids": True,
    }
    found = client.complete(question.prompt, 1, extra)
    told = found.top_logprobs[0] if found.top_logprobs else {}
    logprob = told.get(f"token_id:{question.answer}")
    if logprob is None or found.token_ids is None:
        raise EndpointError("the server tells neither token ids nor their log-probabilities")
    right = found.token_ids == (question.answer,)
    return Asked(right, -logprob / math.log(2), found.cached_tokens or 0, ideal_tokens)


def sit(client: Client, documents: Sequence[Document], rules: Rules, stores: bool) -> list[Asked]:
    """Every question of `documents`.  `stores`: the variant should remember the prefixes."""
    answers = []
    for document in documents:
        ideals = [
            ideal_reuse(len(document.prefix), len(q.prompt), rules.page_tokens, rules.margin_tokens)
            for q in document.questions
        ]
        client.complete(document.prefix, 1)
        if stores:
            _until_stored(client, document.questions[-1], ideals[-1], rules)
        answers += [
            ask(client, question, ideal)
            for question, ideal in zip(document.questions, ideals, strict=True)
        ]
    return answers


def _until_stored(client: Client, question: Question, ideal: int, rules: Rules) -> None:
    """Storing goes on behind the answer: asks until the prefix is found, or often enough."""
    for _ in range(TRIES):
        time.sleep(rules.pause_seconds)
        if ask(client, question, ideal).cached_tokens >= ideal:
            return


def summary(
    exam: str, variant: str, answers: Sequence[Asked], exact: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A line of the report; "kept" and "of exact" against the first variant's line."""
    count = len(answers)
    ideal = sum(asked.ideal_tokens for asked in answers)
    used = sum(min(asked.cached_tokens, asked.ideal_tokens) for asked in answers)
    accuracy = sum(asked.right for asked in answers) / count
    bits = sum(asked.bits for asked in answers) / count
    base = exact or {"accuracy": accuracy, "bits": bits}
    return {
        "exam": exam,
        "variant": variant,
        "questions": count,
        "reused_tokens": sum(asked.cached_tokens for asked in answers),
        "of_ideal": round(used / ideal, 4) if ideal else None,
        "accuracy": round(accuracy, 4),
        "accuracy_kept": round(accuracy / base["accuracy"], 4) if base["accuracy"] else None,
        "bits": round(bits, 4),
        "bits_to_exact": round(base["bits"] / bits, 4) if bits else None,
    }


def measure(
    exams: Mapping[str, Sequence[Document]],
    variant: str,
    client: Client,
    rules: Rules,
    stores: bool,
    say: Say,
) -> dict[str, list[Asked]]:
    """Every exam on one server."""
    found = {}
    for name, documents in exams.items():
        say(f"{variant} sits {name}: {sum(len(d.questions) for d in documents)} questions")
        found[name] = sit(client, documents, rules, stores)
    return found
