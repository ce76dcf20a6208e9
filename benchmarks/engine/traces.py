"""Traces: what is asked of a server, in which order.  Pure and seeded.

::

    branches     base ------+--------+-------        every branch leaves a base at a random depth
                            + tail   + tail          with a tail of its own
    multi-turn   system . user . answer . user . answer ...       chats, a turn at a time, mixed
    agents       system . task . plan -+- part . tool output . answer . tool output ...
                                       +- part . tool output ...  fan-out, a step at a time, mixed
    documents    preamble . document . question       few documents, some asked about often
    fresh        nothing shared: what capturing costs when nothing is reused

Where a prompt goes on after the model's own answer it holds an `Answer`, resolved when that answer
is known; so what is shared, and the ideal reuse, are found at run time (`reuse.Seen`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.engine.reuse import DEPTH_EDGES

BRANCHES_PER_BASE = 8
TAIL_TOKENS = (8, 96)
DEEP_ENOUGH_TOKENS = 256
"""Branches leave at this depth or deeper: below it there is little to gain."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the model answered to request `request`; `scripted` where no one tells its tokens."""

    request: int
    scripted: tuple[int, ...]


Part = tuple[int, ...] | Answer


@dataclasses.dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        index: its place in the trace, from 0.
        name: what it is, for people.
        parts: the prompt, piece by piece.
        answer_tokens: how many are generated.
        measured: False for what only fills caches.
    """

    index: int
    name: str
    parts: tuple[Part, ...]
    answer_tokens: int
    measured: bool = True

    def prompt(self, answers: Mapping[int, Sequence[int]]) -> list[int]:
        """Its tokens, given the answers so far by request index (scripted where there is none)."""
        tokens: list[int] = []
        for part in self.parts:
            known = answers.get(part.request, part.scripted) if isinstance(part, Answer) else part
            tokens.extend(known)
        return tokens

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(len(p.scripted) if isinstance(p, Answer) else len(p) for p in self.parts)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What every kind of trace is made to measure from.

    Attributes:
        first_token, stop_token: the ids in use, the second exclusive.
        context_tokens: most tokens of a prompt and its answer.
        pairs: measured requests; for branches, of each depth.
        answer_tokens: generated a request.
    """

    first_token: int
    stop_token: int
    context_tokens: int
    pairs: int
    answer_tokens: int

    def __post_init__(self) -> None:
        if self.stop_token - self.first_token < 2 or self.first_token < 0:
            raise ValueError(
                f"token ids {self.first_token} to {self.stop_token}: at least two are needed"
            )
        if self.context_tokens < 1024:
            raise ValueError(f"a context of {self.context_tokens} tokens: 1024 are needed")
        if self.pairs < 1:
            raise ValueError(f"{self.pairs} pairs: at least one is needed")
        if not 1 <= self.answer_tokens <= self.context_tokens // 16:
            raise ValueError(
                f"answers of {self.answer_tokens} tokens: 1 to {self.context_tokens // 16} "
                f"fit a context of {self.context_tokens}"
            )


@dataclasses.dataclass(frozen=True)
class Trace:
    """Requests in the order in which they are sent."""

    kind: str
    seed: int
    shape: Shape
    requests: tuple[Request, ...]


