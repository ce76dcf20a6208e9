"""SGLang's tree for the tests here, imported when the first of them asks: that takes a while."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.oracle.sglang_tree import SglangTree


@pytest.fixture(scope="session")
def tree_class() -> type[SglangTree]:
    """The class; skips where SGLang is not there."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("no SGLang in this environment: run `make test-sglang`")
    from tests.oracle.sglang_tree import SglangTree

    return SglangTree
