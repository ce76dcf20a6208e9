"""Measure what suffix replay does to a shipped model, beside its controls.

``python -m benchmarks.training.evaluate --model engine_adapter/models/text [--json]``

Every figure stands beside the exact state, the zero state (KV only), and the cheap rival: KV only
with the last W tokens of the prefix computed again. A row ``4/64`` takes anchors from the last
four positions of each 64-token page, as many as 5 % of the prefix.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import Qwen3_5ForCausalLM

from benchmarks.training.models import TEXT, load_fp32
from benchmarks.training.recall_task import IGNORE, make_exam
from benchmarks.training.reference_replay import (
    Prefix,
    dense_positions,
    page_end_positions,
    prefill,
    replay,
    resume,
)

MARGIN = 64
"""Tokens computed again before the boundary in the rows marked W=64."""

DENSE_COUNTS = (16, 64, 128)
CONTINUATION = 32
"""Bytes after the boundary over which the text model is compared."""


@dataclass(frozen=True)
class Budget:
    """One row of the table: which anchors, how many tokens computed again."""

    name: str
    kind: str
    count: int = 0
    margin: int = 0

    def positions(self, length: int) -> list[int]:
        """Anchor positions in a prefix of ``length``."""
        choose = page_end_positions if self.kind == "pages" else dense_positions
        return choose(length, self.count)


def budgets(length: int) -> list[Budget]:
    """The rows measured for a prefix of ``length`` tokens."""
    share = math.ceil(0.05 * length)
    rows = [Budget("exact", "exact"), Budget("zero state", "zero")]
    rows.append(Budget(f"4/64 k={share}", "pages", share))
    rows += [Budget(f"dense k={count}", "dense", count) for count in DENSE_COUNTS]
    tail = f" W={MARGIN}"
    rows.append(Budget("zero state" + tail, "zero", 0, MARGIN))
    rows.append(Budget(f"4/64 k={share}" + tail, "pages", share, MARGIN))
    rows.append(Budget("dense k=64" + tail, "dense", 64, MARGIN))
    return rows


class Bench:
    """A batch of equally long token rows cut at a boundary, prefilled once per margin."""

    def __init__(self, model: Qwen3_5ForCausalLM, tokens: torch.Tensor, boundary: int) -> None:
        self.model = model
        self.tokens = tokens
        self.boundary = boundary
        self._prefixes: dict[int, Prefix] = {}

    def run(self, budget: Budget) -> torch.Tensor:
        """Log-probabilities at every position from the boundary on."""
        start = self.boundary - budget.margin
        if budget.margin not in self._prefixes:
            self._prefixes[budget.margin] = prefill(self.model, self.tokens[:, :start])
        prefix = self._prefixes[budget.margin]
        states = None
        if budget.kind == "exact":
            states = replay(self.model, prefix, range(start))
        elif budget.kind != "zero":
            states = replay(self.model, prefix, budget.positions(start))
        return resume(self.model, prefix, states, self.tokens[:, start:])[:, budget.margin :]


Row = dict[str, str | float]


def text_rows(model: Qwen3_5ForCausalLM, text: bytes, length: int, documents: int) -> list[Row]:
    """KL and top-1 agreement with the exact state, over the true continuation."""
    last = len(text) - length - CONTINUATION - 1
    if last < 0:
        raise ValueError(f"a prefix of {length} needs more text than {len(text)} bytes")
    starts = [last * number // max(1, documents - 1) for number in range(documents)]
    data = torch.tensor([list(text[at : at + length + CONTINUATION + 1]) for at in starts])
    targets = data[:, length + 1 :]
    bench = Bench(model, data[:, :-1], length)
    rows: list[Row] = []
    exact = torch.empty(0)
    for budget in budgets(length):
        found = bench.run(budget)
        exact = found if budget.kind == "exact" else exact
        divergence = (exact.exp() * (exact - found)).sum(-1)
        agrees = (exact.argmax(-1) == found.argmax(-1)).float()
        nats = -found.gather(-1, targets.unsqueeze(-1)).mean().item()
        row: Row = {"row": budget.name, "bits": nats / math.log(2)}
        row |= {"kl_1_8": divergence[:, :8].mean().item(), "kl_1_32": divergence.mean().item()}
        row |= {"top1": agrees.mean().item()}
        rows.append(row)
    return rows


def recall_rows(
    model: Qwen3_5ForCausalLM,
    length: int,
    documents: int,
    *,
    redundant: bool = False,
    seed: int = 123,
) -> list[Row]:
    """Accuracy of the answers after the boundary, and the part of the exact accuracy kept."""
    rng = random.Random(seed)
    keys = 6 if redundant else 12
    exams = [make_exam(rng, length, keys=keys, redundant=redundant) for _ in range(documents)]
    tokens = torch.tensor([exam.prefix + exam.asks for exam in exams])
    labels = torch.tensor([exam.labels for exam in exams])[:, length:]
    asked = labels != IGNORE
    bench = Bench(model, tokens, length)
    rows: list[Row] = []
    exact, exact_logs = 0.0, torch.empty(0)
    for budget in budgets(length):
        found = bench.run(budget)[asked]
        accuracy = (found.argmax(-1) == labels[asked]).float().mean().item()
        if budget.kind == "exact":
            exact, exact_logs = accuracy, found
        divergence = (exact_logs.exp() * (exact_logs - found)).sum(-1).mean().item()
        row: Row = {"row": budget.name, "accuracy": accuracy, "retention": accuracy / exact}
        rows.append(row | {"kl": divergence})
    return rows


def bf16_difference(folder: Path, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Mean loss in bits of the same weights, computed with in fp32 and in bf16.

    ``targets[i]`` is what ``tokens[i]`` predicts, or ``IGNORE``.
    """
    losses = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = load_fp32(folder).to(dtype)
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits.float()
        nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        losses[name] = nats.item() / math.log(2)
    return losses


