"""Goal: the core in simulated time spares what it stores, and says why of all that it does not.
Method: tiny traces and a workload through the real Store; its own check after every request.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.units import MIB
from benchmarks.trace.caches import Loss
from benchmarks.trace.core import StoreCache, page_hashes
from benchmarks.trace.kinds import generate
from benchmarks.trace.sizes import DEFAULT_MODEL, sizes_of_model
from benchmarks.trace.trace import Trace, seen_before
from tests.unit.trace_lab.tiny import SIZES, TRACES

PAGE = 64


@settings(max_examples=25)
@given(TRACES, st.integers(0, 2))
def test_store_with_room_for_all_spares_what_was_seen(trace: Trace, margin_pages: int) -> None:
    cache = StoreCache(trace, SIZES, 64 * MIB, margin_pages)
    for request, seen in enumerate(seen_before(trace).tolist()):
        served = cache.serve(request, seen)
        assert served.hit_pages == max(0, seen - margin_pages)
        assert served.lost[Loss.MARGIN] == min(seen, margin_pages) if seen else True
        assert cache.store.check() == []


def test_store_under_pressure_accounts_for_every_page_seen() -> None:
    sizes = sizes_of_model(DEFAULT_MODEL, PAGE)
    trace = generate("documents", 60, seed=1, page_tokens=PAGE)
    cache = StoreCache(trace, sizes, trace.distinct * sizes.page_bytes // 8, margin_pages=1)
    hit = evicted = 0
    for request, seen in enumerate(seen_before(trace).tolist()):
        served = cache.serve(request, seen)
        assert served.hit_pages + sum(served.lost.values()) == seen
        hit += served.hit_pages
        evicted += served.lost.get(Loss.EVICTED, 0)
    assert hit > 0 and evicted > 0
    assert cache.store.check() == []
    status = cache.store.status(0.0)
    assert status.used_bytes <= status.capacity_bytes <= trace.distinct * sizes.page_bytes // 8
    assert cache.moved()["dram read"] >= hit * sizes.kv_bytes


def test_page_hashes_of_many_pages_all_differ() -> None:
    hashes = page_hashes(5000)
    assert len({row.tobytes() for row in hashes}) == 5000
    assert len(set(hashes.ravel().tolist())) == 4 * 5000
