"""What several files of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from anchorstore.cli.main import main
from tests.integration.faces import Face
from tests.integration.harness import Say, close_all


@pytest.fixture
def no_sockets_left() -> Iterator[None]:
    """Closes every connection of the plainest client."""
    yield
    close_all()


@pytest.fixture(params=["blocking", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Both faces of the client, one after the other."""
    made = Face(request.param)
    yield made
    made.close()


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Where `say` looks for its daemon."""
    return tmp_path / "s"


@pytest.fixture
def say(
    socket_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Say:
    """Runs a command line: (exit code, standard output, standard error)."""
    monkeypatch.setenv("ANCHORSTORE__LISTEN__SOCKET", str(socket_path))

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
