"""The recall stream: set, copy and ask over keys, with filler; the newest assignment wins.

An event is three tokens: ``SET key value``, ``COPY key source`` (the key takes the source's
current value), ``ASK key value`` (the value is the answer, predicted at the key). It has what
RULER's needle and variable-tracking tasks have, in 104 token ids; the vocabulary of the model
rounds that up to 128.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KEYS = 32
VALUES = 32
FILLERS = 32

PAD, BOS, SET, COPY, ASK = 0, 1, 2, 3, 4
FIRST_KEY = 8
FIRST_VALUE = FIRST_KEY + KEYS
FIRST_FILLER = FIRST_VALUE + VALUES
TOKENS = FIRST_FILLER + FILLERS
"""Token ids in use."""

IGNORE = -100
"""Label of a position that asks nothing."""

COPY_SHARE = 0.15
FILLER_SHARE = 0.15


@dataclass
class Document:
    """Tokens and what holds after them, per key (numbered from 0)."""

    tokens: list[int] = field(default_factory=lambda: [BOS])
    values: dict[int, int] = field(default_factory=dict)
    written_at: dict[int, int] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)

    def set(self, key: int, value: int) -> None:
        """Append ``SET key value``."""
        self.tokens += [SET, FIRST_KEY + key, FIRST_VALUE + value]
        self._write(key, value, copies=0)

    def copy(self, key: int, source: int) -> None:
        """Append ``COPY key source``."""
        self.tokens += [COPY, FIRST_KEY + key, FIRST_KEY + source]
        self._write(key, self.values[source], copies=self.copies[source] + 1)

    def ask(self, key: int) -> None:
        """Append ``ASK key value`` with the right value."""
        self.tokens += [ASK, FIRST_KEY + key, FIRST_VALUE + self.values[key]]

    def filler(self, rng: random.Random) -> None:
        """Append one filler token."""
        self.tokens.append(FIRST_FILLER + rng.randrange(FILLERS))

    def _write(self, key: int, value: int, copies: int) -> None:
        self.values[key] = value
        self.written_at[key] = len(self.tokens) - 1
        self.copies[key] = copies


@dataclass(frozen=True)
class Question:
    """One ask of an exam: how far back the key was last written, through how many copies."""

    distance: int
    copies: int


@dataclass(frozen=True)
class Exam:
    """A prefix followed by asks; ``labels`` runs beside ``prefix + asks``."""

    prefix: list[int]
    asks: list[int]
    labels: list[int]
    questions: list[Question]


def unique_prefix(rng: random.Random, length: int, keys: int = 12) -> Document:
    """Writes that never repeat: every token carries what only it says."""
    document = Document()
    chosen = rng.sample(range(KEYS), keys)
    while len(document.tokens) + 3 <= length:
        draw = rng.random()
        if draw < FILLER_SHARE:
            document.filler(rng)
            continue
        key = rng.choice(chosen)
        if document.values and draw < FILLER_SHARE + COPY_SHARE * (1 - FILLER_SHARE):
            source = rng.choice(list(document.values))
            if source != key:
                document.copy(key, source)
        else:
            document.set(key, rng.randrange(VALUES))
    while len(document.tokens) < length:
        document.filler(rng)
    return document


def redundant_prefix(rng: random.Random, length: int, keys: int = 6) -> Document:
    """The same few assignments over and over: any part of the prefix tells them all."""
    document = Document()
    pairs = {key: rng.randrange(VALUES) for key in rng.sample(range(KEYS), keys)}
    while len(document.tokens) + 3 <= length:
        if rng.random() < FILLER_SHARE:
            document.filler(rng)
            continue
        key = rng.choice(list(pairs))
        document.set(key, pairs[key])
    while len(document.tokens) < length:
        document.filler(rng)
    return document


def make_exam(
    rng: random.Random, length: int, asks: int = 16, keys: int = 12, *, redundant: bool = False
) -> Exam:
    """A prefix of ``length`` tokens and ``asks`` asks, cycling over its keys in random order."""
    make = redundant_prefix if redundant else unique_prefix
    document = make(rng, length, keys)
    prefix = list(document.tokens)
    order = list(document.values)
    rng.shuffle(order)
    labels = [IGNORE] * length
    questions = []
    for key in (order * asks)[:asks]:
        document.ask(key)
        labels += [IGNORE, FIRST_VALUE + document.values[key], IGNORE]
        questions.append(Question(length - document.written_at[key], document.copies[key]))
    return Exam(prefix, document.tokens[length:], labels, questions)


def training_row(
    rng: random.Random, length: int, ask_share: float = 0.4
) -> tuple[list[int], list[int]]:
    """A stream with asks all along; returns ``(tokens, labels)`` of ``length`` each."""
    document = Document()
    labels = [IGNORE]
    keys = rng.sample(range(KEYS), rng.randint(4, KEYS if rng.random() < 0.5 else 12))
    while len(document.tokens) + 3 <= length:
        if rng.random() < FILLER_SHARE:
            document.filler(rng)
        elif document.values and rng.random() < ask_share:
            key = rng.choice(list(document.values))
            document.ask(key)
            labels += [IGNORE, FIRST_VALUE + document.values[key]]
        else:
            key = rng.choice(keys)
            if document.values and rng.random() < COPY_SHARE:
                source = rng.choice(list(document.values))
                if source != key:
                    document.copy(key, source)
            else:
                document.set(key, rng.randrange(VALUES))
        labels += [IGNORE] * (len(document.tokens) - len(labels))
    padding = length - len(document.tokens)
    return document.tokens + [PAD] * padding, labels + [IGNORE] * padding
