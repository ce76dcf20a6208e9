"""Goal: the scheduler's half offers what the store has, tells every worker the same, and saves
each full page once; whatever fails is a request that prefills.
Method: a real daemon, pages put by another client, requests with the attributes that vLLM's have;
no vLLM, no torch.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from anchorstore.client import Client, NamespaceSpec
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from anchorstore.testing.daemon import Daemon
from engine_adapter.vllm.geometry import Geometry
from engine_adapter.vllm.jobs import Report, SpaceKey, StepJobs
from engine_adapter.vllm.matching import LATER
from engine_adapter.vllm.scheduler import SchedulerHalf
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.subject import adapter_number

PAGE, BLOCK, WORKERS = 64, 128, 2
KV = KvLayout(1, 2, 8, "float32", 0, 2, PAGE)
LAYOUTS: list[Layout] = [
    KV.with_heads(0, 1),
    KV.with_heads(1, 2),
    AnchorLayout(1, 4, 16, "float32", PAGE),
]
TEXT = [7 * position % 251 for position in range(1000)]
KV_GROUP, STATE_GROUP = 1, 0


@dataclasses.dataclass
class Request:
    """What of vLLM's request the adapter relies on."""

    request_id: str
    all_token_ids: list[int]
    num_computed_tokens: int = 0
    cache_salt: str | None = None
    lora_request: Any = None
    mm_features: tuple[Any, ...] = ()
    prompt_embeds: Any = None
    skip_reading_prefix_cache: bool = False

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def namespace(key: SpaceKey) -> NamespaceSpec:
    return NamespaceSpec("tiny", bytes(32), key.adapter, PAGE, key.salt)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture(scope="module")
def stored(daemon: Daemon) -> None:
    store(daemon)


def store(daemon: Daemon) -> None:
    """Ten pages of TEXT, lineage 2."""
    with Client.connect(daemon.address, namespace=namespace(SpaceKey()), layouts=LAYOUTS) as writer:
        hashes = writer.path_hashes(TEXT[: 10 * PAGE])
        blocks = {n: [bytes(each.block_bytes())] * 10 for n, each in enumerate(LAYOUTS)}
        assert writer.put(None, 0, hashes, blocks, lineage=2).sealed == 30


@pytest.fixture
def half(daemon: Daemon, stored: None) -> Iterator[SchedulerHalf]:
    made = half_of(daemon)
    yield made
    made.close()


def half_of(daemon: Daemon, **changes: Any) -> SchedulerHalf:
    """The scheduler's half of an engine beside a daemon."""
    values = {"margin_tokens": PAGE, "deadline_seconds": 5.0, "bring_in_seconds": 60.0}
    settings = Settings(daemon.address, **(values | changes))
    options = settings.lookup_options("scheduler")

    def connect(key: SpaceKey) -> Client:
        return Client.connect(
            daemon.address, namespace=namespace(key), layouts=LAYOUTS, options=options
        )

    return SchedulerHalf(
        settings,
        Geometry(PAGE, BLOCK),
        shards=2,
        state_groups=[STATE_GROUP],
        spaces=Spaces(connect, limit=4, retry_seconds=1.0),
        adapter_of=lambda lora: str(lora),
        workers=WORKERS,
        lineages_max=100,
        loads=True,
        saves=True,
    )


def step(half: SchedulerHalf, **scheduled: int) -> StepJobs:
    return half.step(scheduled, lambda _: [10, 11, 12, 13, 14, 15, 16, 17])


def load(half: SchedulerHalf, request: Request) -> StepJobs:
    """Match a request and give it blocks."""
    external = half.match(request, 0)
    assert external == 9 * PAGE, external
    half.allocated(request, [[0, 0, 0, 0, 77], [20, 21, 22, 23, 24]], KV_GROUP, external)
    return step(half)


def report(**copied: int) -> Report:
    return Report(copied=collections.Counter(copied))


