"""What the adapter costs a step where nothing is reused: one engine, with and without it by turns.

    python -m benchmarks.engine.capture [--json] [--pairs N]      (with the interpreter of vLLM)

Two servers are two processes, and where their memory happens to lie changes a step by more than
the adapter does.  Here is one engine in this process; between two requests the connector is taken
out of it (scheduler, worker, taps in the layers: what remains is stock vLLM) or put back::

    prompt 1:  with . without . again        prompt 2:  again . with . without        ...
                 |        +-noise-+
                 +--ratio-----+           of seconds to the first token, and after it

The order is drawn for each prompt: what goes on behind an answer then falls on all alike.  vLLM's
own cache is emptied before each; the prompt is new to the daemon when it is asked with the
connector, so that every page is copied out and sealed, and none is found.  A pair is the mean of
some prompts asked in turn.  On a CPU the step has the cores that a server's would have; daemon and
saver have the rest.

What the adapter costs is mostly the same time for every model, so that a ratio says as much of the
model: the default one is that of the branch trace, whose 1024 tokens take over a second here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import itertools
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anchorstore.testing.daemon import Daemon
from benchmarks import harness
from benchmarks.engine.cli import ROOT, default_python, say
from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError
from benchmarks.engine.figures import compared_means
from benchmarks.engine.metrics import parse
from benchmarks.engine.models import facts
from benchmarks.engine.report import aligned
from benchmarks.engine.servers import (
    CONNECTOR,
    CONNECTOR_MODULE,
    PAGE_TOKENS,
    beside_the_step,
    bound_step,
)
from benchmarks.engine.sizing import random_model

SIDES = ("with", "without", "again")
KV_CACHE_BYTES = 512 * 2**20
SPECIAL_TOKENS = 3
DAEMON = {"tiers.dram.capacity": "2GiB", "tiers.dram.segment": "64MiB"}


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of one request: to its first token, and of a step after that.

    `decode_step` is the mean, with what storing takes from some of the steps; `usual_step` the
    median.
    """

    prefill: float
    decode_step: float
    usual_step: float


PHASES = tuple(field.name for field in dataclasses.fields(Times))


