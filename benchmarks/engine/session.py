"""A whole run: model folder, daemons, servers, warm-up, trace or exams, document.

::

    Plan --> model --> [daemon + server] of each variant --> warm-up --> play --> figures

The servers of all variants stay up together, since pairs are interleaved; only one is asked at a
time, and an idle one uses no processor to speak of.  Exams need no pairs: there, one server runs
after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from anchorstore.testing.daemon import Daemon
from benchmarks import harness
from benchmarks.engine import figures, metrics, quality
from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError
from benchmarks.engine.models import ModelFacts, facts, serving_copy
from benchmarks.engine.run import Rules, Say, Side, play, prefill_seconds, warm_up
from benchmarks.engine.servers import (
    CONNECTOR_MODULE,
    PAGE_TOKENS,
    Server,
    Setup,
    Variant,
    beside_the_step,
    require_modules,
)
from benchmarks.engine.sizing import random_model
from benchmarks.engine.traces import Shape, Trace, generate

CONTEXT_TOKENS = 4800
"""Room for branches at every depth to 4096 and some beyond."""

ENDPOINT_TOKENS = (3, 250)
"""Every vocabulary has them: vLLM without a tokenizer does not look whether an id is in its own."""
"""Ids that prompts are made of where nothing is known of an endpoint's vocabulary."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the command line asks for.  Sizes in tokens, bytes and seconds as named.

    Attributes:
        model: folder; None is the random-weight model.
        context_tokens, token_ids: None takes the model's.
        logs: folder that is kept; None forgets them.
    """

    kind: str
    pairs: int
    quick: bool
    seed: int
    context_tokens: int | None
    answer_tokens: int
    token_ids: tuple[int, int] | None
    margin_tokens: int
    pause_seconds: float
    model: pathlib.Path | None
    variants: tuple[Variant, ...]
    replicas: int
    python: pathlib.Path
    cache: pathlib.Path
    kv_cache_bytes: int
    dram: str
    flags: tuple[str, ...]
    logs: pathlib.Path | None

    @property
    def rules(self) -> Rules:
        """How a run counts and waits."""
        return Rules(PAGE_TOKENS, self.margin_tokens, self.pause_seconds)

    def rules_of(self, variant: Variant) -> Rules:
        """The same with the variant's own margin, where its configuration names one."""
        margin = (variant.connector or {}).get("margin_tokens", self.margin_tokens)
        return dataclasses.replace(self.rules, margin_tokens=margin)


def shape_of(plan: Plan, known_context: int | None, known_ids: tuple[int, int] | None) -> Shape:
    """Measures of the trace; EndpointError where they do not fit together."""
    most = known_context or CONTEXT_TOKENS
    context = plan.context_tokens or min(CONTEXT_TOKENS, most)
    if known_context is not None and context > known_context:
        raise EndpointError(f"--context {context}: the model has {known_context}")
    first, stop = plan.token_ids or known_ids or ENDPOINT_TOKENS
    if known_ids is not None and stop > known_ids[1]:
        raise EndpointError(f"--token-ids up to {stop}: the model's vocabulary has {known_ids[1]}")
    try:
        return Shape(first, stop, context, plan.pairs, plan.answer_tokens)
    except ValueError as error:
        raise EndpointError(str(error)) from error


# ---- servers of ours ----


def require(plan: Plan) -> None:
    """EndpointError where the environment lacks what the variants need."""
    needs = ["vllm"]
    if any(variant.connector is not None for variant in plan.variants):
        needs += ["anchorstore", CONNECTOR_MODULE]
    require_modules(plan.python, needs)


@contextlib.contextmanager
def log_folder(plan: Plan) -> Iterator[pathlib.Path]:
    """Where logs go."""
    if plan.logs is not None:
        plan.logs.mkdir(parents=True, exist_ok=True)
        yield plan.logs
        return
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as name:
        yield pathlib.Path(name)


def model_folder(plan: Plan, folder: pathlib.Path, say: Say) -> pathlib.Path:
    """The folder to serve."""
    plan.cache.mkdir(parents=True, exist_ok=True)
    if plan.model is not None:
        return serving_copy(plan.model, plan.cache)
    return random_model(plan.cache, plan.python, folder, plan.flags, say)


def connected(
    stack: contextlib.ExitStack, plan: Plan, variant: Variant, folder: pathlib.Path
) -> Variant:
    """The variant with a daemon of its own behind it, where it has a connector."""
    if variant.connector is None or "daemon" in variant.connector:
        return variant
    settings = {
        "tiers.dram.capacity": plan.dram,
        "tiers.dram.segment": "64MiB",
        "limits.staging_per_session": "512MiB",
        "limits.staging_total": "8GiB",
    }
    daemon = Daemon(folder / f"daemon-{variant.name}", settings=settings, ready_seconds=120)
    try:
        with beside_the_step():
            stack.enter_context(daemon)
    except RuntimeError as error:
        raise EndpointError(str(error)) from error
    return Variant(variant.name, {"daemon": daemon.address, **variant.connector})


def started(
    stack: contextlib.ExitStack, setup: Setup, variant: Variant, replicas: int, say: Say
) -> list[Server]:
    """Servers of one variant, ready."""
    servers = []
    for number in range(replicas):
        server = stack.enter_context(Server(setup, variant, say, number))
        say(f"{variant.name} serves {setup.model.name} after {server.start_seconds} s")
        servers.append(server)
    return servers


def setup_of(
    plan: Plan, model: pathlib.Path, context: int, folder: pathlib.Path, *, can_reset: bool
) -> Setup:
    """What all servers of the run have in common."""
    return Setup(
        plan.python, model, context, plan.kv_cache_bytes, folder, plan.flags, can_reset=can_reset
    )


