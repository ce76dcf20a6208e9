"""Our order of eviction against SGLang's own tree.

Goal: for lru, lfu, slru, priority and fifo, 10,000 random steps of insert, match, lock, unlock and
evict make SGLang's unified radix tree and our index evict the same pages, in the same order, and
hold the same pages afterwards; so does the store.  Method: one seeded trace drives both.  A control
without the one rule of SGLang's that is not obvious (runs.py) must fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.store_twin import StoreTwin
from tests.oracle.trace import NAMESPACE, PAGE_TOKENS, STEPS, Trace
from tests.oracle.twin import Twin

if TYPE_CHECKING:
    from tests.oracle.sglang_tree import SglangTree


@pytest.mark.parametrize("core", ["python", "rust"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority", "fifo"])
def test_order_same_steps_same_victims(
    tree_class: type[SglangTree], policy: str, core: str
) -> None:
    theirs = tree_class(policy, core, PAGE_TOKENS)
    assert theirs.is_rust == (core == "rust"), "SGLang fell back to its other core"
    trace = Trace(theirs, Twin(policy), seed=len(policy))
    trace.run()
    assert trace.evictions > 200 and trace.evicted > STEPS


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority", "fifo"])
def test_store_same_steps_same_victims(tree_class: type[SglangTree], policy: str) -> None:
    ours = StoreTwin(policy, NAMESPACE)
    trace = Trace(tree_class(policy, "python", PAGE_TOKENS), ours, seed=9)
    trace.run()
    assert ours.store.check() == []
    assert trace.evictions > 200 and trace.evicted > STEPS


def test_order_without_the_rule_of_split_nodes_differs(tree_class: type[SglangTree]) -> None:
    ours = Twin("lru", refresh_rest=False)
    trace = Trace(tree_class("lru", "python", PAGE_TOKENS), ours, seed=1)
    with pytest.raises(AssertionError):
        trace.run()
