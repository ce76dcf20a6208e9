"""Workloads, made up from a seed: chats, branches, agents, documents.

::

    multi-turn   system . user . answer . user . answer ...     many chats at once, with pauses
    branches     base -------+--------+------- answer           long prompts, left at any token
                             + tail   + tail . answer           by a dozen others each
    cuts         the same of prompts below 8192 tokens          no state of a grid lies in them
    rounds       prompt . question . answer, one by one         as many prompts as ever, in turn
    agents       system . task . answer . output . answer -+- output . answer ...
                                     |                     +- output . answer ...  fan-out
                                     +- output . answer ...     gone back to, at any token
    documents    preamble . document . question . answer        few documents asked about often

Sizes and pauses are log-normal, what is popular follows Zipf's law.  Sessions start by a Poisson
process and ask when their pause is over, so what is shared is mixed with what is not.

Priorities are what an application would know: a chat that goes on, a prompt that others will
branch from, an agent's main line, and the tenth of the documents that is asked about most have 1,
all else has 0.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Generator

import numpy as np

from benchmarks.trace.trace import Text, Trace, TraceWriter

Session = Generator[float, float, None]
"""Asks a request between two yields; yields the seconds until its next, is sent the time."""

CONTEXT_TOKENS = 40_000
"""Most tokens of a prompt."""


class _Chance:
    """The draws of a trace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def size(self, median: float, spread: float, most: float) -> int:
        """A log-normal number of tokens, at least 1."""
        return max(1, int(min(most, self.random.lognormvariate(math.log(median), spread))))

    def pause(self, median_seconds: float, spread: float) -> float:
        """A log-normal pause in seconds."""
        return self.random.lognormvariate(math.log(median_seconds), spread)


class _Popular:
    """Picks one of `count`: the nth with a chance of 1 / n."""

    def __init__(self, chance: _Chance, count: int) -> None:
        self._random = chance.random
        self._bounds = np.cumsum(1 / np.arange(1, count + 1))

    def pick(self) -> int:
        """Its number, from 0."""
        drawn = self._random.random() * self._bounds[-1]
        return int(np.searchsorted(self._bounds, drawn, side="right"))


def _play(
    writer: TraceWriter,
    chance: _Chance,
    begin: Callable[[], Session],
    gap_seconds: float,
    requests: int,
) -> None:
    """Starts sessions, one each `gap_seconds` on average, until enough was asked."""
    waiting: list[tuple[float, int, Session]] = []
    started, next_start = 0, 0.0
    while len(writer) < requests:
        if not waiting or next_start <= waiting[0][0]:
            now, session = next_start, begin()
            pause = next(session)
            heapq.heappush(waiting, (now + pause, started, session))
            started += 1
            next_start += chance.random.expovariate(1 / gap_seconds)
            continue
        now, number, session = heapq.heappop(waiting)
        try:
            pause = session.send(now)
        except StopIteration:
            continue
        heapq.heappush(waiting, (now + pause, number, session))


