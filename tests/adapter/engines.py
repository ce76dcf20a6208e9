"""Model directories, a daemon and engines for the tests that go through the real store."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from anchorstore.client import ClientOptions
from anchorstore.testing.daemon import Daemon
from engine_adapter.budget import Budget
from engine_adapter.strategy import SuffixReplay
from engine_adapter.transformers.engine import Engine
from tests.adapter.zoo import tiny_model

PAGE = 16
DEFAULTS = Budget(rows_per_page=4, margin_tokens=PAGE, page_tokens=PAGE)
EVERY_ROW = Budget(PAGE, 1.0, 100_000, 0, PAGE)
"""All rows of all pages, no margin: the replay that must give the prefill's own states."""

OPTIONS = ClientOptions(deadline_seconds=5.0)
IMPATIENT = ClientOptions(deadline_seconds=0.3, retry_seconds=0.05)


def save_model(name: str, folder: pathlib.Path, seed: int = 0) -> pathlib.Path:
    """A directory with a tiny random model of family `name`."""
    directory = folder / f"{name}-{seed}"
    tiny_model(name, seed).save_pretrained(directory)
    return directory


def engine_of(
    directory: pathlib.Path,
    daemon: Daemon | str | None,
    budget: Budget = DEFAULTS,
    options: ClientOptions = OPTIONS,
    **changes: Any,
) -> Engine:
    """A fresh engine; without a daemon it is the plain engine."""
    address = daemon.address if isinstance(daemon, Daemon) else daemon
    engine = Engine.load(
        directory,
        client_address=address,
        options=options,
        rows_per_page=budget.rows_per_page,
        ratio=budget.ratio,
        max_rows=budget.max_rows,
        margin_tokens=budget.margin_tokens,
        page_tokens=budget.page_tokens,
        **({"model_name": "tiny"} | changes),
    )
    assert engine.strategy == SuffixReplay(budget)
    return engine


def without_margin(budget: Budget) -> Budget:
    """The same budget, resuming at the boundary itself."""
    return dataclasses.replace(budget, margin_tokens=0)
