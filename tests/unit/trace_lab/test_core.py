"""Goal: the core in simulated time spares what it stores, and says why of all that it does not.
Method: tiny traces and workloads through the real Store, in one tier and in two; its own check.
"""

from __future__ import annotations

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstore.keys import LINEAGE_ANY
from anchorstore.server.core.policies import POLICIES
from anchorstore.units import MIB
from benchmarks.trace.caches import Loss
from benchmarks.trace.core import (
    NEEDS,
    SESSION,
    CapacityError,
    StoreCache,
    page_hashes,
    store_config,
)
from benchmarks.trace.kinds import generate
from benchmarks.trace.memory import Memory, parse_capacity
from benchmarks.trace.movement import DEMOTE_BLOCKS, WRITE_BYTES_PER_SECOND, Movement
from benchmarks.trace.sizes import DEFAULT_MODEL, Sizes, sizes_of_model
from benchmarks.trace.trace import Trace, TraceWriter, seen_before
from benchmarks.trace.variants import Variant, parse_variant
from tests.unit.trace_lab.tiny import SIZES, TRACES

PAGE = 64
LRU = Variant()
VARIANTS = [parse_variant(text) for text in (*POLICIES, "lru+demote", "lru+second-sight")]


@pytest.fixture(scope="module")
def sizes() -> Sizes:
    """A real model's."""
    return sizes_of_model(DEFAULT_MODEL, PAGE)


def serve_all(cache: StoreCache) -> collections.Counter[str]:
    """Pages hit, and lost by reason; every page seen must be one or the other."""
    counts: collections.Counter[str] = collections.Counter()
    for request, seen in enumerate(seen_before(cache.trace).tolist()):
        served = cache.serve(request, seen)
        assert served.hit_pages + sum(served.lost.values()) == seen
        assert all(pages >= 0 for pages in served.lost.values())
        counts["hit"] += served.hit_pages
        counts.update({reason.value: pages for reason, pages in served.lost.items()})
    assert cache.store.check() == []
    return counts


@settings(max_examples=25)
@given(TRACES, st.integers(0, 2), st.booleans(), st.sampled_from(VARIANTS))
def test_store_with_room_for_all_spares_what_was_seen(
    trace: Trace, margin_pages: int, is_tiered: bool, variant: Variant
) -> None:
    memory = Memory(64 * MIB, 64 * MIB if is_tiered else 0)
    cache = StoreCache(trace, SIZES, memory, variant, margin_pages)
    for request, seen in enumerate(seen_before(trace).tolist()):
        served = cache.serve(request, seen)
        assert served.hit_pages == max(0, seen - margin_pages)
        assert served.lost.get(Loss.MARGIN, 0) == min(seen, margin_pages)
        assert cache.store.check() == []


def test_store_under_pressure_accounts_for_every_page_seen(sizes: Sizes) -> None:
    trace = generate("documents", 60, seed=1, page_tokens=PAGE)
    memory = parse_capacity("1/8").of(trace.distinct * sizes.page_bytes)
    cache = StoreCache(trace, sizes, memory, LRU, margin_pages=1)
    counts = serve_all(cache)
    assert counts["hit"] > 0 and counts["evicted"] > 0
    status = cache.store.status(0.0)
    assert status.used_bytes <= status.capacity_bytes <= memory.dram_bytes
    assert cache.moved()["dram read"] >= counts["hit"] * sizes.kv_bytes
    assert "nvme read" not in cache.moved()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_store_of_every_variant_accounts_for_every_page_seen(
    variant: Variant, sizes: Sizes
) -> None:
    trace = generate("agents", 14, seed=2, page_tokens=PAGE)
    memory = parse_capacity("1/4+1/3").of(trace.distinct * sizes.page_bytes)
    cache = StoreCache(trace, sizes, memory, variant, margin_pages=1)
    assert cache.name == f"anchorstore {variant}"
    assert serve_all(cache)["hit"] > 0


def test_store_of_a_flop_aware_order_is_tuned_once_by_its_first_requests() -> None:
    trace = generate("branches", 150, seed=2, page_tokens=PAGE)
    memory = parse_capacity("1/4").of(trace.distinct * SIZES.page_bytes)
    cache = StoreCache(trace, SIZES, memory, parse_variant("flop-aware"), margin_pages=1)
    tuned = []
    for request, seen in enumerate(seen_before(trace).tolist()):
        cache.serve(request, seen)
        tuned.append(cache.tuned)
    first = next(number for number, policy in enumerate(tuned) if policy is not None)
    assert first >= 99, "before a hundred requests nothing is tuned"
    assert all(policy is tuned[-1] for policy in tuned[first:])
    assert cache.store.check() == []


def test_store_by_priority_keeps_what_is_said_to_matter() -> None:
    writer = TraceWriter(PAGE)
    prompts = [writer.write(writer.empty, 30 * PAGE) for _ in range(12)]
    for turn in range(36):
        writer.ask(prompts[turn % 12], 1, float(turn), priority=int(turn % 12 < 3))
    trace = writer.trace("three matter")
    memory = parse_capacity("1/2").of(trace.distinct * SIZES.page_bytes)
    hits = {}
    for policy in ("lru", "priority"):
        cache = StoreCache(trace, SIZES, memory, parse_variant(policy), margin_pages=0)
        hits[policy] = serve_all(cache)["hit"]
    assert hits["priority"] == 2 * 3 * 29, "twice the three that matter, and of others nothing"
    assert hits["lru"] == 0, "more in turn than fit"


