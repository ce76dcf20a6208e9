"""Train the byte-level English model: a token is a byte, so there is no tokenizer.

Needs ``train.txt`` from :mod:`benchmarks.training.corpus`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.training.loop import Batch, MakeBatch, Plan, train
from benchmarks.training.models import TEXT, build_model

CURRICULUM = ((0.0, 256), (0.45, 512), (0.75, 1024), (0.92, 2048))
TOKENS_PER_STEP = 2048


def byte_batches(data: npt.NDArray[np.uint8], seed: int) -> MakeBatch:
    """Windows at random places of ``data``; every position predicts the next byte."""
    rng = np.random.default_rng(seed)

    def make(rows: int, length: int) -> Batch:
        starts = rng.integers(0, len(data) - length - 1, rows)
        windows = np.stack([data[start : start + length + 1] for start in starts])
        tokens = torch.from_numpy(windows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]

    return make


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="train.txt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=48.0)
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
    data = np.frombuffer(args.corpus.read_bytes(), np.uint8)
    print(train(build_model(TEXT, args.seed), byte_batches(data, args.seed), plan, args.out))


if __name__ == "__main__":
    main()