def show(rows: list[Row]) -> None:
    """Print ``rows`` as a table."""
    names = list(rows[0])
    print(f"{names[0]:24s}" + "".join(f"{name:>11s}" for name in names[1:]))
    for row in rows:
        cells = "".join(f"{float(row[name]):11.4f}" for name in names[1:])
        print(f"{row['row']!s:24s}" + cells)


def measure_text(folder: Path, text: bytes, documents: int) -> dict[str, object]:
    """All figures of the text model."""
    model = load_fp32(folder)
    parts = [list(text[at : at + 1025]) for at in range(0, min(len(text), 32768) - 1025, 1025)]
    windows = torch.tensor(parts)
    losses = bf16_difference(folder, windows[:, :-1], windows[:, 1:])
    lengths = [length for length in (1024, 2048, 4096) if length + 64 < len(text)]
    tables = {f"n={length}": text_rows(model, text, length, documents) for length in lengths}
    return {"bits_per_byte": losses, **tables}


def measure_recall(folder: Path, documents: int) -> dict[str, object]:
    """All figures of the recall model."""
    model = load_fp32(folder)
    rng = random.Random(7)
    exams = [make_exam(rng, 512) for _ in range(32)]
    tokens = torch.tensor([exam.prefix + exam.asks for exam in exams])
    losses = bf16_difference(folder, tokens, torch.tensor([exam.labels for exam in exams]))
    return {
        "bits_per_answer": losses,
        "n=512 unique writes": recall_rows(model, 512, documents),
        "n=1024 redundant prefix": recall_rows(model, 1024, documents, redundant=True),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--text", type=Path, help="held-out text (default: sample.txt beside it)")
    parser.add_argument("--documents", type=int, default=0, help="0: 8 for text, 64 for recall")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model: Path = args.model
    if json.loads((model / "config.json").read_text())["vocab_size"] == TEXT.vocabulary:
        text = (args.text or model / "sample.txt").read_bytes()
        report = measure_text(model, text, args.documents or 8)
    else:
        report = measure_recall(model, args.documents or 64)
    if args.json:
        print(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        print(f"\n{name}")
        show(value) if isinstance(value, list) else print(value)


if __name__ == "__main__":
    main()