def test_match_of_a_stored_prefix_is_its_boundary_less_the_margin(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    assert half.match(request, 0) == 9 * PAGE
    assert half.match(request, 4 * PAGE) == 5 * PAGE
    assert half.match(request, 9 * PAGE) == 0
    assert half.take_counts() == {"requests/hit": 1}


@pytest.mark.parametrize(
    ("resident", "agreed", "local"),
    [
        (4 * PAGE, 0, 4 * PAGE),  # resident kv below the resume point: all of it
        (10 * PAGE, 0, 8 * PAGE),  # above: the block that it lies in is loaded
        (9 * PAGE, 2 * PAGE, 8 * PAGE),
        (10 * PAGE, 10 * PAGE, 0),  # vLLM has the states there, too
        (1 * PAGE, 0, 0),  # less than a block
    ],
)
def test_match_around_resident_kv_takes_whole_blocks_of_it(
    half: SchedulerHalf, resident: int, agreed: int, local: int
) -> None:
    request = Request("a", [*TEXT[:700], 9])
    assert half.match_around(request, resident, agreed) == local
    expected = 0 if agreed >= 9 * PAGE else 9 * PAGE - local
    assert half.match(request, max(local, agreed) if not expected else local) == expected


def test_load_on_top_of_resident_kv_skips_what_is_resident(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    assert half.match_around(request, 4 * PAGE, 0) == 4 * PAGE
    half.allocated(request, [[0, 0, 0, 0, 77], [20, 21, 22, 23, 24]], KV_GROUP, 5 * PAGE)
    (job,) = step(half).loads
    assert job.page_slots.tolist() == [44, 45, 46, 47, 48]
    assert job.skipped_pages == 3, "a block and the margin below what is resident"


def test_load_job_names_slots_rows_and_state_blocks(half: SchedulerHalf) -> None:
    (job,) = load(half, Request("a", [*TEXT[:700], 9])).loads
    assert job.page_slots.tolist() == [40, 41, 42, 43, 44, 45, 46, 47, 48]
    assert job.resume_tokens == 9 * PAGE
    rows = len(job.positions)
    assert rows == np.ceil(0.05 * 9 * PAGE)
    assert job.positions[-1] == 9 * PAGE - 1
    assert job.tokens.tolist() == [TEXT[position] for position in job.positions]
    assert job.state_blocks == {STATE_GROUP: 77}


def test_prefix_is_replayed_once_every_worker_has_copied_it(half: SchedulerHalf) -> None:
    load(half, Request("a", [*TEXT[:700], 9]))
    half.reported(report(a=1))
    assert step(half).replays == ()
    half.reported(report(a=1))
    assert step(half).replays == ("a",)


def test_prefix_that_one_worker_cannot_copy_is_dropped_and_not_asked_for_again(
    half: SchedulerHalf,
) -> None:
    request = Request("a", [*TEXT[:700], 9])
    load(half, request)
    half.reported(Report(collections.Counter(a=1), collections.Counter(a=1)))
    jobs = step(half)
    assert (jobs.replays, jobs.drops) == ((), ("a",))
    assert half.match(request, 0) == 0


def test_prefix_that_cannot_be_replayed_is_not_asked_for_again(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    load(half, request)
    half.reported(report(a=2))
    assert step(half).replays == ("a",)
    half.reported(Report(refused={"a"}).plus(Report(refused={"a"})))
    assert half.match(request, 0) == 0
    counts = half.take_counts()
    assert (counts["loads/done"], counts["loads/refused"]) == (1, 1)


def test_load_names_the_adapter_that_it_is_replayed_under(half: SchedulerHalf) -> None:
    loads = load(half, Request("a", [*TEXT[:700], 9])).loads
    assert [job.adapter for job in loads] == [0]
    lora = types.SimpleNamespace(lora_int_id=3)
    assert adapter_number(Request("b", [9], lora_request=lora)) == 3


def test_prefix_of_a_request_that_is_aborted_meanwhile_is_dropped(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    load(half, request)
    assert not half.finish(request, [])
    half.reported(report(a=2))
    assert step(half).drops == ("a",)


def test_offer_that_vllm_does_not_take_leaves_no_load(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    assert half.match(request, 0) == 9 * PAGE
    half.allocated(request, [[], []], KV_GROUP, 0)
    assert step(half).loads == ()


def test_pages_of_a_prefill_are_saved_once_with_their_lineage(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    load(half, request)
    half.reported(report(a=2))
    request.num_computed_tokens = 9 * PAGE
    (job,) = step(half, a=701 - 9 * PAGE).saves
    assert (job.first_page, len(job.hashes) // 32, job.lineage) == (9, 1, 3)
    assert job.parent_hash is not None and not job.is_last
    assert job.page_slots.tolist() == [29]
    request.num_computed_tokens = 701
    assert not half.finish(request, [10, 11, 12, 13, 14, 15])


def test_pages_of_the_last_tokens_are_saved_when_a_request_ends(half: SchedulerHalf) -> None:
    request = Request("b", [5] * 120)
    half.arrived(request)
    (first,) = step(half, b=120).saves
    assert (first.first_page, first.parent_hash, len(first.hashes)) == (0, None, 32)
    request.num_computed_tokens = 120
    for _ in range(8):
        request.all_token_ids.append(6)
        request.num_computed_tokens += 1
    assert half.finish(request, [10])
    (last,) = step(half).saves
    assert (last.first_page, last.parent_hash, last.is_last) == (1, first.hashes, True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mm_features": (1,)}, "multimodal"),
        ({"prompt_embeds": 1}, "prompt_embeds"),
        ({"lora_request": ""}, "adapter"),
        ({"skip_reading_prefix_cache": True}, "not_asked"),
        ({"cache_salt": "other"}, "not_stored"),
        ({"all_token_ids": [1] * 100}, "short_prompt"),
    ],
)
def test_request_that_finds_nothing_is_counted_by_reason(
    half: SchedulerHalf, changes: dict[str, Any], reason: str
) -> None:
    request = dataclasses.replace(Request("a", [*TEXT[:700], 9]), **changes)
    assert half.match(request, 0) == half.match(request, 0) == 0
    assert half.take_counts()[f"requests/{reason}"] == 1


def test_request_while_the_daemon_is_gone_finds_nothing(tmp_path: pathlib.Path) -> None:
    settings = Settings(f"unix://{tmp_path}/absent.sock")

    def connect(key: SpaceKey) -> Client:
        return Client.connect(settings.daemon, namespace=namespace(key), layouts=LAYOUTS)

    half = SchedulerHalf(
        settings,
        Geometry(PAGE, BLOCK),
        2,
        [0],
        Spaces(connect, 1, 1.0),
        str,
        1,
        1,
        loads=True,
        saves=True,
    )
    request = Request("a", [*TEXT[:700], 9])
    assert half.match(request, 0) == 0
    assert half.take_counts()["lost_tokens/unreachable"] == 8 * PAGE, "ten less the margin"
    assert step(half, a=700) == StepJobs()
    half.close()


def test_request_on_vllms_own_cache_inherits_the_lineage_of_its_pages(half: SchedulerHalf) -> None:
    first = Request("a", [*TEXT[:700], 9])
    load(half, first)
    half.reported(report(a=2))
    first.num_computed_tokens = 9 * PAGE
    assert step(half, a=701 - 9 * PAGE).saves[0].lineage == 3
    second = Request("b", [*TEXT[:640], *[1] * 64], num_computed_tokens=10 * PAGE)
    half.arrived(second)
    assert step(half, b=64).saves[0].lineage == 3
    third = Request("c", [1] * 64)
    half.arrived(third)
    assert step(half, c=64).saves[0].lineage == 0


def test_match_after_a_reset_finds_nothing_of_before(half: SchedulerHalf) -> None:
    request = Request("a", [*TEXT[:700], 9])
    assert half.match(request, 0) == 9 * PAGE
    half.reset()
    assert half.match(request, 0) == 0
    assert half.take_counts()["requests/not_stored"] == 1


# ---- what lies in nvme ----


def test_match_asks_again_while_a_prefix_is_brought_into_memory(tmp_path: pathlib.Path) -> None:
    settings = {"tiers.nvme.devices": f"{tmp_path}:64MiB"}
    with Daemon(tmp_path / "first", settings=settings) as first:
        store(first)
    with Daemon(tmp_path / "again", settings=settings) as again:
        half, request = half_of(again), Request("cold", [*TEXT[:700], 9])
        answers = [half.match(request, 0)]
        while answers[-1] is LATER:
            time.sleep(0.01)
            answers.append(half.match(request, 0))
        counts = half.take_counts()
        half.close()
    assert answers[0] is LATER and answers[-1] == 9 * PAGE
    assert counts == {"requests/hit": 1}


# ---- vLLM's own cache ----


def test_daemon_is_told_what_vllm_holds_uses_and_gives_away(daemon: Daemon, stored: None) -> None:
    half, pool = half_of(daemon), {10: "0", 11: "1", 12: "2"}
    half.follow(pool.get)
    first = Request("first", TEXT[:400], 0)
    half.arrived(first)
    step(half, first=400)
    again = Request("again", [*TEXT[:300], 9], 2 * BLOCK)
    half.arrived(again)
    step(half, again=45)
    assert half.take_counts() == {"events/stored": 6, "events/touched": 4, "events/pinned": 1}
    half.finish(again, [10, 11, 13])
    del pool[12]
    step(half)
    assert half.take_counts() == {"events/unpinned": 1, "events/removed": 2}
    client = half._spaces.peek(SpaceKey())
    assert client is not None
    deadline = time.monotonic() + 60.0
    while client.counters()["events_sent"] != 14:
        assert time.monotonic() < deadline, client.counters()
        time.sleep(0.01)
    assert client.counters()["events_unknown"] == client.counters()["events_dropped"] == 0
    half.close()


def test_engine_that_wants_no_events_tells_none(daemon: Daemon, stored: None) -> None:
    half = half_of(daemon, events_queue_pages=0)
    half.follow({10: "0"}.get)
    request = Request("first", TEXT[:400], 0)
    half.arrived(request)
    step(half, first=400)
    assert half.take_counts() == {}
    half.close()


def test_daemon_that_takes_fewer_pages_than_before_costs_a_prefix_and_no_more(
    tmp_path: pathlib.Path,
) -> None:
    with Daemon(tmp_path) as daemon:
        store(daemon)
        half = half_of(daemon)
        assert half.match(Request("a", TEXT), 0) == 9 * PAGE
        half.finish(Request("a", TEXT), [])
    with Daemon(tmp_path, settings={"limits.pages_per_call": "4"}):
        for number in range(3):  # the client learns the new limit from one of them
            assert half.match(Request(f"b{number}", TEXT), 0) == 0
            half.finish(Request(f"b{number}", TEXT), [])
        half.close()


def test_spaces_while_the_daemon_does_not_answer_make_nobody_else_wait() -> None:
    asked: list[SpaceKey] = []

    def connect(key: SpaceKey) -> Any:
        asked.append(key)
        return dataclasses.make_dataclass("Made", ["attached"])(True)

    keys = [SpaceKey(salt=bytes([number])) for number in range(3)]
    spaces = Spaces(connect, 3, retry_seconds=1000.0)
    for key in keys[:2]:
        spaces.get(key)
    spaces.rest("deadline")  # one of them has waited in vain
    assert [spaces.get(key) for key in keys] == ["deadline"] * 3
    assert asked == keys[:2]
    quick = Spaces(connect, 3, retry_seconds=0.0)
    quick.rest("deadline")
    assert not isinstance(quick.get(keys[0]), str)
