"""Goal: what a user starts works: OpenAI servers share prefixes over one daemon, salts keep them
apart, the daemon may die, hang and come back under traffic, and the metrics tell.
Method: two servers with the adapter's flag and nothing else; a branch on one of what the other
has read; the daemon killed, frozen and restarted between requests.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from anchorstore.testing.daemon import Daemon
from tests.vllm import tiny
from tests.vllm.conftest import EVERY_ROW, text
from tests.vllm.server import Completion, Server
from tests.vllm.told import told, wait_for

PAGE = 64


@pytest.fixture(scope="module")
def servers(
    models: pathlib.Path, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    model, logs = tiny.make("qwen3_next", models), tmp_path_factory.mktemp("logs")
    extra = {"daemon": daemon.address, **EVERY_ROW}
    with Server(model, logs / "a", extra=extra) as a, Server(model, logs / "b", extra=extra) as b:
        yield a.ready(), b.ready()


def read(server: Server, daemon: Daemon, prompt: list[int], *, salt: str = "") -> Completion:
    """An answer to a prompt that is new to the daemon, once all of its pages are saved."""
    before = told(daemon)["pages"]
    answer = server.complete(prompt, salt=salt)
    wait_for(daemon, pages=before + len(prompt) // PAGE)
    return answer


def branch(base: list[int], cut: int, seed: int) -> list[int]:
    """A prompt that leaves `base` at `cut`."""
    return base[:cut] + text(seed, 37)


def test_branch_on_the_second_server_reuses_what_the_first_has_read(
    servers: tuple[Server, Server], base: list[int], daemon: Daemon
) -> None:
    first, second = servers
    assert read(first, daemon, base).cached == 0
    assert second.complete(branch(base, 1400, 1)).cached == 1344
    assert second.metrics()["reused_tokens_total"] == 1344
    assert second.metrics()["requests_total{hit}"] == 1


def test_branch_with_another_salt_reuses_nothing(
    servers: tuple[Server, Server], base: list[int], daemon: Daemon
) -> None:
    first, second = servers
    assert read(first, daemon, base, salt="alice").cached == 0
    assert second.complete(branch(base, 1400, 2), salt="bob").cached == 0
    assert second.complete(branch(base, 1400, 3), salt="alice").cached == 1344


def test_requests_while_the_daemon_is_gone_are_answered_without_it(
    servers: tuple[Server, Server], base: list[int], daemon: Daemon
) -> None:
    first, second = servers
    prompt = branch(base, 900, 4)
    reused = second.complete(prompt)
    assert reused.cached == 896
    daemon.kill()
    fresh = text(60, 600)
    assert first.complete(fresh).cached == 0
    assert second.complete(fresh).text == first.complete(fresh).text
    daemon.start()
    daemon.freeze()
    other = text(61, 600)
    frozen = first.complete(other)
    daemon.thaw()
    assert frozen.cached == 0
    assert "lost_tokens_total{unreachable}" in first.metrics()
    assert first.complete(base + text(62, 40)).text
    assert second.complete(branch(base, 700, 5)).text