class Engine:
    """vLLM in this process, whose connector can be taken out."""

    def __init__(self, model: pathlib.Path, daemon: str, context_tokens: int, *, eager: bool):
        from vllm import LLM
        from vllm.config import KVTransferConfig

        self._llm = LLM(
            model=str(model),
            dtype="bfloat16",
            enforce_eager=eager,
            max_model_len=context_tokens,
            max_num_batched_tokens=context_tokens,
            max_num_seqs=8,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            prefix_match_unit=PAGE_TOKENS,
            prefix_caching_hash_algo="sha256_cbor",
            seed=0,
            kv_transfer_config=KVTransferConfig(
                kv_connector=CONNECTOR,
                kv_connector_module_path=CONNECTOR_MODULE,
                kv_role="kv_both",
                kv_connector_extra_config={"daemon": daemon},
            ),
        )
        core = self._llm.llm_engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._table = self._llm.llm_engine.vllm_config.compilation_config.static_forward_context
        self._asked = 0
        self.vocabulary = facts(model).vocabulary

    @contextlib.contextmanager
    def without(self) -> Iterator[None]:
        """Within, this is stock vLLM.  No request may be under way."""
        from vllm.distributed.kv_transfer import kv_transfer_state

        from engine_adapter.vllm.install import MODEL

        layers = self._table[MODEL].decoder.layers
        connector, agent = self._scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT
        hooks = [dict(layer._forward_pre_hooks) for layer in layers]
        assert connector is not None and agent is not None and any(hooks)
        self._scheduler.connector = kv_transfer_state._KV_CONNECTOR_AGENT = None
        for layer in layers:
            layer._forward_pre_hooks.clear()
        try:
            yield
        finally:
            for layer, own in zip(layers, hooks, strict=True):
                layer._forward_pre_hooks.update(own)
            self._scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT = connector, agent

    def ask(self, prompt: Sequence[int], answer_tokens: int) -> Times:
        """One request, alone, on an empty cache of the engine's own."""
        from vllm import SamplingParams

        assert self._llm.reset_prefix_cache()
        engine = self._llm.llm_engine
        sampling = SamplingParams(temperature=0, max_tokens=answer_tokens, ignore_eos=True)
        self._asked += 1
        moments = [time.perf_counter()]
        engine.add_request(str(self._asked), {"prompt_token_ids": list(prompt)}, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs[0].token_ids:
                    moments.append(time.perf_counter())
                assert not output.num_cached_tokens, "something was reused"
        assert len(moments) == answer_tokens + 1, (len(moments), answer_tokens)
        prefill, *steps = (after - before for before, after in itertools.pairwise(moments))
        return Times(prefill, statistics.mean(steps), statistics.median(steps))


def mean(times: Sequence[Times]) -> Times:
    """Of each of the times."""
    rows = [dataclasses.astuple(each) for each in times]
    return Times(*(statistics.mean(column) for column in zip(*rows, strict=True)))


def turns(engine: Engine, dice: random.Random, arguments: argparse.Namespace) -> dict[str, Times]:
    """One pair: every side's mean over some prompts."""
    found: dict[str, list[Times]] = {side: [] for side in SIDES}
    tokens = range(SPECIAL_TOKENS, engine.vocabulary)
    for _ in range(arguments.repeats):
        prompt = dice.choices(tokens, k=arguments.prompt_tokens)
        for side in dice.sample(SIDES, len(SIDES)):
            with contextlib.nullcontext() if side == "with" else engine.without():
                times = engine.ask(prompt, arguments.answer_tokens)
            found[side].append(times)
            time.sleep(arguments.pause)  # what goes on behind an answer is not the next one's
    return {side: mean(times) for side, times in found.items()}


def measure(engine: Engine, arguments: argparse.Namespace) -> dict[str, list[Times]]:
    """Times of every side, by pair."""
    dice = random.Random(arguments.seed)
    turns(engine, dice, arguments)  # warms up
    found: dict[str, list[Times]] = {side: [] for side in SIDES}
    for pair in range(arguments.pairs):
        for side, times in turns(engine, dice, arguments).items():
            found[side].append(times)
        say(f"  {pair + 1} of {arguments.pairs} pairs")
    return found


def figures(found: dict[str, list[Times]], seed: int) -> dict[str, Any]:
    """Means, and ratios to the engine without the connector: to both of a pair's turns without
    it, which differ by what is noise."""
    document: dict[str, Any] = {}
    for phase in PHASES:
        times = {side: [getattr(each, phase) for each in found[side]] for side in SIDES}
        both = [
            statistics.mean(pair) for pair in zip(times["without"], times["again"], strict=True)
        ]
        document[phase] = {
            "with_ms": round(statistics.mean(times["with"]) * 1e3, 3),
            "without_ms": round(statistics.mean(both) * 1e3, 3),
            "ratio": compared_means(times["with"], both, seed),
            "noise": compared_means(times["again"], times["without"], seed),
            "samples_ms": {side: [round(each * 1e3, 3) for each in times[side]] for side in SIDES},
        }
    return document


def total(counters: Mapping[str, float], name: str) -> float:
    """Sum of the counters whose name and labels begin like that."""
    return sum(value for key, value in counters.items() if key.startswith(name))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The document; EndpointError where something that it needs is not there."""
    if importlib.util.find_spec("vllm") is None:
        raise EndpointError(f"{sys.executable} has no vLLM; run it with {default_python()}")
    python, flags = pathlib.Path(sys.executable), ("--enforce-eager",) * arguments.eager
    model = arguments.model
    if model is None:
        arguments.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="capture-bench-") as logs:
            model = random_model(arguments.cache, python, pathlib.Path(logs), flags, say)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    context = arguments.prompt_tokens + arguments.answer_tokens
    with tempfile.TemporaryDirectory(prefix="capture-bench-") as folder:
        daemon = Daemon(pathlib.Path(folder), settings=DAEMON, ready_seconds=120)
        with beside_the_step():
            daemon.start()
        for name, value in bound_step(os.sched_getaffinity(0)).items():
            os.environ.setdefault(name, value)
        try:
            engine = Engine(model, daemon.address, context, eager=arguments.eager)
            found = measure(engine, arguments)
            counted = parse(Client(daemon.http_address).get("/metrics"))
        finally:
            daemon.stop()
    return {
        "machine": harness.machine(),
        "model": model.name,
        "pairs": arguments.pairs,
        "repeats": arguments.repeats,
        "prompt_tokens": arguments.prompt_tokens,
        "answer_tokens": arguments.answer_tokens,
        "lookups": round(total(counted, "anchorstore_lookups_total")),
        "blocks_sealed": round(total(counted, "anchorstore_blocks_written_total{outcome=sealed}")),
        **figures(found, arguments.seed),
    }


def render(document: dict[str, Any]) -> str:
    """A table."""
    rows = [["", "with, ms", "without, ms", "ratio [95 %]", "without to itself"]]
    for phase in PHASES:
        line = document[phase]
        ratios = (line["ratio"], line["noise"])
        told = [f"{each['mean']:.3f} {each['interval_95'] or ''}" for each in ratios]
        rows.append([phase, f"{line['with_ms']:.2f}", f"{line['without_ms']:.2f}", *told])
    return aligned(rows)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine.capture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--pairs", type=int, default=30, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--repeats",
        type=int,
        default=4,
        metavar="N",
        help="prompts of a pair (default: %(default)s)",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, default=1024, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--answer-tokens", type=int, default=64, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.3,
        metavar="S",
        help="seconds between requests (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--model",
        type=pathlib.Path,
        metavar="DIR",
        help="default: random weights, as of benchmarks.engine --random-model",
    )
    parser.add_argument(
        "--cache", type=pathlib.Path, default=ROOT / ".cache" / "engine", help="models"
    )
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """0, or 1 with the reason on standard error."""
    parser = make_parser()
    arguments = parser.parse_args(words)
    least = {"pairs": 1, "repeats": 1, "prompt_tokens": 1, "answer_tokens": 3}
    for name, limit in least.items():
        if getattr(arguments, name) < limit:
            parser.error(f"--{name.replace('_', '-')} is at least {limit}")
    try:
        document = run(arguments)
    except EndpointError as error:
        say(f"benchmarks.engine.capture: {error}")
        return 1
    print(json.dumps(document, indent=1) if arguments.json else render(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
