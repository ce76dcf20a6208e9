"""Runs a trace: every request goes to every side, one right after the other, in turning order.

::

    request 1:  stock -> anchorstore        request 2:  anchorstore -> stock        ...

Nothing else runs meanwhile; the pause between two requests lets a server finish what it does
behind an answer (storing pages), so that it is not charged to the other.  A side may have several
replicas: requests then go round them, as behind a load balancer that knows nothing of prefixes.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.engine.client import Client
from benchmarks.engine.figures import Sample
from benchmarks.engine.reuse import Seen, ideal_reuse
from benchmarks.engine.traces import Request, Shape, Trace, generate

WARM_UP_SEED = 2**31
PREFILL_TOKENS = 1024
PREFILL_REPEATS = 3
PAUSES_AFTER_BASE = 10
"""What is not measured is long; storing it goes on for a while behind the answer."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a run counts and waits.

    Attributes:
        page_tokens, margin_tokens: of the ideal reuse.
        pause_seconds: between two requests.
    """

    page_tokens: int
    margin_tokens: int
    pause_seconds: float


class Side:
    """A variant under test: its replicas, and what they have met."""

    def __init__(self, name: str, clients: Sequence[Client], rules: Rules) -> None:
        assert clients, "a side without a server"
        self.name, self.rules = name, rules
        self.clients = list(clients)
        self._seen = Seen()
        self._answers: dict[int, tuple[int, ...]] = {}

    def ask(self, request: Request) -> Sample:
        """Sends one request and remembers what the server has computed by now."""
        prompt = request.prompt(self._answers)
        shared, rules = self._seen.shared(prompt), self.rules
        client = self.clients[request.index % len(self.clients)]
        completion = client.complete(prompt, request.answer_tokens)
        answer = completion.token_ids
        if answer is not None and len(answer) == request.answer_tokens:
            self._answers[request.index] = answer
        self._seen.add([*prompt, *(answer or ())[:-1]])
        return Sample(
            request=request.index,
            name=request.name,
            variant=self.name,
            prompt_tokens=len(prompt),
            shared_tokens=shared,
            ideal_tokens=ideal_reuse(shared, len(prompt), rules.page_tokens, rules.margin_tokens),
            measured=request.measured,
            completion=completion,
        )


def play(trace: Trace, sides: Sequence[Side], say: Say) -> list[Sample]:
    """All samples, in the order in which they were taken."""
    samples: list[Sample] = []
    step = max(1, len(trace.requests) // 10)
    for number, request in enumerate(trace.requests):
        turn = number % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            samples.append(side.ask(request))
            pauses = 1 if request.measured else PAUSES_AFTER_BASE
            time.sleep(side.rules.pause_seconds * pauses)
        if (number + 1) % step == 0:
            say(f"  {number + 1} of {len(trace.requests)} requests")
    return samples


def warm_up(shape: Shape, clients: Sequence[Client], rules: Rules) -> None:
    """Requests of every depth, so that what a server builds at first use is built."""
    once = dataclasses.replace(shape, pairs=1)
    for client in clients:
        side = Side("warm-up", [client], rules)
        for request in generate("branches", once, WARM_UP_SEED).requests:
            side.ask(request)


def prefill_seconds(shape: Shape, client: Client, seed: int) -> float:
    """Median time to the first token of 1024 tokens that nobody has seen."""
    asked = dataclasses.replace(shape, pairs=PREFILL_REPEATS, answer_tokens=1)
    requests = generate("fresh", asked, WARM_UP_SEED + 1 + seed).requests
    return statistics.median(
        client.complete(request.prompt({}), 1).first_token_seconds for request in requests
    )
