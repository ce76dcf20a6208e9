"""Two runs of the same prompts, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tests.vllm.served import Reply, Served

NOISE_LEAST = 0.05
"""Log-probabilities of bfloat16 models differ by so much for no reason at all."""


def distance(run: Sequence[Reply], reference: Sequence[Reply]) -> float:
    """Largest difference of log-probabilities, over tokens that follow the same tokens."""
    worst = 0.0
    for ours, theirs in zip(run, reference, strict=True):
        for step, token in enumerate(ours.tokens):
            worst = max(worst, abs(ours.logprobs[step] - theirs.logprobs[step]))
            if token != theirs.tokens[step]:
                break
    return worst


def clear_flips(run: Sequence[Reply], reference: Sequence[Reply], floor: float) -> list[float]:
    """Margins of the reference where a reply first differs, those above `floor`: no noise did it.

    Where the likeliest token and the runner-up are closer than the noise, either is right.
    """
    margins = []
    for ours, theirs in zip(run, reference, strict=True):
        for step, token in enumerate(ours.tokens):
            if token != theirs.tokens[step]:
                margins.append(theirs.margins[step])
                break
    return [margin for margin in margins if margin > floor]


def alike(run: Sequence[Reply], reference: Sequence[Reply]) -> int:
    """Replies with the same tokens."""
    return sum(a.tokens == b.tokens for a, b in zip(run, reference, strict=True))


def cold(
    engine: Served, prompts: Sequence[Sequence[int]], salts: Sequence[str] = ()
) -> list[Reply]:
    """Each prompt alone, vLLM's own cache emptied before it; `salts`: one a prompt, or none."""
    replies = []
    for number, prompt in enumerate(prompts):
        engine.reset()
        replies += engine.generate([prompt], salts=salts[number : number + 1])
    return replies
