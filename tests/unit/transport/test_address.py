"""Goal: addresses are read as people write them, wrong ones are told.
Method: a table of each.
"""

from __future__ import annotations

from typing import Any

import pytest

from anchorstore.errors import InvalidRequest
from anchorstore.transport.address import TcpAddress, UnixAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:///run/a.sock", UnixAddress("/run/a.sock")),
        ("tcp://host.example:9465", TcpAddress("host.example", 9465)),
        ("tcp://[::1]:1", TcpAddress("::1", 1)),
    ],
)
def test_address_written_rightly_is_read_and_written_back(
    text: str, address: UnixAddress | TcpAddress
) -> None:
    assert parse_address(text) == address and str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unix://run/a.sock", "absolute"),
        ("unix:///" + "x" * 107, "108 bytes, limit 107"),
        ("tcp://host", "host:port"),
        ("tcp://host:0", "port 1 to 65535"),
        ("tcp://host:65536", "port 1 to 65535"),
        ("http://host:1", "unix:// or tcp://"),
        (None, "None: must be text"),
        ("unix:///run/a\0b", "zero byte"),
    ],
)
def test_address_written_wrongly_is_refused(text: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_address(text)
