"""What the tests in a real vLLM share: models made once, a daemon a module, branches of one text.

An engine takes some twenty seconds to start, so each test asks much of few of them, and they run
one after another.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from anchorstore.testing.daemon import Daemon

CUTS = (1400, 900, 700, 1999, 709)
BASE_TOKENS = 2000
TAIL_TOKENS = 37
POOL = {"tiers.dram.capacity": "256MiB", "tiers.dram.segment": "4MiB"}
EVERY_ROW: dict[str, Any] = {
    "rows_per_page": 64,
    "ratio": 1.0,
    "max_rows": 1_000_000,
    "margin_tokens": 0,
    "deadline_seconds": 5.0,
    "anchor_dtype": "float32",
}
"""All rows kept and replayed, no margin: nothing is approximated; patience on a busy machine."""


def text(seed: int, tokens: int) -> list[int]:
    """Random bytes, as ids of the tiny tokenizer."""
    source = random.Random(seed)
    return [source.randrange(3, 259) for _ in range(tokens)]


@pytest.fixture(scope="session", autouse=True)
def runnable() -> None:
    """Skips everything where vLLM, or what its kernels are linked with, is not there."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("no vLLM in this environment: run `make test-vllm`")
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        pytest.skip(f"vLLM's kernels for CPU do not load: {error}")


@pytest.fixture(scope="session")
def base() -> list[int]:
    """The text that one engine has read."""
    return text(1, BASE_TOKENS)


@pytest.fixture(scope="session")
def branches(base: list[int]) -> list[list[int]]:
    """Prompts that leave the base at CUTS, each with a tail of its own."""
    return [base[:cut] + text(100 + cut, TAIL_TOKENS) for cut in CUTS]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Where the tiny models are made."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), settings=POOL) as running:
        yield running
