"""Goal: copied pages reach the store as they are, and what cannot be saved is dropped and counted,
never waited for.
Method: the saver's thread against a real daemon; a queue without room, rows that were never
captured, blocks that make torch raise, a daemon that is not there.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Iterator

import pytest
import torch

from anchorstore.client import Client, NamespaceSpec, NeedAll
from anchorstore.keys import path_hashes
from anchorstore.layout import AnchorLayout, KvLayout, Layout
from anchorstore.testing.daemon import Daemon
from engine_adapter.vllm.jobs import SpaceKey
from engine_adapter.vllm.saver import Copied, Saver
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.tally import Tally

PAGE, PAGES = 16, 3
KV = KvLayout(1, 2, 8, "float32", 0, 2, PAGE)
ANCHORS = AnchorLayout(2, 4, 16, "float32", PAGE)
LAYOUTS: list[Layout] = [KV, ANCHORS]
SPACE = NamespaceSpec("tiny", bytes(32), page_tokens=PAGE)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def saver_for(address: str, queue_bytes: int) -> tuple[Saver, Tally]:
    tally = Tally()
    spaces = Spaces(
        lambda _: Client.connect(address, namespace=SPACE, layouts=LAYOUTS), 1, retry_seconds=1.0
    )
    return Saver(spaces, 1, queue_bytes, tally), tally


def copied(root: bytes, seed: int) -> Copied:
    """Three pages of a text of its own, with random blocks."""
    generator = torch.Generator().manual_seed(seed)
    blocks = {
        number: torch.randn((PAGES, *layout.shape), generator=generator)
        for number, layout in enumerate(LAYOUTS)
    }
    hashes = path_hashes(root, [seed] * (PAGES * PAGE), PAGE)
    return Copied(SpaceKey(), None, 0, hashes, blocks, 0)


def test_pages_that_are_submitted_are_in_the_store_when_it_is_closed(daemon: Daemon) -> None:
    with Client.connect(daemon.address, namespace=SPACE, layouts=LAYOUTS) as reader:
        assert reader.root_digest is not None
        pages = copied(reader.root_digest, 1)
        saver, tally = saver_for(daemon.address, pages.size_bytes)
        saver.submit(pages)
        saver.close()
        assert tally.take() == {"blocks/sealed": 2 * PAGES}
        with reader.lookup(pages.hashes, [NeedAll(0), NeedAll(1)]) as window:
            assert window.boundary_pages == PAGES
            for number, wanted in pages.blocks.items():
                found = torch.empty_like(wanted)
                window.blocks(number).copy_into(found)
                assert torch.equal(found, wanted)


def test_pages_beyond_the_queue_are_dropped_and_counted(daemon: Daemon) -> None:
    pages = copied(bytes(32), 2)
    saver, tally = saver_for(daemon.address, pages.size_bytes - 1)
    saver.submit(pages)
    saver.close()
    assert tally.take() == {"pages_unsaved/queue_full": PAGES}


def test_pages_whose_rows_were_never_captured_are_not_saved(daemon: Daemon) -> None:
    pages = copied(bytes(32), 3)
    pages.blocks[1][1, 1] = 0
    saver, tally = saver_for(daemon.address, pages.size_bytes)
    saver.submit(pages)
    saver.close()
    assert tally.take() == {"pages_unsaved/no_capture": PAGES}


def test_pages_without_a_daemon_are_not_saved(tmp_path: pathlib.Path) -> None:
    pages = copied(bytes(32), 4)
    saver, tally = saver_for(f"unix://{tmp_path}/absent.sock", 2 * pages.size_bytes)
    saver.submit(pages)
    saver.close()
    assert tally.take() == {"pages_unsaved/unreachable": PAGES}


def test_pages_that_meet_a_defect_are_counted_and_the_next_ones_are_saved(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    with Client.connect(daemon.address, namespace=SPACE, layouts=LAYOUTS) as reader:
        assert reader.root_digest is not None
        pages = copied(reader.root_digest, 5)
        flat = {0: pages.blocks[0], 1: torch.ones(3)}  # torch says IndexError: no third dimension
        broken = dataclasses.replace(pages, blocks=flat)
        saver, tally = saver_for(daemon.address, broken.size_bytes + pages.size_bytes)
        with caplog.at_level(logging.WARNING, "anchorstore.vllm"):
            saver.submit(broken)
            saver.submit(pages)
            saver.close()
    assert tally.take() == {
        "pages_unsaved/error": PAGES,
        "thread_errors/saver": 1,
        "blocks/sealed": 2 * PAGES,
    }
    assert "Traceback" in caplog.text
    assert saver.room_bytes == broken.size_bytes + pages.size_bytes
