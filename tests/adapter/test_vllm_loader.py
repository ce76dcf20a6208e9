"""Goal: a prefix is copied out of the store as it was put, and every load is answered, whatever
goes wrong with it: its request would wait for ever otherwise.
Method: the loader's thread against a real daemon; a window that is none, and one that is copied to
more memory than any machine has, each followed by a load that works.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from anchorstore.client import Client, NamespaceSpec, NeedAll
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from anchorstore.testing.daemon import Daemon
from engine_adapter.vllm.geometry import Stored, share_of_rank
from engine_adapter.vllm.jobs import LoadJob, Report, SpaceKey
from engine_adapter.vllm.loader import Loader
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.tally import Tally

PAGE, PAGES, HEADS, ROWS = 64, 3, 2, 4
KV = KvLayout(1, HEADS, 8, "float32", 0, HEADS, PAGE)
STORED = Stored(share_of_rank(HEADS, 2, 0, 1), KV, 2, AnchorLayout(2, ROWS, 16, "float32", PAGE))
LAYOUTS: list[Layout] = [STORED.shard_layout(0), STORED.shard_layout(1), STORED.anchor_layout]
SPACE = NamespaceSpec("tiny", bytes(32), page_tokens=PAGE)
ANSWER_SECONDS = 60.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def scheduler(daemon: Daemon) -> Iterator[Client]:
    """The client whose windows are loaded."""
    with Client.connect(daemon.address, namespace=SPACE, layouts=LAYOUTS) as client:
        yield client


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def loader(daemon: Daemon, tally: Tally) -> Iterator[Loader]:
    made = Loader(STORED, Settings(daemon.address), tally)
    yield made
    made.close()


def put(scheduler: Client, seed: int) -> tuple[bytes, list[torch.Tensor]]:
    """Hashes and blocks, by layout, of three pages of a text of its own."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [torch.randn((PAGES, *each.shape), generator=generator) for each in LAYOUTS]
    hashes = scheduler.path_hashes([seed] * (PAGES * PAGE))
    outcome = scheduler.put(None, 0, hashes, {n: list(each) for n, each in enumerate(blocks)})
    assert outcome.sealed == PAGES * len(LAYOUTS)
    return hashes, blocks


def job(scheduler: Client, request_id: str, window: bytes, skipped_pages: int = 0) -> LoadJob:
    token = scheduler.session_token
    assert token is not None
    rows = np.arange(6)
    pages = np.arange(PAGES)
    return LoadJob(
        request_id, SpaceKey(), token, window, pages, skipped_pages, rows, rows, PAGES * PAGE, {}
    )


def answers(loader: Loader, count: int) -> Report:
    """What the thread reports, once it has answered so many."""
    found, deadline = Report(), time.monotonic() + ANSWER_SECONDS
    while found.copied.total() + found.failed.total() < count:
        assert time.monotonic() < deadline, f"a load was never answered: {found}"
        found = found.plus(loader.report() or Report())
        time.sleep(0.01)
    return found


def test_prefix_is_copied_as_it_was_put(scheduler: Client, loader: Loader) -> None:
    hashes, blocks = put(scheduler, 1)
    needs = [NeedAll(0), NeedAll(1), NeedAll(2)]
    with scheduler.lookup(hashes, needs) as window:
        loader.submit(job(scheduler, "a", window.export()))
        assert dict(answers(loader, 1).copied) == {"a": 1}
    staged = loader.take("a")
    assert staged is not None
    assert torch.equal(staged.kv, torch.cat(blocks[:2], dim=4))
    kept = blocks[2].transpose(0, 1).reshape(2, PAGES * ROWS, 16)
    assert torch.equal(staged.anchors, kept[:, -6:])
    assert loader.take("a") is None


@pytest.mark.parametrize("is_unexpected", [False, True])
def test_load_that_fails_is_answered_and_the_next_one_loads(
    scheduler: Client,
    loader: Loader,
    tally: Tally,
    caplog: pytest.LogCaptureFixture,
    is_unexpected: bool,
) -> None:
    hashes, _ = put(scheduler, 2 + is_unexpected)
    with (
        caplog.at_level(logging.WARNING, "anchorstore.vllm"),
        scheduler.lookup(hashes, [NeedAll(0), NeedAll(1), NeedAll(2)]) as window,
    ):
        exported = window.export()
        if is_unexpected:  # torch says RuntimeError: no memory for so many pages
            loader.submit(job(scheduler, "bad", exported, skipped_pages=2**44))
        else:
            loader.submit(job(scheduler, "bad", exported[: len(exported) // 2]))
        loader.submit(job(scheduler, "good", exported))
        found = answers(loader, 2)
    assert (dict(found.failed), dict(found.copied)) == ({"bad": 1}, {"good": 1})
    assert loader.take("bad") is None
    assert loader.take("good") is not None
    assert tally.take() == ({"thread_errors/loader": 1} if is_unexpected else {})
    assert "request bad: its prefix was not loaded" in caplog.text
    assert ("Traceback" in caplog.text) == is_unexpected