class Writer:
    """Draws tokens and collects requests."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.chooser = random.Random(seed)
        self.requests: list[Request] = []

    def tokens(self, count: int) -> tuple[int, ...]:
        """Random token ids."""
        shape = self.shape
        return tuple(self.chooser.choices(range(shape.first_token, shape.stop_token), k=count))

    def between(self, least: int, most: int) -> int:
        """A random number, both ends included."""
        return self.chooser.randint(least, max(least, most))

    def ask(self, name: str, parts: Sequence[Part], *, measured: bool = True) -> Answer:
        """Adds a request; what it will be answered."""
        index = len(self.requests)
        request = Request(index, name, tuple(parts), self.shape.answer_tokens, measured)
        assert request.prompt_tokens + request.answer_tokens <= self.shape.context_tokens
        self.requests.append(request)
        return Answer(index, self.tokens(self.shape.answer_tokens))

    @property
    def measured(self) -> int:
        """Measured requests so far."""
        return sum(request.measured for request in self.requests)


def _branch(writer: Writer, base: tuple[int, ...], cut: int) -> tuple[int, ...]:
    """A tail that leaves `base` at `cut`, not later."""
    tail = writer.tokens(writer.between(*TAIL_TOKENS))
    if tail[0] != base[cut]:
        return tail
    shape = writer.shape
    width = shape.stop_token - shape.first_token
    step = writer.between(1, width - 1)
    return (shape.first_token + (tail[0] - shape.first_token + step) % width, *tail[1:])


def _branches(writer: Writer) -> None:
    shape = writer.shape
    length = shape.context_tokens - shape.answer_tokens - TAIL_TOKENS[1]
    depths = [
        (lower, min(upper, length))
        for lower, upper in zip(DEPTH_EDGES, [*DEPTH_EDGES[1:], length], strict=True)
        if DEEP_ENOUGH_TOKENS <= lower < length
    ]
    cuts = [
        writer.chooser.randrange(lower, upper)
        for lower, upper in depths
        for _ in range(shape.pairs)
    ]
    writer.chooser.shuffle(cuts)
    for start in range(0, len(cuts), BRANCHES_PER_BASE):
        base = writer.tokens(length)
        writer.ask("base", [base], measured=False)
        for cut in cuts[start : start + BRANCHES_PER_BASE]:
            writer.ask("branch", [base[:cut], _branch(writer, base, cut)])


def _mixed(writer: Writer, talks: Callable[[], Iterator[None]], at_once: int) -> None:
    """Advances `at_once` talks in random order, a request at a time, until enough is asked."""
    running = [talks() for _ in range(at_once)]
    while writer.measured < writer.shape.pairs:
        chosen = writer.chooser.randrange(at_once)
        try:
            next(running[chosen])
        except StopIteration:
            running[chosen] = talks()


class _Talk:
    """A prompt that grows by what is said and answered, as long as the context has room."""

    def __init__(self, writer: Writer, parts: Sequence[Part]) -> None:
        self.writer = writer
        self.parts = list(parts)
        self.length = sum(len(p.scripted) if isinstance(p, Answer) else len(p) for p in parts)

    def has_room(self, more: int) -> bool:
        """Whether `more` tokens and an answer to them still fit."""
        shape = self.writer.shape
        return self.length + more + shape.answer_tokens <= shape.context_tokens

    def say(self, name: str, words: tuple[int, ...]) -> None:
        """Asks with `words` added; the answer becomes a part of the prompt."""
        self.parts.append(words)
        answer = self.writer.ask(name, self.parts)
        self.parts.append(answer)
        self.length += len(words) + len(answer.scripted)


def _multi_turn(writer: Writer) -> None:
    context = writer.shape.context_tokens
    systems = [writer.tokens(writer.between(context // 16, context // 8)) for _ in range(2)]

    def chat() -> Iterator[None]:
        talk = _Talk(writer, [writer.chooser.choice(systems)])
        turn = 1
        while talk.has_room(words := writer.between(context // 32, context // 8)):
            talk.say(f"turn {turn}", writer.tokens(words))
            turn += 1
            yield

    _mixed(writer, chat, at_once=4)


def _agents(writer: Writer) -> None:
    context = writer.shape.context_tokens
    system = writer.tokens(context // 6)

    def part_of(plan: _Talk) -> Iterator[None]:
        talk = _Talk(writer, plan.parts)
        name = "part"
        while talk.has_room(words := writer.between(context // 32, context // 8)):
            talk.say(name, writer.tokens(words))  # what to do, then what the tools gave
            name = "tool output"
            yield

    def task() -> Iterator[None]:
        plan = _Talk(writer, [system])
        plan.say("plan", writer.tokens(writer.between(context // 16, context // 6)))
        yield
        parts = [part_of(plan) for _ in range(writer.between(3, 5))]
        steps = writer.between(2, 4)
        for _ in range(steps):
            for part in parts:  # they run at the same time
                if next(part, "full") is None:
                    yield

    _mixed(writer, task, at_once=2)


def _documents(writer: Writer) -> None:
    shape = writer.shape
    preamble = writer.tokens(writer.between(32, 128))
    most = shape.context_tokens - shape.answer_tokens - TAIL_TOKENS[1] - len(preamble)
    count = max(2, shape.pairs // 6)
    documents = [writer.tokens(writer.between(most // 4, most)) for _ in range(count)]
    weights = [1 / (place + 1) for place in range(count)]
    while writer.measured < shape.pairs:
        document = writer.chooser.choices(documents, weights)[0]
        question = writer.tokens(writer.between(*TAIL_TOKENS))
        writer.ask("question", [preamble, document, question])


def _fresh(writer: Writer) -> None:
    shape = writer.shape
    for _ in range(shape.pairs):
        length = min(1024, shape.context_tokens - shape.answer_tokens)
        writer.ask("fresh", [writer.tokens(length)])


_KINDS: dict[str, Callable[[Writer], None]] = {
    "branches": _branches,
    "multi-turn": _multi_turn,
    "agents": _agents,
    "documents": _documents,
    "fresh": _fresh,
}
KINDS = tuple(_KINDS)
"""Kinds of traces, as asked for on the command line."""


def generate(kind: str, shape: Shape, seed: int) -> Trace:
    """The trace of a seed: the same arguments give the same requests on every machine."""
    writer = Writer(shape, seed)
    _KINDS[kind](writer)
    return Trace(kind, seed, shape, tuple(writer.requests))
