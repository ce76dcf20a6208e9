"""The training loop both recipes share: AdamW, warm-up then cosine, a length curriculum."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen3_5ForCausalLM

from benchmarks.training.models import save_bf16, use_chunk_size

IGNORE = -100
"""Label of a position that carries no loss."""

Batch = tuple[torch.Tensor, torch.Tensor]
MakeBatch = Callable[[int, int], Batch]
"""``(rows, length) -> (tokens, labels)``; ``labels[i]`` is what ``tokens[i]`` predicts."""


@dataclass(frozen=True)
class Plan:
    """How long to train, on what, and how fast to learn.

    The learning rate and the curriculum follow the part of ``minutes`` (wall clock) that has
    passed, so a run on a slower machine sees fewer tokens but the same schedule.
    """

    minutes: float
    curriculum: tuple[tuple[float, int], ...]
    tokens_per_step: int
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    seed: int = 0
    threads: int = 1

    def length(self, progress: float) -> int:
        """Sequence length once ``progress`` (0 to 1) of the budget is spent."""
        return [length for start, length in self.curriculum if progress >= start][-1]

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of ``step``."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        cosine = max(0.02, 0.5 * (1 + math.cos(math.pi * progress)))
        return self.learning_rate * warmup * cosine


def make_optimizer(model: torch.nn.Module, plan: Plan) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))


def labelled_loss(model: Qwen3_5ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross entropy over the labelled positions; only those get logits."""
    tokens, labels = batch
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    chosen = labels != IGNORE
    return F.cross_entropy(model.lm_head(hidden[chosen]), labels[chosen])


def train(
    model: Qwen3_5ForCausalLM, make_batch: MakeBatch, plan: Plan, out: Path, log_seconds: float = 60
) -> dict[str, Any]:
    """Train ``model`` in place, saving it to ``out`` at every log line; returns the record."""
    torch.set_num_threads(plan.threads)
    use_chunk_size(32)
    optimizer = make_optimizer(model, plan)
    record: dict[str, Any] = {"plan": dataclasses.asdict(plan)}
    start = last = time.monotonic()
    step = tokens = 0
    losses: list[float] = []
    while (progress := (time.monotonic() - start) / (plan.minutes * 60)) < 1:
        length = plan.length(progress)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step, progress)
        batch = make_batch(max(1, plan.tokens_per_step // length), length)
        loss = labelled_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch[0].numel()
        losses.append(loss.item())
        now = time.monotonic()
        if now - last > log_seconds:
            last = now
            bits = sum(losses) / len(losses) / math.log(2)
            losses.clear()
            print(
                f"{now - start:6.0f}s step {step} length {length} tokens {tokens / 1e6:.2f}M "
                f"loss {bits:.3f} bits, {tokens / (now - start):.0f} tokens/s",
                flush=True,
            )
            save_bf16(model, out, record | {"steps": step, "tokens": tokens, "loss_bits": bits})
            record["loss_bits"] = bits
    record |= {"steps": step, "tokens": tokens}
    save_bf16(model, out, record)
    return record
