"""Goal: under mixed traffic and a daemon that is killed, hung and restarted again and again, no
request fails, no answer is wrong, and no process of vLLM grows.
Method: a seeded plan against an OpenAI server.  Every answer is compared with what stock vLLM says
to that prompt alone, uncached; the limit is what stock vLLM differs by from itself in a crowd.
Two controls: without faults the store is hit, and without the anchors answers are found wrong.
Minutes in every run, half an hour in the long one.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.conftest import EVERY_ROW
from tests.vllm.memory import Resident
from tests.vllm.server import Server
from tests.vllm.soak import Reference, Report, Soak, reference
from tests.vllm.soak_plan import Book, Plan, book

pytestmark = pytest.mark.timeout(7200)
"""The long run is longer than any other test; what hangs is found by each request's deadline."""

MODEL = "qwen3_5"
CONTEXT_TOKENS = 1024
POOL = {"tiers.dram.capacity": "64MiB", "tiers.dram.segment": "4MiB"}
"""Less than the prompts of an era need: pages are evicted, too."""
SMALL = ("--kv-cache-memory-bytes", str(24 * 2**20), "--prefix-match-unit", "64")
"""vLLM's own cache holds a few sequences, so that the store is asked."""
FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4"}
"""Of the kernels that oneDNN makes for each shape, where it multiplies bfloat16, it keeps a
thousand: stock vLLM alone grows by them for half an hour."""
EXTRA: dict[str, Any] = {
    **EVERY_ROW,
    "deadline_seconds": 1.0,
    "spaces_max": 8,
    "staging_mebibytes": 4,
}
GROWTH = 1.05
CONTROL_REQUESTS = 40
WARM_REQUESTS = 400
"""Until vLLM has whatever it keeps for good."""
HIT_SHARE = 0.2
"""Of the requests without faults, that hit; some prompts are met for the first time."""
FOUND_SHARE = 1 / 8
"""Of the prefixes loaded without their anchors, that are found wrong at least: after a long tail,
or a short prefix, a lost state hardly shows."""

SHORT = Plan(seed=1, seconds=120.0, period_seconds=20.0, era_seconds=45.0)
LONG = Plan(seed=1, seconds=1800.0, period_seconds=60.0, era_seconds=45.0)


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a soak needs.

    Attributes:
        plan: what is to come.
        book, truth: the prompts, and what stock vLLM answers to them.
        logs: where servers log.
    """

    model: pathlib.Path
    plan: Plan
    book: Book
    truth: Reference
    logs: pathlib.Path


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SHORT, 1), id="short"),
        pytest.param((LONG, 3), id="long", marks=pytest.mark.slow),
    ],
)
def stage(
    request: pytest.FixtureRequest,
    models: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    plan, size = request.param
    model, prompts = tiny.make(MODEL, models), book(plan.seed, CONTEXT_TOKENS, size)
    logs = tmp_path_factory.mktemp("soak")
    with Server(model, logs / "stock", options=SMALL) as server:
        truth = reference(server.ready(), prompts)
    print(f"{len(prompts.requests)} prompts, stock differs by {truth.floor:.4f}")
    return Stage(model, plan, prompts, truth, logs)


@pytest.fixture
def own_daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, settings=POOL) as running:
        yield running


def show(name: str, report: Report) -> None:
    print(f"---- {name}")
    for line in [*report.lines(), *report.failed[:20], *report.wrong[:20]]:
        print(line)


def check(report: Report) -> None:
    """Nothing failed, nothing was wrong, no thread of ours met what it did not expect."""
    assert report.failed == []
    assert report.wrong == []
    assert report.labelled("thread_errors_total") == {}
    assert all(code == 0 for code in report.exit_codes)
    assert report.answered > 0 and report.dropped > 0


def check_flat(before: dict[int, Resident], after: dict[int, Resident]) -> None:
    """The same processes, none larger than it may be."""
    for process, then in before.items():
        print(f"memory at rest: {then}, in the end {after.get(process)}")
    assert before.keys() == after.keys()
    for process, then in before.items():
        assert after[process].total_bytes <= GROWTH * then.total_bytes, then.name


def test_traffic_under_faults_is_answered_rightly_and_memory_stays(
    stage: Stage, own_daemon: Daemon
) -> None:
    extra = {"daemon": own_daemon.address, **EXTRA}
    log = stage.logs / "server"
    with Server(stage.model, log, extra=extra, options=SMALL, variables=FEW_KERNELS) as server:
        soak = Soak(server.ready(), own_daemon, stage.plan, stage.book, stage.truth)
        control = soak.run(at_least=WARM_REQUESTS)
        show("without faults", control)
        check(control)
        assert control.hits >= HIT_SHARE * control.answered
        before = soak.at_rest()
        faults = list(stage.plan.faults())
        report = soak.run(stage.plan.seconds, faults, at_least=2 * CONTROL_REQUESTS)
        show("under faults", report)
        after = soak.at_rest()
        last = soak.run(at_least=CONTROL_REQUESTS)
        show("after the last fault", last)
    check(report)
    assert report.faults.total() == len(faults)
    assert report.hits > 0
    assert report.labelled("requests_total").keys() & {"unreachable", "deadline", "boot"}
    check(last)
    assert last.hits >= HIT_SHARE * last.answered
    check_flat(before, after)


def test_zero_state_under_the_same_traffic_is_found_wrong(stage: Stage, own_daemon: Daemon) -> None:
    extra = {"daemon": own_daemon.address, **EXTRA, "strategy": "kv_only"}
    with Server(stage.model, stage.logs / "zero", extra=extra, options=SMALL) as server:
        soak = Soak(server.ready(), own_daemon, stage.plan, stage.book, stage.truth)
        report = soak.run(at_least=CONTROL_REQUESTS)
    show("without the anchors", report)
    assert report.hits > 0
    assert report.failed == []
    assert len(report.wrong) >= FOUND_SHARE * report.labelled("loads_total")["done"]
