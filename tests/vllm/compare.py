"""Two runs of the same prompts, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tests.vllm.served import Reply, Served

NOISE_LEAST = 3 / 64
"""Logits are bfloat16: between 2 and 4, where those of the tiny models lie, one is 1/64 from the
next.  A floor that was measured on a few prompts may be less than three such steps by chance."""
CHANCE = 2.0
"""The largest of two crowds' differences may well be above another two's, not twice as large."""


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
    """Margins of the reference where a reply first differs, those that no noise explains.

    Where every log-probability is off by up to `floor`, the likeliest token and the runner-up may
    change places if they are less than twice that apart: then either is right.
    """
    margins = []
    for ours, theirs in zip(run, reference, strict=True):
        for step, token in enumerate(ours.tokens):
            if token != theirs.tokens[step]:
                margins.append(theirs.margins[step])
                break
    return [margin for margin in margins if margin > 2 * floor]


def agreed(run: Sequence[Reply], reference: Sequence[Reply]) -> int:
    """Tokens before the first that differs, over all replies."""
    count = 0
    for ours, theirs in zip(run, reference, strict=True):
        same = [a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True)]
        count += same.index(False) if False in same else len(same)
    return count


def cold(
    engine: Served, prompts: Sequence[Sequence[int]], salts: Sequence[str] = ()
) -> list[Reply]:
    """Each prompt alone, vLLM's own cache emptied before it; `salts`: one a prompt, or none."""
    replies = []
    for number, prompt in enumerate(prompts):
        engine.reset()
        replies += engine.generate([prompt], salts=salts[number : number + 1])
    return replies
