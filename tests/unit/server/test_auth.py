"""Goal: a domain comes from the kernel or from a valid token, and from nothing else.
Method: tables of users and tokens; files with every mistake; a connection that changes its mind.
"""

from __future__ import annotations

import os
import pathlib

import pytest

from anchorstore.errors import ConfigError, Forbidden, Unauthenticated
from anchorstore.server.auth import (
    Authenticator,
    Identity,
    Token,
    read_admin_tokens,
    read_tokens,
)
from anchorstore.server.peer import Carrier, Peer

A, B, ADMIN = "a" * 16, "b" * 20, "c" * 32
TOKENS = [Token("team-a", A.encode()), Token("team-b", B.encode()), Token("@admin", ADMIN.encode())]


def test_user_in_table_gets_its_domain_and_others_the_default() -> None:
    auth = Authenticator({4001: "team-a"}, "default", admin_uids=[4002])
    assert auth.of_user(4001) == Identity("team-a")
    assert auth.of_user(4003) == Identity("default")
    assert auth.of_user(4002) == Identity("default", is_admin=True)


def test_root_and_own_user_are_operators() -> None:
    auth = Authenticator({}, "default")
    assert auth.of_user(0).is_admin and auth.of_user(os.getuid()).is_admin


def test_user_unknown_without_default_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="4003"):
        Authenticator({4001: "team-a"}, None).of_user(4003)


def test_token_of_domain_decides() -> None:
    auth = Authenticator({}, "default", TOKENS)
    assert auth.of_token(A) == Identity("team-a")
    assert auth.of_token(B) == Identity("team-b")
    assert auth.of_token(ADMIN).is_admin


@pytest.mark.parametrize("secret", ["", "nonsense", A[:-1], A + "a", "\N{SNOWMAN}"])
def test_token_that_is_wrong_or_missing_is_refused(secret: str) -> None:
    with pytest.raises(Unauthenticated, match="token"):
        Authenticator({}, "default", TOKENS).of_token(secret)


def test_token_where_none_is_configured_counts_only_when_empty() -> None:
    auth = Authenticator({}, "default")
    assert auth.of_token("") == Identity("default")
    with pytest.raises(Unauthenticated):
        auth.of_token(A)
    with pytest.raises(Unauthenticated):
        Authenticator({}, None).of_token("")


def test_token_files_are_read_line_by_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# engines\nteam-a {A}\n\n  team-b\t{B}\n")
    assert read_tokens(path) == TOKENS[:2]
    path.write_text(f"{ADMIN}\n")
    assert read_admin_tokens(path) == TOKENS[2:]


@pytest.mark.parametrize(
    ("text", "words"),
    [("team-a", "1 words"), (f"team-a {A} x", "3 words"), ("team-a short", "token of 5 bytes")],
)
def test_token_file_with_a_mistake_names_line_and_hides_token(
    tmp_path: pathlib.Path, text: str, words: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"\n{text}\n")
    with pytest.raises(ConfigError, match=f"{path}:2: .*{words}") as refusal:
        read_tokens(path)
    assert A not in str(refusal.value)


def test_token_file_that_is_missing_names_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.token_file: cannot read .*nowhere"):
        read_tokens(tmp_path / "nowhere")


def test_token_in_repr_is_hidden() -> None:
    assert A not in repr(TOKENS[0])


def test_connection_with_a_session_cannot_change_domain() -> None:
    auth, peer = Authenticator({}, "default", TOKENS), Peer(Carrier.TCP, "peer")
    assert peer.authenticate(auth, A).domain == "team-a"
    assert peer.authenticate(auth, "").domain == "team-a"
    peer.sessions.add(b"session")
    with pytest.raises(Forbidden, match="team-a"):
        peer.authenticate(auth, B)
    assert peer.authenticate(auth, ADMIN).is_admin  # for that call alone
    assert not peer.authenticate(auth, "").is_admin
