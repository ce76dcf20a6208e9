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
        ("tcp://[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1)),
        ("tcp://10.0.0.1:65535", TcpAddress("10.0.0.1", 65535)),
        ("tcp://node_3.münchen.example:1", TcpAddress("node_3.münchen.example", 1)),
        ("unix:///run/with blank.sock", UnixAddress("/run/with blank.sock")),
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
        ("unix:///run/a\0b", "cannot be printed"),
        ("tcp://a\nb:5", "cannot be printed"),
        ("unix:///", "name a socket"),
        ("unix:///run/", "name a socket"),
        ("tcp://[::1:5", r"'\[::1' is no host"),
        ("tcp://::1]:5", r"'::1\]' is no host"),
        ("tcp://::1:5", "'::1' is no host"),
        ("tcp://[]:5", "cannot be empty"),
        ("tcp://[zz]:5", "zz"),
        ("tcp://[10.0.0.1]:5", "10.0.0.1"),
        ("tcp://a b:5", "'a b' is no host"),
        ("tcp://a/b:5", "'a/b' is no host"),
        ("tcp://me@host:5", "'me@host' is no host"),
        ("tcp://tcp://host:5", "is no host"),
        ("tcp://host:" + "9" * 5000, "port 1 to 65535"),
        ("tcp://host:٣", "port 1 to 65535"),
    ],
)
def test_address_written_wrongly_is_refused(text: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_address(text)
