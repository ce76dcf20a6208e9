"""Where a daemon listens, as people write it: "unix:///run/anchorstore/engine.sock", "tcp://a:1".

Pure.  The limits are the kernel's (a Unix socket path has room for 107 bytes) and TCP's.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re

from anchorstore.errors import InvalidRequest

UNIX_PATH_BYTES_MAX = 107
_PORT = re.compile(r"[0-9]{1,5}")
_IN_BRACKETS = re.compile(r"\[(.*)\]")
_NAME = re.compile(r"[^\s\[\]:/@?#%\\]+")
"""What separates the parts of an address stands in no name; the resolver knows the rest."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket on this host: descriptors can be passed, blocks are read in place."""

    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclasses.dataclass(frozen=True, slots=True)
class TcpAddress:
    """Framed TCP: blocks cross as payloads."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str) -> Address:
    """The address in `text`; InvalidRequest says what is wrong with it."""
    if not isinstance(text, str):
        raise InvalidRequest(f"address {text!r}: must be text, unix:///path or tcp://host:port")
    if not text.isprintable():
        raise InvalidRequest(f"address {text!r}: has a character that cannot be printed")
    if text.startswith("unix://"):
        return _unix(text)
    if text.startswith("tcp://"):
        return _tcp(text)
    raise InvalidRequest(f"address {text!r}: must start with unix:// or tcp://")


def _unix(text: str) -> UnixAddress:
    path = text.removeprefix("unix://")
    size = len(path.encode())
    if not path.startswith("/"):
        raise InvalidRequest(f"address {text!r}: the path must be absolute, unix:///path")
    if path.endswith("/"):
        raise InvalidRequest(f"address {text!r}: the path must name a socket, not a directory")
    if size > UNIX_PATH_BYTES_MAX:
        raise InvalidRequest(
            f"address {text!r}: the path has {size} bytes, limit {UNIX_PATH_BYTES_MAX}"
        )
    return UnixAddress(path)


def _tcp(text: str) -> TcpAddress:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise InvalidRequest(f"address {text!r}: must be tcp://host:port, port 1 to 65535")
    bracketed = _IN_BRACKETS.fullmatch(host)
    if bracketed is None and not _NAME.fullmatch(host):
        raise InvalidRequest(
            f"address {text!r}: {host!r} is no host: a name, an IPv4 address or [an IPv6 address]"
        )
    if bracketed is not None:
        try:
            host = str(ipaddress.IPv6Address(bracketed[1]))
        except ValueError as error:
            raise InvalidRequest(f"address {text!r}: {error}") from error
    return TcpAddress(host, int(port))
