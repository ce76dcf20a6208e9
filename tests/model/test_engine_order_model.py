"""Our order of eviction against a plain tree of nodes.

Goal: what `make test-sglang` shows against SGLang itself holds, in miniature, wherever the tests
run: same steps, same victims, in the same order; so with the whole store.  Method: the same trace,
and a plain tree by SGLang's rules (tests/oracle/node_tree.py) in the place of SGLang's.
"""

from __future__ import annotations

import pytest

from tests.oracle.node_tree import KEYS, NodeTree
from tests.oracle.store_twin import StoreTwin
from tests.oracle.trace import NAMESPACE, PAGE_TOKENS, Trace
from tests.oracle.twin import Twin

STEPS = 2_000


@pytest.mark.parametrize("policy", sorted(KEYS))
def test_order_same_steps_same_victims(policy: str) -> None:
    trace = Trace(NodeTree(policy, PAGE_TOKENS), Twin(policy), seed=3)
    trace.run(STEPS)
    assert trace.evictions > STEPS // 50 and trace.evicted > STEPS


@pytest.mark.parametrize("policy", sorted(KEYS))
def test_store_same_steps_same_victims(policy: str) -> None:
    ours = StoreTwin(policy, NAMESPACE)
    trace = Trace(NodeTree(policy, PAGE_TOKENS), ours, seed=4)
    trace.run(STEPS)
    assert ours.store.check() == []
    assert trace.evictions > STEPS // 50 and trace.evicted > STEPS


def test_order_without_the_rule_of_split_nodes_differs() -> None:
    trace = Trace(NodeTree("lru", PAGE_TOKENS), Twin("lru", refresh_rest=False), seed=3)
    with pytest.raises(AssertionError):
        trace.run(STEPS)
