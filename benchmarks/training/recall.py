"""Train the recall model on the stream of :mod:`benchmarks.training.recall_task`."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch

from benchmarks.training.loop import Batch, MakeBatch, Plan, train
from benchmarks.training.models import RECALL, build_model
from benchmarks.training.recall_task import training_row

CURRICULUM = ((0.0, 64), (0.1, 128), (0.3, 256), (0.65, 512))
TOKENS_PER_STEP = 2048


def recall_batches(seed: int) -> MakeBatch:
    """Fresh streams for every step."""
    rng = random.Random(seed)

    def make(rows: int, length: int) -> Batch:
        pairs = [training_row(rng, length) for _ in range(rows)]
        tokens = torch.tensor([tokens for tokens, _ in pairs])
        return tokens, torch.tensor([labels for _, labels in pairs])

    return make


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=24.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    plan = Plan(
        minutes=args.minutes,
        curriculum=CURRICULUM,
        tokens_per_step=TOKENS_PER_STEP,
        seed=args.seed,
        threads=args.threads,
    )
    print(train(build_model(RECALL, args.seed), recall_batches(args.seed), plan, args.out))


if __name__ == "__main__":
    main()
