"""What several files of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.faces import Face
from tests.integration.harness import close_all


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
