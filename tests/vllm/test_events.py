"""Goal: the daemon knows what vLLM's own cache holds, uses and has given away, and nothing is lost
by that.
Method: one engine beside a daemon with two tiers reads a text, branches off it, forgets its cache
and reads another one; the daemon's metrics tell what it was told.  Then a branch is asked for once
more: all of it is still in the store.
"""

from __future__ import annotations

import pathlib
from typing import Any

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.conftest import EVERY_ROW, POOL, text
from tests.vllm.served import Served
from tests.vllm.told import wait_for

PAGE = 64
PAGES_PER_BLOCK = 10  # vLLM's blocks of this model have 640 tokens
EXTRA: dict[str, Any] = {**EVERY_ROW, "bring_in_seconds": 60.0}


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
