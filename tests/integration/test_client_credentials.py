"""Goal: over TLS and with tokens the client works as without; without the right ones it is told.
Method: a daemon with a certificate made here and a token file.
"""

from __future__ import annotations

import dataclasses
import pathlib
import ssl
from collections.abc import Iterator

import numpy as np
import pytest

from anchorstore.client import ClientOptions, NeedAll
from anchorstore.errors import Refused, Unauthenticated
from anchorstore.testing.daemon import Daemon
from tests.integration.client_world import KV, LAYOUTS, OPTIONS, namespace, stored
from tests.integration.faces import Face
from tests.integration.test_remote import certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, made: dict[str, str]) -> Iterator[Daemon]:
    folder: pathlib.Path = tmp_path_factory.mktemp("daemon")
    tokens = folder / "tokens"
    tokens.write_text("team-a right-token-of-team-a-0123456789\n")
    tokens.chmod(0o600)
    settings = {
        "tls.certificate": made["certificate"],
        "tls.key": made["key"],
        "auth.token_file": str(tokens),
    }
    with Daemon(folder / "daemon", settings=settings) as running:
        yield running


def options(made: dict[str, str], token: str) -> ClientOptions:
    return dataclasses.replace(OPTIONS, token=token, tls_ca=made["certificate"])


def local(daemon: Daemon) -> str:
    """The name in the certificate, not the address that the daemon logged."""
    return daemon.tcp_address.replace("127.0.0.1", "localhost")


def test_client_with_token_over_tls_moves_blocks(
    daemon: Daemon, face: Face, made: dict[str, str]
) -> None:
    right = options(made, "right-token-of-team-a-0123456789")
    with face.connect(
        local(daemon), namespace=namespace(), layouts=LAYOUTS, options=right
    ) as client:
        pages = stored(client, 40)
        out = np.empty((40, KV.block_bytes()), np.uint8)
        with client.lookup(pages.hashes, [NeedAll(0)]) as window:
            window.blocks(0).copy_into(out)
        assert (out == pages.kv).all()


@pytest.mark.parametrize("token", ["", "wrong-token-0123456789"])
def test_client_without_the_right_token_is_refused_at_once(
    daemon: Daemon, face: Face, made: dict[str, str], token: str
) -> None:
    with pytest.raises(Refused) as caught:
        face.connect(
            local(daemon), namespace=namespace(), layouts=LAYOUTS, options=options(made, token)
        )
    assert caught.type is Unauthenticated and "0123456789" not in str(caught.value)


def test_client_that_does_not_know_the_authority_stays_away(daemon: Daemon, face: Face) -> None:
    with face.connect(
        local(daemon),
        namespace=namespace(),
        layouts=LAYOUTS,
        options=dataclasses.replace(OPTIONS, tls=ssl.create_default_context()),
    ) as client:
        assert not client.attached
        with client.lookup(bytes(32), [NeedAll(0)]) as window:
            assert window.miss == "unreachable"


def test_client_in_plain_text_at_a_tls_port_is_unreachable(daemon: Daemon, face: Face) -> None:
    with face.connect(
        local(daemon),
        namespace=namespace(),
        layouts=LAYOUTS,
        options=dataclasses.replace(OPTIONS, deadline_seconds=2.0),
    ) as client:
        assert not client.attached
