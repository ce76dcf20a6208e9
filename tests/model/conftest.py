"""What the model tests share: their paths are short, so runs of a path's end (leaf_runs.py) count
from one page on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from anchorstore.server.core import leaf_runs


@pytest.fixture(autouse=True, scope="session")
def short_runs() -> Iterator[None]:
    """Where the product takes pages one by one, runs are tried too."""
    usual, leaf_runs.RUN_PAGES_MIN = leaf_runs.RUN_PAGES_MIN, 1
    yield
    leaf_runs.RUN_PAGES_MIN = usual