def test_store_that_writes_on_demotion_writes_less_to_nvme(sizes: Sizes) -> None:
    trace = generate("agents", 25, seed=2, page_tokens=PAGE)
    memory = parse_capacity("1/2+1").of(trace.distinct * sizes.page_bytes)
    written = {}
    for variant in (Variant(), Variant(is_ahead=False)):
        cache = StoreCache(trace, sizes, memory, variant, margin_pages=1)
        serve_all(cache)
        written[variant.is_ahead] = cache.moved()["nvme written"]
    assert 0 < written[False] < written[True]


def test_store_with_nvme_above_the_working_set_loses_nothing_but_the_margin(sizes: Sizes) -> None:
    trace = generate("branches", 60, seed=1, page_tokens=PAGE)
    memory = parse_capacity("1/4+5/4").of(trace.distinct * sizes.page_bytes)
    cache = StoreCache(trace, sizes, memory, LRU, margin_pages=1)
    counts = serve_all(cache)
    assert counts["hit"] + counts["margin"] == int(seen_before(trace).sum())
    moved = cache.moved()
    assert moved["nvme read"] > 0
    assert moved["nvme written"] <= trace.distinct * sizes.page_bytes


def test_store_with_two_tiers_keeps_more_than_dram_alone(sizes: Sizes) -> None:
    trace = generate("branches", 60, seed=1, page_tokens=PAGE)
    found = {}
    for text in ("1/8", "1/8+1/2"):
        memory = parse_capacity(text).of(trace.distinct * sizes.page_bytes)
        found[text] = serve_all(StoreCache(trace, sizes, memory, LRU, margin_pages=1))["hit"]
    assert found["1/8+1/2"] > found["1/8"]


def test_store_whose_dram_is_pinned_says_that_the_rest_is_cold(sizes: Sizes) -> None:
    writer = TraceWriter(PAGE)
    prompts = [writer.write(writer.empty, 12 * PAGE) for _ in range(2)]
    for turn in range(3):
        writer.ask(prompts[turn % 2], 1, 100.0 * turn)
    trace = writer.trace("two prompts")
    memory = Memory(24 * sizes.page_bytes, 200 * sizes.page_bytes)
    cache = StoreCache(trace, sizes, memory, LRU, margin_pages=0)
    for request in range(2):
        cache.serve(request, 0)
    other = page_hashes(trace.distinct)[trace.path(1)].tobytes()
    lease = cache.store.lookup(
        SESSION, other, NEEDS, max_lineage=LINEAGE_ANY, margin_pages=0, now=150.0
    )
    assert lease.boundary_pages == 12
    served = cache.serve(2, 11)
    assert served.lost[Loss.COLD] > 0
    assert served.hit_pages + sum(served.lost.values()) == 11


def test_demote_between_two_requests_writes_no_more_than_there_was_time_for(sizes: Sizes) -> None:
    trace = generate("documents", 1, seed=1, page_tokens=PAGE)
    cache = StoreCache(trace, sizes, Memory(2**36, 2**37), LRU, margin_pages=0)
    cache.serve(0, 0)
    moved: collections.Counter[str] = collections.Counter()
    movement = Movement(cache.store, moved)
    movement.demote(0.0)
    assert not moved
    movement.demote(1e-3)
    written = moved["nvme written"]
    assert 0 < written <= 1e-3 * WRITE_BYTES_PER_SECOND + DEMOTE_BLOCKS * sizes.kv_bytes
    movement.demote(1e6)
    assert moved["nvme written"] == len(trace.path(0)) * (
        sizes.kv.block_bytes() + sizes.anchor.block_bytes()
    )
    assert cache.store.blocks_to_demote == 0


@pytest.mark.parametrize(("memory", "tier"), [(Memory(MIB), "dram"), (Memory(2**30, MIB), "nvme")])
def test_config_of_too_few_bytes_names_the_tier(memory: Memory, tier: str, sizes: Sizes) -> None:
    with pytest.raises(CapacityError, match=f"^{tier} of 1MiB"):
        store_config(memory, sizes, LRU)


@pytest.mark.parametrize("text", ["1/8", "1", "1/8+1/2"])
def test_config_of_any_bytes_takes_no_more_and_suits_the_model(text: str, sizes: Sizes) -> None:
    pages = 20_000
    memory = parse_capacity(text).of(pages * sizes.page_bytes)
    config = store_config(memory, sizes, LRU)
    assert 0.97 * memory.dram_bytes <= config.segments * config.segment_bytes <= memory.dram_bytes
    if config.nvme is not None:
        nvme_bytes = config.nvme.segments * config.nvme.segment_bytes
        assert 0.97 * memory.nvme_bytes <= nvme_bytes <= memory.nvme_bytes
    assert (config.nvme is not None) == ("+" in text)


def test_page_hashes_of_many_pages_all_differ() -> None:
    hashes = page_hashes(5000)
    assert len({row.tobytes() for row in hashes}) == 5000
    assert len(set(hashes.ravel().tolist())) == 4 * 5000
