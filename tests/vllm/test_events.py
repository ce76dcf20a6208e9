"""Goal: the daemon knows what vLLM's own cache holds, uses and has given away, and nothing is lost
by that.
Method: one engine beside a daemon with two tiers reads a text, branches off it, forgets its cache
and reads another one; the daemon's metrics tell what it was told.  Then a branch is asked for once
more: all of it is still in the store.
"""

from __future__ import annotations

import pathlib
import time
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.conftest import EVERY_ROW, POOL, text
from tests.vllm.served import Served

PAGE = 64
PAGES_PER_BLOCK = 10  # vLLM's blocks of this model have 640 tokens
EXTRA: dict[str, Any] = {**EVERY_ROW, "bring_in_seconds": 60.0}
WAIT_SECONDS = 60.0


def told(daemon: Daemon) -> dict[str, int]:
    """Events by kind, and the daemon's other numbers of engines."""
    with urllib.request.urlopen(f"{daemon.http_address}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    named = {s.labels["kind"]: s for s in samples if s.name == "anchorstore_engine_events_total"}
    named |= {s.name.removeprefix("anchorstore_"): s for s in samples if not s.labels}
    return {name: int(sample.value) for name, sample in named.items()}


def wait_for(daemon: Daemon, **least: int) -> dict[str, int]:
    """Until at least so much was told of each kind."""
    deadline = time.monotonic() + WAIT_SECONDS
    while any((found := told(daemon)).get(kind, 0) < count for kind, count in least.items()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_daemon_knows_what_vllm_holds_uses_and_gives_away(
    models: pathlib.Path, tmp_path: pathlib.Path, base: list[int], branches: list[list[int]]
) -> None:
    model = tiny.make("qwen3_next", models)
    settings = {**POOL, "tiers.nvme.devices": f"{tmp_path}:512MiB"}
    with Daemon(tmp_path / "daemon", settings=settings) as daemon:
        with Served(model, tmp_path / "engine", daemon=daemon.address, extra=EXTRA) as engine:
            engine.generate([base])
            blocks = len(base) // PAGE // PAGES_PER_BLOCK
            found = wait_for(daemon, stored=blocks * PAGES_PER_BLOCK)
            assert found["removed"] == found["touched"] == found["pinned"] == 0, found
            assert found["engines"] == 1

            engine.generate([branches[3]])  # off at 1999: vLLM's own cache holds three blocks
            found = wait_for(daemon, touched=PAGES_PER_BLOCK, pinned=1, unpinned=1)
            assert found["pages_let_go_total"] == found["pinned_pages"] == 0, found

            engine.reset()
            engine.generate([text(9, 2 * PAGE * PAGES_PER_BLOCK)])
            found = wait_for(daemon, removed=blocks * PAGES_PER_BLOCK)
            assert found["pages_let_go_total"] >= blocks * PAGES_PER_BLOCK
            assert found["dropped"] == 0 and found["unknown"] <= found["stored"], (
                f"on a busy machine pages come later than what is told of them, once: {found}"
            )
            [again] = engine.generate([branches[0]])
            assert again.cached == 1400 // PAGE * PAGE, "what was let go is all there"
        found = wait_for(daemon, removed=blocks * PAGES_PER_BLOCK)
        assert found["engines"] == found["pinned_pages"] == 0
