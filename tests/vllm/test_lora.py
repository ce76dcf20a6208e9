"""Goal: prefixes of one LoRA adapter never serve another, nor the plain model; its own are reused,
and replayed under it, whatever the batch before, or beside, runs under.
Method: one text under no adapter and under two; the second has the first one's name and other
weights, and both change what a replay calls.  Reuse is what vLLM reports after its own cache is
emptied.  Each warm answer is its own cold one, and the cold ones differ: a replay under a wrong
adapter shows.  Adapters that are loaded but in no slot, ones that are not loaded, and one whose
files are overwritten under its number, come last.
"""

from __future__ import annotations

import itertools
import pathlib
import shutil
from collections.abc import Sequence

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.compare import NOISE_LEAST, clear_flips, distance
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.served import Lora, Reply, Served

OPTIONS = {
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 3,
    "max_lora_rank": tiny.LORA_RANK,
}
PROMPT, SHORT = text(120, 700), text(121, 20)
REUSED = 640


def check_same(run: Sequence[Reply], cold: Sequence[Reply], name: str, cached: int) -> None:
    """`run` is `cold`, and has reused as much as it could."""
    assert [reply.cached for reply in run] == [cached], name
    assert distance(run, cold) <= NOISE_LEAST, (name, distance(run, cold))
    assert clear_flips(run, cold, NOISE_LEAST) == [], name


def warm_after_each(engine: Served, cold: dict[Lora | None, list[Reply]]) -> None:
    """Every prompt that is stored, asked again right after a request of every adapter."""
    for own in list(cold)[:2]:
        for before in cold:
            engine.generate([SHORT], tokens=2, lora=before)
            engine.reset()
            warm = engine.generate([PROMPT], lora=own)
            check_same(warm, cold[own], f"{own} after {before}", REUSED)


def warm_beside(engine: Served, cold: dict[Lora | None, list[Reply]]) -> None:
    """Replays while an adapter's request is being answered leave that as it is.

    Requests without an adapter are left out: vLLM's LoRA kernels for CPU give their rows the last
    slot's adapter in a batch where others have one.
    """
    adapters = [lora for lora in cold if lora is not None]
    for own, beside in itertools.product(adapters, adapters):
        engine.reset()
        alone = engine.generate([SHORT], lora=beside)
        engine.reset()
        both = engine.generate([SHORT, PROMPT], loras=[beside, own])
        check_same(both[:1], alone, f"{beside} beside {own}", 0)
        check_same(both[1:], cold[own], f"{own} beside {beside}", REUSED)


@pytest.fixture
def loras(models: pathlib.Path, tmp_path: pathlib.Path) -> list[Lora]:
    model = tiny.make("qwen3_5", models)
    names = ["style", "style", "third", "fourth"]
    return [
        (name, seed, tiny.make_lora(model, tmp_path / f"lora-{seed}", seed))
        for seed, name in enumerate(names, start=1)
    ]


def test_prefixes_of_an_adapter_are_its_own(
    models: pathlib.Path, daemon: Daemon, tmp_path: pathlib.Path, loras: list[Lora]
) -> None:
    model = tiny.make("qwen3_5", models)
    first, other, third, fourth = loras
    with Served(
        model, tmp_path / "log", daemon=daemon.address, extra=EVERY_ROW, options=OPTIONS
    ) as engine:
        cold: dict[Lora | None, list[Reply]] = {}
        for lora in (first, None, other):
            engine.reset()
            cold[lora] = engine.generate([PROMPT], lora=lora)
            assert cold[lora][0].cached == 0
        for one, two in ((first, None), (first, other), (None, other)):
            apart = distance(cold[one], cold[two]) > 2 * NOISE_LEAST
            assert apart or clear_flips(cold[one], cold[two], NOISE_LEAST)
        warm_after_each(engine, cold)
        warm_beside(engine, cold)

        engine.generate([SHORT], lora=other)
        engine.generate([SHORT], lora=third)  # takes the slot of the first, which stays loaded
        engine.reset()
        warm = engine.generate([PROMPT], lora=first)
        check_same(warm, cold[first], "in no slot", REUSED)

        for lora in (other, third, fourth):  # the first is not even loaded any more
            engine.generate([SHORT], lora=lora)
        for cached in (0, REUSED):
            engine.reset()
            again = engine.generate([PROMPT], lora=first)
            check_same(again, cold[first], "not loaded", cached)

        shutil.copy(other[2] / "adapter_model.safetensors", first[2])
        engine.reset()
        overwritten = engine.generate([PROMPT], lora=first)
        assert overwritten[0].cached == 0
        for cached in (0, REUSED):  # under a new number: loaded first, then reused
            engine.reset()
            renewed = engine.generate([PROMPT], lora=("style", 9, first[2]))
            check_same(renewed, cold[other], "renewed", cached)