def _multi_turn(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    systems = [writer.write(writer.empty, chance.size(800, 0.8, 4000)) for _ in range(8)]
    popular = _Popular(chance, len(systems))

    def chat() -> Session:
        text = systems[popular.pick()]
        now = yield 0.0
        for turn in itertools.count():
            pasted = chance.random.random() < 0.1
            words = chance.size(2500, 0.7, 12_000) if pasted else chance.size(90, 1.1, 2000)
            text = writer.write(text, words)
            if text.tokens > CONTEXT_TOKENS:
                return
            text = writer.ask(text, chance.size(250, 0.9, 2000), now, int(turn > 0))
            if chance.random.random() < 1 / 7:
                return
            now = yield chance.pause(60, 1.4)

    _play(writer, chance, chat, 4.0, requests)


def _branched(
    writer: TraceWriter, chance: _Chance, requests: int, base_tokens: tuple[float, float, float]
) -> None:
    """Prompts of a median, a spread and a most, each left by others."""

    def branched() -> Session:
        base = writer.write(writer.empty, chance.size(*base_tokens))
        now = yield 0.0
        writer.ask(base, chance.size(150, 0.8, 1500), now, 1)
        for _ in range(chance.size(12, 0.5, 40)):
            now = yield chance.pause(60, 1.4)
            depth = chance.random.randint(base.tokens // 8, base.tokens)
            tail = writer.write(writer.cut(base, depth), chance.size(120, 0.8, 1500))
            writer.ask(tail, chance.size(150, 0.8, 1500), now)

    _play(writer, chance, branched, 30.0, requests)


def _branches(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    _branched(writer, chance, requests, (12_000, 0.6, 36_000))


def _cuts(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    _branched(writer, chance, requests, (5000, 0.4, 8000))


def _rounds(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    count = max(2, requests // 8)
    prompts = [writer.write(writer.empty, chance.size(5000, 0.3, 8000)) for _ in range(count)]
    for number in range(requests):
        question = writer.write(prompts[number % count], chance.size(60, 0.7, 400))
        writer.ask(question, chance.size(60, 0.8, 400), 2.0 * number)


class _Task:
    """What an agent has written so far: the texts that it can go back to."""

    def __init__(self, writer: TraceWriter, chance: _Chance, system: Text) -> None:
        self.writer = writer
        self.chance = chance
        self.least_tokens = system.tokens
        self.texts = [writer.write(system, chance.size(500, 0.8, 4000))]

    def step(self, text: Text, now: float) -> None:
        """A tool's output, or an instruction, and the answer to it."""
        prompt = self.writer.write(text, self.chance.size(500, 1.1, 8000))
        if prompt.tokens <= CONTEXT_TOKENS:
            answer, goes_on = self.chance.size(150, 0.8, 1500), text is self.texts[-1]
            self.texts.append(self.writer.ask(prompt, answer, now, int(goes_on)))

    def earlier(self) -> Text:
        """One of the texts, cut at any token: an edit, another attempt, a rewind."""
        text = self.chance.random.choice(self.texts[-12:])
        return self.writer.cut(text, self.chance.random.randint(self.least_tokens, text.tokens))


def _agents(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    systems = [writer.write(writer.empty, chance.size(4000, 0.5, 10_000)) for _ in range(4)]
    popular = _Popular(chance, len(systems))

    def work() -> Session:
        task = _Task(writer, chance, systems[popular.pick()])
        now = yield 0.0
        for _ in range(chance.size(25, 0.7, 120)):
            drawn = chance.random.random()
            if drawn < 0.08:  # parts that run at the same time
                plan = task.texts[-1]
                for _ in range(chance.random.randint(3, 5)):
                    task.step(plan, now)
                    now = yield 1.0
            else:
                task.step(task.earlier() if drawn < 0.33 else task.texts[-1], now)
            waits = chance.random.random() < 0.08  # for a person
            now = yield chance.pause(900, 1.0) if waits else chance.pause(12, 0.9)

    _play(writer, chance, work, 15.0, requests)


def _documents(writer: TraceWriter, chance: _Chance, requests: int) -> None:
    preamble = writer.write(writer.empty, 400)
    count = max(4, requests // 12)
    documents = [writer.write(preamble, chance.size(6000, 0.8, 36_000)) for _ in range(count)]
    popular = _Popular(chance, count)

    def reader() -> Session:
        number = popular.pick()
        text, priority = documents[number], int(number < count // 10)
        now = yield 0.0
        while True:
            text = writer.write(text, chance.size(60, 0.7, 400))
            if text.tokens > CONTEXT_TOKENS:
                return
            text = writer.ask(text, chance.size(150, 0.8, 1000), now, priority)
            if chance.random.random() < 0.7:
                return
            now = yield chance.pause(45, 1.0)

    _play(writer, chance, reader, 3.0, requests)


_KINDS: dict[str, Callable[[TraceWriter, _Chance, int], None]] = {
    "multi-turn": _multi_turn,
    "branches": _branches,
    "cuts": _cuts,
    "rounds": _rounds,
    "agents": _agents,
    "documents": _documents,
}
KINDS = tuple(_KINDS)
"""Names of the workloads."""


def generate(kind: str, requests: int, seed: int, page_tokens: int) -> Trace:
    """The workload of a seed: the same arguments give the same requests on every machine."""
    assert requests >= 1, requests
    writer = TraceWriter(page_tokens)
    _KINDS[kind](writer, _Chance(seed), requests)
    return writer.trace(kind)
