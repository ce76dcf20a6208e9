"""How near a resumed sequence comes to a full prefill: the same tokens forced through both.

::

    prompt --NoReuse--> exact logits and greedy continuation c1 .. cm
    prompt --strategy-> logits before c1, then c1 .. c(m-1) forced --> logits before c2 .. cm
    agreement = share of equal argmax;  KL(exact || resumed), mean over the m positions, in nats

Forcing one continuation keeps every position comparable: a first difference cannot snowball.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from engine_adapter.strategy import NoReuse, Strategy
from engine_adapter.transformers.engine import Engine, Resume


@dataclasses.dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a prompt.

    Attributes:
        tokens: m token ids.
        log_probs: float32 [m, vocabulary], the distribution before each of them.
        ttft_seconds: time to the first of them.
        resume: what was reused to get there.
    """

    tokens: list[int]
    log_probs: torch.Tensor
    ttft_seconds: float
    resume: Resume


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """Of one continuation with the exact one.

    Attributes:
        top1: share of positions whose most probable token is the same, 0 to 1.
        mean_kl: mean KL divergence from the exact distribution, nats.
    """

    top1: float
    mean_kl: float


def exact_continuation(engine: Engine, prompt: Sequence[int], count: int) -> Continuation:
    """The greedy continuation of `count` tokens after a full prefill; stores nothing."""
    result = engine.generate(prompt, count, strategy=NoReuse(), keep_logits=True, store_pages=False)
    assert result.logits is not None, "logits were asked for"
    return Continuation(
        result.tokens, result.logits.log_softmax(-1), result.ttft_seconds, result.resume
    )


def forced_continuation(
    engine: Engine,
    prompt: Sequence[int],
    tokens: Sequence[int],
    strategy: Strategy | None = None,
    *,
    store_pages: bool = False,
) -> Continuation:
    """`prompt` by `strategy` (the engine's own by default), then `tokens` forced after it."""
    result = engine.generate(
        prompt, 1, strategy=strategy, keep_logits=True, store_pages=store_pages
    )
    assert result.logits is not None, "logits were asked for"
    result.session.take_pending()
    forced = list(tokens[:-1])
    logits = result.logits
    if forced:
        logits = torch.cat([logits, result.session.extend(forced, len(forced))])
    return Continuation(list(tokens), logits.log_softmax(-1), result.ttft_seconds, result.resume)


def agreement(exact: Continuation, other: Continuation) -> Agreement:
    """How far `other` is from `exact`; both hold the same tokens."""
    assert exact.tokens == other.tokens, "not the same continuation"
    same = exact.log_probs.argmax(-1) == other.log_probs.argmax(-1)
    difference = exact.log_probs - other.log_probs
    divergence = (exact.log_probs.exp() * difference).sum(-1)
    mean_kl = max(0.0, float(divergence.mean()))  # rounding can take a zero below zero
    return Agreement(float(same.float().mean()), mean_kl)
