"""Where a daemon listens, as people write it: "unix:///run/anchorstore/engine.sock", "tcp://a:1".

Pure.  The limits are the kernel's (a Unix socket path has room for 107 bytes) and TCP's.
"""

from __future__ import annotations

import dataclasses

from anchorstore.errors import InvalidRequest

UNIX_PATH_BYTES_MAX = 107


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
    if "\0" in text:
        raise InvalidRequest(f"address {text!r}: has a zero byte")
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        size = len(path.encode())
        if not path.startswith("/"):
            raise InvalidRequest(f"address {text!r}: the path must be absolute, unix:///path")
        if size > UNIX_PATH_BYTES_MAX:
            raise InvalidRequest(
                f"address {text!r}: the path has {size} bytes, limit {UNIX_PATH_BYTES_MAX}"
            )
        return UnixAddress(path)
    if text.startswith("tcp://"):
        host, _, port = text.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidRequest(f"address {text!r}: must be tcp://host:port, port 1 to 65535")
        return TcpAddress(host, int(port))
    raise InvalidRequest(f"address {text!r}: must start with unix:// or tcp://")
