"""What a soak asks and what it breaks, decided beforehand from a seed.  Pure: no clock, no I/O.

::

    traces (branches, multi-turn, agents, documents, fresh)  --book-->  entries, each with a prompt
    plan(seed, seconds)   faults:  |--kill--|  |--freeze--|  |--stop--|  ...   one a period
    steps(client)         entry . entry . entry (dropped) . entry ...          as long as it runs

The prompts are few, so that each can be answered once without any cache, and are asked again and
again: what is new to every cache is an old prompt under a new salt.  Everybody's salt changes with
the era, so that prefixes are met for the first time, and again, all the time.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from benchmarks.engine.traces import Request, Shape, Trace, generate

FaultKind = Literal["kill", "freeze", "stop"]
FAULTS: tuple[tuple[FaultKind, bool], ...] = (
    ("kill", False),
    ("kill", True),
    ("freeze", False),
    ("stop", False),
    ("stop", True),
    ("freeze", True),
)
"""Kinds, each with both of its forms; all of them come before one comes again."""
BRIEF_SECONDS = (0.3, 1.0)
"""Shorter than a client's patience with a call that is under way."""
LONG_SECONDS = (3.0, 9.0)
"""Longer than any call waits for an answer."""
RECOVERY_SECONDS = 5.0
"""The store is there for at least as long between two faults."""

KIND_PAIRS = {"branches": 3, "multi-turn": 8, "agents": 8, "documents": 6, "fresh": 3}
"""Measured requests of each kind of trace; of branches, at each depth.  Twice as many, and so on,
in a larger book."""
KIND_WEIGHTS = {"branches": 4, "multi-turn": 3, "agents": 3, "documents": 2, "fresh": 1}
WALKED = ("multi-turn", "agents")
"""Kinds whose requests go on from one another: a client asks them in their order."""
FIRST_TOKEN, STOP_TOKEN = 3, 259
ANSWER_TOKENS = 16
DROPPED_SHARE = 0.1
DROP_SECONDS = (0.0, 1.5)

Key = tuple[str, int]
"""A prompt: kind of trace, and index in it."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What befalls the daemon.

    Attributes:
        at_seconds: since the start.
        kind: "kill" and "stop" (which drains) lose what is stored, "freeze" does not.
        down_seconds: until it is there again.
        warm: whether the store is of use at once: a freeze is brief; after a kill or a stop,
            the beginnings that prompts share are read again first.
    """

    at_seconds: float
    kind: FaultKind
    down_seconds: float
    warm: bool

    @property
    def name(self) -> str:
        """For people."""
        warm = {"freeze": ", brief"}.get(self.kind, ", store warmed") if self.warm else ""
        return f"{self.kind}{warm}"


@dataclasses.dataclass(frozen=True)
class Step:
    """One request of one client.

    Attributes:
        key: what is asked.
        fresh: under a salt of its own, so that no cache has it.
        drop_seconds: the client hangs up so long after asking; None: it waits for the answer.
    """

    key: Key
    fresh: bool
    drop_seconds: float | None


@dataclasses.dataclass(frozen=True)
class Book:
    """Every prompt of a soak, by key, in an order in which answers come before what needs them."""

    requests: Mapping[Key, Request]

    def keys(self, kind: str) -> list[Key]:
        """Those of one kind, in their order."""
        return [key for key in self.requests if key[0] == kind]

    def bases(self) -> list[Key]:
        """Prompts that others begin as."""
        return [key for key, request in self.requests.items() if not request.measured]

    def prompt(self, key: Key, answers: Mapping[Key, Sequence[int]]) -> list[int]:
        """Tokens of a prompt, with the answers to those it goes on from."""
        own = {index: answer for (kind, index), answer in answers.items() if kind == key[0]}
        return self.requests[key].prompt(own)


def book(seed: int, context_tokens: int, size: int = 1) -> Book:
    """The prompts of a seed, `size` times as many as the smallest book has."""
    traces: list[Trace] = []
    for kind, pairs in KIND_PAIRS.items():
        shape = Shape(FIRST_TOKEN, STOP_TOKEN, context_tokens, pairs * size, ANSWER_TOKENS)
        traces.append(generate(kind, shape, seed))
    return Book({(trace.kind, each.index): each for trace in traces for each in trace.requests})


@dataclasses.dataclass(frozen=True)
class Plan:
    """A soak of `seconds`, from a seed.

    Attributes:
        period_seconds: between the beginnings of two faults, on average.
        era_seconds: after so long every client changes its salt.
    """

    seed: int
    seconds: float
    period_seconds: float
    era_seconds: float

    def __post_init__(self) -> None:
        least = LONG_SECONDS[1] + RECOVERY_SECONDS
        if self.period_seconds < least:
            raise ValueError(f"a fault every {self.period_seconds} s: {least} s are needed")

    def faults(self) -> Iterator[Fault]:
        """One in every whole period; over, with time to recover, before the period is."""
        source = random.Random(f"{self.seed} faults")
        kinds: list[tuple[FaultKind, bool]] = []
        for number in range(int(self.seconds // self.period_seconds)):
            if not kinds:
                kinds = list(FAULTS)
                source.shuffle(kinds)
            kind, warm = kinds.pop()
            brief = warm and kind == "freeze"
            down = source.uniform(*(BRIEF_SECONDS if brief else LONG_SECONDS))
            latest = self.period_seconds - down - RECOVERY_SECONDS
            start = number * self.period_seconds + source.uniform(0.0, latest)
            yield Fault(start, kind, down, warm)

    def era(self, elapsed_seconds: float) -> int:
        """Which era it is."""
        return int(elapsed_seconds // self.era_seconds)

    def steps(self, client: int, prompts: Book) -> Iterator[Step]:
        """What a client asks, without end."""
        source = random.Random(f"{self.seed} client {client}")
        kinds, weights = list(KIND_WEIGHTS), list(KIND_WEIGHTS.values())
        keys = {kind: prompts.keys(kind) for kind in kinds}
        walks = {kind: itertools.cycle(keys[kind]) for kind in WALKED}
        for kind, walk in walks.items():
            for _ in range(source.randrange(len(keys[kind]))):
                next(walk)
        while True:
            kind = source.choices(kinds, weights)[0]
            key = next(walks[kind]) if kind in walks else source.choice(keys[kind])
            dropped = source.random() < DROPPED_SHARE
            drop = source.uniform(*DROP_SECONDS) if dropped else None
            yield Step(key, kind == "fresh", drop)
