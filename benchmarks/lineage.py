"""Do errors compound when pages computed after a replay are reused?  A chain of resumes.

    python -m benchmarks.lineage [--model DIR] [--text FILE] [--resumes N] [--margin W] [--json]

Engine by engine, each resumes from the pages that the one before stored, reads `step` more tokens
and stores them in turn, so that lineage grows by one a resume::

    exact prefix --put--> resume 1 --put--> resume 2 --put--> ... resume N      lineage 1 .. N

Printed at every step: the lineage, KL and agreement of the next 32 tokens with a full prefill,
and beside them one single replay from exact pages at the same depth, the zero state, and the same
chain in a namespace that stores only lineage 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from anchorstore.client import ClientOptions
from anchorstore.testing.daemon import Daemon
from engine_adapter.strategy import NoReuse, zero_state
from engine_adapter.transformers.compare import (
    Continuation,
    agreement,
    exact_continuation,
    forced_continuation,
)
from engine_adapter.transformers.engine import Engine
from engine_adapter.transformers.text import TextCodec

MODEL = pathlib.Path(__file__).parent.parent / "engine_adapter" / "models" / "text"
COUNT = 32


@dataclasses.dataclass(frozen=True)
class Chain:
    """What is run.  Sizes in tokens."""

    model: pathlib.Path
    text: pathlib.Path
    resumes: int
    first: int
    step: int
    margin: int


@dataclasses.dataclass(frozen=True)
class Step:
    """One resume of the chain."""

    resume: int
    prompt_tokens: int
    reused_tokens: int
    lineage: int
    top1_agreement: float
    mean_kl: float


def engine(chain: Chain, address: str, salt: bytes, max_lineage: int) -> Engine:
    """A fresh engine in the namespace of `salt`."""
    return Engine.load(
        chain.model,
        client_address=address,
        options=ClientOptions(name="lineage", deadline_seconds=30, max_lineage=max_lineage),
        margin_tokens=chain.margin,
        salt=salt,
    )


def prompts(chain: Chain) -> list[list[int]]:
    """The prompt of every resume: each is the one before and `step` tokens more."""
    tokens = TextCodec.load(chain.model).encode(chain.text.read_text(encoding="utf-8"))
    return [tokens[: chain.first + chain.step * n] for n in range(1, chain.resumes + 1)]


def run_chain(
    chain: Chain, address: str, max_lineage: int, exact: Sequence[Continuation]
) -> list[Step]:
    """Every resume by a fresh engine, from what the ones before have stored."""
    salt = f"chain {max_lineage}".encode()
    asked = prompts(chain)
    reader = engine(chain, address, salt, max_lineage)
    reader.generate(asked[0][: chain.first], 1, strategy=NoReuse())
    reader.close()
    steps = []
    for number, prompt in enumerate(asked, 1):
        one = engine(chain, address, salt, max_lineage)
        reference = exact[number - 1]
        found = forced_continuation(one, prompt, reference.tokens, store_pages=True)
        one.close()
        measured = agreement(reference, found)
        resume = found.resume
        steps.append(
            Step(
                number,
                len(prompt),
                resume.reused_tokens,
                resume.lineage,
                round(measured.top1, 4),
                round(measured.mean_kl, 6),
            )
        )
    return steps


def controls(chain: Chain, address: str, exact: Sequence[Continuation]) -> list[dict[str, Any]]:
    """At the same depths: one replay from exact pages, and the zero state."""
    asked = prompts(chain)
    one = engine(chain, address, b"controls", 255)
    one.prefill(asked[-1][: -chain.step], strategy=NoReuse())
    found = []
    for number, prompt in enumerate(asked, 1):
        reference = exact[number - 1]
        single = forced_continuation(one, prompt[: len(prompt)], reference.tokens)
        zero = forced_continuation(one, prompt, reference.tokens, zero_state(one.strategy.budget))
        found.append(
            {
                "resume": number,
                "single_lineage": single.resume.lineage,
                "single_mean_kl": round(agreement(reference, single).mean_kl, 6),
                "zero_state_mean_kl": round(agreement(reference, zero).mean_kl, 6),
            }
        )
    one.close()
    return found


def run(chain: Chain) -> dict[str, Any]:
    """Both chains and the controls against one daemon."""
    plain = Engine.load(chain.model)
    exact = [exact_continuation(plain, prompt, COUNT) for prompt in prompts(chain)]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"tiers.dram.capacity": "512MiB"}
        with Daemon(pathlib.Path(folder), settings=settings) as daemon:
            found = {
                "any": [
                    dataclasses.asdict(s) for s in run_chain(chain, daemon.address, 255, exact)
                ],
                "1": [dataclasses.asdict(s) for s in run_chain(chain, daemon.address, 1, exact)],
            }
            beside = controls(chain, daemon.address, exact)
    return {"margin_tokens": chain.margin, "max_lineage": found, "controls": beside}


def render(document: dict[str, Any]) -> str:
    """For people."""
    lines = [
        (
            "resume  prompt | any lineage: lineage  reused    KL    top-1 "
            "| max_lineage 1: lineage  reused    KL    top-1 | one replay KL  zero state KL"
        )
    ]
    chains = document["max_lineage"]
    for free, bound, beside in zip(chains["any"], chains["1"], document["controls"], strict=True):
        cells = [f"{free['resume']:6d}  {free['prompt_tokens']:6d}"]
        for width, step in ((20, free), (22, bound)):
            cells.append(
                f"{step['lineage']:{width}d}  {step['reused_tokens']:6d}  "
                f"{step['mean_kl']:.4f}  {step['top1_agreement']:.3f}"
            )
        cells.append(f"{beside['single_mean_kl']:13.4f}  {beside['zero_state_mean_kl']:13.4f}")
        lines.append(" | ".join(cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lineage")
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", type=pathlib.Path, default=MODEL / "sample.txt")
    parser.add_argument("--resumes", type=int, default=10)
    parser.add_argument("--first", type=int, default=1024, help="tokens of the exact prefix")
    parser.add_argument("--step", type=int, default=256, help="tokens that a resume adds")
    parser.add_argument("--margin", type=int, default=0, help="resume margin W in tokens")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    torch.set_num_threads(2)
    document = run(Chain(**options))
    print(json.dumps(document, indent=1) if as_json else render(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
