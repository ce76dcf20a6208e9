"""Goal: an engine that never saw a text resumes from any page of it, with the outputs of a full
prefill.
Method: one engine reads 2000 tokens; a second gets five prompts that branch off.  With every row
kept, log-probabilities differ from those of stock vLLM without its cache by no more than its own
warm cache or batching makes them differ, and greedy tokens only where two were as likely; a zero
state does worse.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, agreed, clear_flips, cold, distance
from tests.vllm.conftest import CUTS, EVERY_ROW, text
from tests.vllm.served import Reply, Served

FAMILIES = (
    "qwen3_5",
    "granite",
    pytest.param("qwen3_next", marks=pytest.mark.slow),
    pytest.param("nemotron", marks=pytest.mark.slow),
)
"""One of either kind of linear layer in every run, the others of their kind in the long one."""
PAGE = 64


@dataclasses.dataclass(frozen=True)
class Runs:
    """The five branches under each condition.

    Attributes:
        uncached: stock vLLM, each alone, its cache emptied before.
        together: the same, all at once: what batching alone changes.
        native: stock vLLM on its own warm cache.
        shared: a second engine that never saw the base.
        zero_state: another, without the anchors.
        resident: other branches, on the engine that has read the base.
        resident_uncached: those, under salts.
    """

    uncached: list[Reply]
    together: list[Reply]
    native: list[Reply]
    shared: list[Reply]
    zero_state: list[Reply]
    resident: list[Reply]
    resident_uncached: list[Reply]

    @property
    def floor(self) -> float:
        """What stock vLLM differs by from itself: on its own warm cache, or in another batch."""
        others = (self.native, self.together)
        return max(NOISE_LEAST, *(distance(other, self.uncached) for other in others))


@pytest.fixture(scope="module", params=FAMILIES)
def runs(
    request: pytest.FixtureRequest,
    models: pathlib.Path,
    daemon: Daemon,
    tmp_path_factory: pytest.TempPathFactory,
    base: list[int],
    branches: list[list[int]],
) -> Runs:
    model = tiny.make(request.param, models)
    logs = tmp_path_factory.mktemp("logs")
    with Served(model, logs / "reader", daemon=daemon.address, extra=EVERY_ROW) as engine:
        engine.generate([base])
        others = [base[:cut] + text(200 + cut, 37) for cut in CUTS]
        resident_uncached = [engine.generate([p], salts=[str(p[-1])])[0] for p in others]
        resident = [engine.generate([other])[0] for other in others]
    second: dict[str, Any] = {"daemon": daemon.address, "role": "kv_consumer"}
    with Served(model, logs / "second", **second, extra=EVERY_ROW) as engine:
        shared = cold(engine, branches)
    control = {**EVERY_ROW, "strategy": "kv_only"}
    with Served(model, logs / "zero", **second, extra=control) as engine:
        zero_state = cold(engine, branches)
    with Served(model, logs / "stock", options={"prefix_match_unit": PAGE}) as engine:
        uncached = cold(engine, branches)
        engine.reset()
        together = engine.generate(branches, salts=[str(cut) for cut in CUTS])
        engine.reset()
        engine.generate([base])
        native = [engine.generate([branch])[0] for branch in branches]
    return Runs(uncached, together, native, shared, zero_state, resident, resident_uncached)


def test_branches_on_an_engine_that_never_saw_the_base_resume_at_their_page(runs: Runs) -> None:
    wanted = [cut // PAGE * PAGE for cut in CUTS]
    assert [reply.cached for reply in runs.uncached] == [0] * len(CUTS)
    assert [reply.cached for reply in runs.shared] == wanted
    assert [reply.cached for reply in runs.zero_state] == wanted
    assert sum(reply.cached for reply in runs.native) < sum(wanted)


def test_branches_on_the_engine_that_has_read_the_base_resume_at_their_page(runs: Runs) -> None:
    assert [reply.cached for reply in runs.resident] == [cut // PAGE * PAGE for cut in CUTS]
    assert distance(runs.resident, runs.resident_uncached) <= runs.floor
    assert clear_flips(runs.resident, runs.resident_uncached, runs.floor) == []


def test_branches_with_every_row_replayed_answer_as_a_full_prefill_does(runs: Runs) -> None:
    words = ("native", "together", "shared", "zero_state")
    print({word: distance(getattr(runs, word), runs.uncached) for word in words})
    assert distance(runs.shared, runs.uncached) <= runs.floor
    assert clear_flips(runs.shared, runs.uncached, runs.floor) == []


def test_branches_with_a_zero_state_answer_otherwise(runs: Runs) -> None:
    assert distance(runs.zero_state, runs.uncached) > runs.floor
    assert clear_flips(runs.zero_state, runs.uncached, runs.floor) != []
    assert agreed(runs.zero_state, runs.uncached) < agreed(runs.shared, runs.uncached) / 2
