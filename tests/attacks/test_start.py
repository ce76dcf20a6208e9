"""Goal: no start, however configured or timed, lets strangers in or two daemons share a socket.

Method: token files that hold no token, not text, or one token for two domains; listeners that bind
one path in every order, with and without what a dead daemon leaves behind.
"""

from __future__ import annotations

import pathlib
import socket
from typing import Any, cast

import pytest

from anchorstore.errors import ConfigError
from anchorstore.server.auth import read_admin_tokens, read_tokens
from anchorstore.server.limits import ConnectionBudget
from anchorstore.server.local import LocalListener

SECRET = "0123456789abcdef"


@pytest.mark.parametrize("read", [read_tokens, read_admin_tokens])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "no token in"),
        (b"# team-a\n\n", "no token in"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_token_file_without_a_token_is_refused(
    tmp_path: pathlib.Path, read: Any, content: bytes, named: str
) -> None:
    """An engine needs no token where none is known: an empty file would let everybody in."""
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"auth.*{named}"):
        read(path)


def test_token_of_two_domains_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"team-a {SECRET}\nteam-b {SECRET}\n")
    with pytest.raises(ConfigError, match=":2: the token stands above"):
        read_tokens(path)


def listener(path: pathlib.Path) -> LocalListener:
    """One that is bound and never accepts, as while a daemon touches its pool."""
    budget = ConnectionBudget(1, 1)
    return LocalListener(str(path), 0o600, cast(Any, None), budget, 1, 1.0, 1.0, 1.0)


async def test_second_daemon_while_the_first_only_binds_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "engine.sock"
    first, second = listener(path), listener(path)
    first.bind()
    inode = path.stat().st_ino
    with pytest.raises(ConfigError, match="another daemon"):
        second.bind()
    await second.stop()
    assert path.stat().st_ino == inode
    await first.stop()
    assert list(tmp_path.iterdir()) == []


async def test_leftovers_of_a_dead_daemon_are_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "engine.sock"
    (tmp_path / "engine.sock.lock").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    alive = listener(path)
    alive.bind()
    await alive.stop()
    assert list(tmp_path.iterdir()) == []