def bench_servers(plan: Plan, say: Say) -> dict[str, Any]:
    """A trace over servers started here."""
    require(plan)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(log_folder(plan))
        model = model_folder(plan, folder, say)
        known = facts(model)
        shape = shape_of(plan, known.context_tokens, (0, known.vocabulary))
        setup = setup_of(plan, model, shape.context_tokens, folder, can_reset=False)
        sides, starts = [], {}
        for variant in plan.variants:
            ready = connected(stack, plan, variant, folder)
            servers = started(stack, setup, ready, plan.replicas, say)
            clients = [Client(server.url) for server in servers]
            sides.append(Side(variant.name, clients, plan.rules_of(variant)))
            starts[variant.name] = [server.start_seconds for server in servers]
            say(f"{variant.name} warms up")
            for client in clients:
                client.prepare([shape.first_token] * 8)
            warm_up(shape, clients, plan.rules)
        document = traced(plan, shape, sides, say)
    return {
        "model": described(plan, known),
        "start_seconds": starts,
        "flags": plan.flags,
        **document,
    }


def described(plan: Plan, known: ModelFacts) -> dict[str, Any]:
    """The model, without the machine's folders."""
    return {
        "name": (plan.model or known.folder).resolve().name,
        "model_type": known.model_type,
        "vocabulary": known.vocabulary,
    }


def traced(plan: Plan, shape: Shape, sides: Sequence[Side], say: Say) -> dict[str, Any]:
    """Plays the trace on warm sides; what came of it."""
    trace = generate(plan.kind, shape, plan.seed)
    say(f"{plan.kind}: {len(trace.requests)} requests to {', '.join(s.name for s in sides)}")
    fresh = {
        side.name: round(prefill_seconds(shape, side.clients[0], plan.seed), 4) for side in sides
    }
    before = {side.name: counters(side.clients) for side in sides}
    samples = play(trace, sides, say)
    names = [side.name for side in sides]
    return {
        "machine": harness.machine(),
        "trace": trace_facts(plan, trace, fresh),
        "variants": names,
        "depths": figures.by_depth(samples, names, plan.seed),
        "counters": {
            side.name: metrics.moved(before[side.name], counters(side.clients)) for side in sides
        },
        "requests": [dataclasses.asdict(sample) for sample in samples],
    }


def trace_facts(plan: Plan, trace: Trace, fresh: Mapping[str, float]) -> dict[str, Any]:
    """What was asked, and how long new tokens take."""
    return {
        "kind": trace.kind,
        "seed": trace.seed,
        "requests": len(trace.requests),
        "pairs": plan.pairs,
        "context_tokens": trace.shape.context_tokens,
        "answer_tokens": trace.shape.answer_tokens,
        "page_tokens": PAGE_TOKENS,
        "margin_tokens": plan.margin_tokens,
        "replicas": plan.replicas,
        "prefill_1024_seconds": dict(fresh),
    }


def counters(clients: Sequence[Client]) -> dict[str, float]:
    """Counters of a side's replicas together; none where an endpoint has no /metrics."""
    total: dict[str, float] = {}
    for client in clients:
        try:
            page = client.get("/metrics")
        except EndpointError:
            continue
        for name, value in metrics.parse(page).items():
            total[name] = total.get(name, 0.0) + value
    return total


# ---- endpoints that run already ----


def bench_endpoints(
    plan: Plan, endpoints: Sequence[tuple[str, str]], key: str | None, say: Say
) -> dict[str, Any]:
    """A trace over endpoints that somebody else runs."""
    clients = {name: Client(url, key=key) for name, url in endpoints}
    contexts = []
    for name, client in clients.items():
        entry = client.served()
        length = entry.get("max_model_len")
        say(f"{name} serves {entry['id']}")
        contexts += [length] if isinstance(length, int) and length > 0 else []
    shape = shape_of(plan, min(contexts, default=None), None)
    for client in clients.values():
        client.prepare([shape.first_token] * 8)
    sides = [Side(name, [client], plan.rules) for name, client in clients.items()]
    return traced(plan, shape, sides, say)


# ---- exams ----


def bench_quality(plan: Plan, say: Say) -> dict[str, Any]:
    """Exams of a trained model, one variant after another; the first is what others keep up to."""
    if plan.model is None:
        raise EndpointError("--quality needs a trained model: random weights know no answers")
    require(plan)
    known = facts(plan.model)
    exams = quality.exams_of(plan.model, known.vocabulary, plan.quick)
    lines: list[dict[str, Any]] = []
    exact: dict[str, dict[str, Any]] = {}
    with log_folder(plan) as folder:
        model = model_folder(plan, folder, say)
        setup = setup_of(plan, model, 2048, folder, can_reset=True)
        for variant in plan.variants:
            with contextlib.ExitStack() as stack:
                ready = connected(stack, plan, variant, folder)
                [server] = started(stack, setup, ready, 1, say)
                client = Client(server.url)
                client.prepare([0] * 8)
                stores = variant.connector is not None
                rules = plan.rules_of(variant)
                found = quality.measure(exams, variant.name, client, rules, stores, say)
            for exam, answers in found.items():
                line = quality.summary(exam, variant.name, answers, exact.get(exam))
                exact.setdefault(exam, line)
                lines.append(line)
    lines.sort(key=lambda line: list(exams).index(line["exam"]))
    return {
        "machine": harness.machine(),
        "model": described(plan, known),
        "margin_tokens": plan.margin_tokens,
        "flags": plan.flags,
        "quality": lines,
    }
