"""Goal: who cannot be connected hears why.  Method: a listener that takes no connection."""

from __future__ import annotations

import contextlib
import pathlib
import socket

import pytest

from anchorstore.clock import SystemClock
from anchorstore.errors import ConnectFailed
from anchorstore.transport.address import parse_address
from anchorstore.transport.tcp import dial


def test_dial_of_a_listener_that_is_stopped_says_so(tmp_path: pathlib.Path) -> None:
    path, clock = tmp_path / "socket", SystemClock()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        listener.listen(0)
        with pytest.raises(ConnectFailed, match="it is stopped, or overloaded"):
            for _ in range(10):
                address = parse_address(f"unix://{path}")
                stack.enter_context(dial(address, clock.now() + 5.0, clock))
