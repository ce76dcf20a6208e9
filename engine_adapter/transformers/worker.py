"""One engine in a process of its own, for the demo: JSON lines in, JSON lines out.

::

    {"op": "read", "turns": [[ids...], ...], "new_tokens": m}
        --> {"tokens": [all ids of the conversation], "pages_sealed": n}
    {"op": "branch", "prompt": [ids...], "continuation": [ids...]}
        --> one request's measurements (see `measure_branch`)

The first line out says that the model is loaded: {"ready": true}.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from anchorstore.client import ClientOptions
from anchorstore.errors import AnchorStoreError
from engine_adapter.strategy import KvOnly, NoReuse, SuffixReplay, zero_state
from engine_adapter.transformers.compare import (
    agreement,
    exact_continuation,
    forced_continuation,
)
from engine_adapter.transformers.engine import Engine

TIMED_PAIRS = 3


def read(engine: Engine, turns: Sequence[Sequence[int]], new_tokens: int) -> dict[str, Any]:
    """A conversation: each turn's tokens, then `new_tokens` generated, in one live session."""
    session, conversation = None, list[int]()
    for turn in turns:
        result = engine.generate(turn, new_tokens, session=session)
        conversation += [*turn, *result.tokens]
        session = result.session
    return {"tokens": conversation, "pages_sealed": engine.counters["put_sealed"] // 2}


def measure_branch(
    engine: Engine, prompt: Sequence[int], continuation: Sequence[int]
) -> dict[str, Any]:
    """One request, cold and warm in turn, beside its controls; `continuation` is forced on all.

    Times are medians of interleaved pairs.  Controls: the zero state at W = 0, and kv alone with
    the run's W; and the replay at W = 0, where nothing but the anchors carries the state.
    """
    budget = engine.strategy.budget
    force = functools.partial(forced_continuation, engine, prompt)
    exact = force(continuation, NoReuse())
    sealed_before = engine.counters["put_sealed"]
    warm = force(continuation, store_pages=True)
    pages_sealed = (engine.counters["put_sealed"] - sealed_before) // 2
    cold_seconds, warm_seconds = [exact.ttft_seconds], [warm.ttft_seconds]
    for _ in range(TIMED_PAIRS - 1):
        cold_seconds.append(force(continuation[:1], NoReuse()).ttft_seconds)
        warm_seconds.append(force(continuation[:1]).ttft_seconds)
    no_margin = SuffixReplay(dataclasses.replace(budget, margin_tokens=0))
    runs = {
        "": warm,
        "zero_state_": force(continuation, zero_state(budget)),
        "kv_only_": force(continuation, KvOnly(budget)),
        "no_margin_": force(continuation, no_margin),
    }
    found: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "reused_tokens": warm.resume.reused_tokens,
        "rows_replayed": warm.resume.rows_replayed,
        "lineage": warm.resume.lineage,
        "miss": warm.resume.miss,
        "pages_sealed": pages_sealed,
        "ttft_cold_s": round(statistics.median(cold_seconds), 4),
        "ttft_warm_s": round(statistics.median(warm_seconds), 4),
    }
    for name, run in runs.items():
        measured = agreement(exact, run)
        found[f"{name}top1_agreement"] = round(measured.top1, 4)
        found[f"{name}mean_kl"] = round(measured.mean_kl, 6)
    return found


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """One request's reply."""
    if request["op"] == "read":
        return read(engine, request["turns"], request["new_tokens"])
    assert request["op"] == "branch", f"unknown operation {request['op']!r}"
    return measure_branch(engine, request["prompt"], request["continuation"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine_adapter.transformers.worker")
    parser.add_argument("--name", required=True, help="shown in the daemon's session list")
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--daemon", required=True, help="address of the daemon")
    parser.add_argument("--rows", type=int, required=True, help="rows kept of a page")
    parser.add_argument("--max-rows", type=int, required=True, help="k_max")
    parser.add_argument("--margin", type=int, required=True, help="W, tokens")
    parser.add_argument("--threads", type=int, required=True, help="torch threads")
    options = parser.parse_args()
    try:
        serve(options)
    except AnchorStoreError as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 2
    return 0


def serve(options: argparse.Namespace) -> None:
    """Loads the model, then answers line by line until the input ends."""
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # that CPU kernels are the reference ones is known
    transformers.logging.disable_progress_bar()
    engine = Engine.load(
        options.model,
        client_address=options.daemon,
        options=ClientOptions(name=options.name, deadline_seconds=30),
        rows_per_page=options.rows,
        max_rows=options.max_rows,
        margin_tokens=options.margin,
    )
    exact_continuation(engine, list(range(1, 130)), 2)  # first calls are slower: not timed
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), flush=True)
    engine.close()


if __name__ == "__main__":
    raise SystemExit(main())
