"""The client's end of a connection: dialled sockets, plain or TLS, with one deadline for it all.

Name resolution is the one step that the kernel gives no deadline for; use addresses where that
matters.  TCP_NODELAY: a request is one write.  Keepalive finds a peer that vanished without a
word.
"""

from __future__ import annotations

import socket
import ssl

from anchorstore.clock import Clock
from anchorstore.errors import ConnectFailed, DeadlineExceeded
from anchorstore.transport.address import Address, TcpAddress
from anchorstore.transport.reasons import reason_of

KEEPALIVE_IDLE_SECONDS = 30
KEEPALIVE_INTERVAL_SECONDS = 10
KEEPALIVE_PROBES = 3


def remaining(until: float, clock: Clock, doing: str) -> float:
    """Seconds left; DeadlineExceeded where there are none."""
    left = until - clock.now()
    if left <= 0:
        raise DeadlineExceeded(f"no time left to {doing}")
    return left


def dial(
    address: Address, until: float, clock: Clock, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """A connected blocking socket; ConnectFailed or DeadlineExceeded says why there is none."""
    try:
        if isinstance(address, TcpAddress):
            return _dial_tcp(address, until, clock, tls)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(remaining(until, clock, f"connect to {address}"))
            connection.connect(address.path)
        except BaseException:
            connection.close()
            raise
        return connection
    except TimeoutError as error:
        if isinstance(error, DeadlineExceeded):
            raise
        raise DeadlineExceeded(f"{address}: no connection in time") from error
    except BlockingIOError as error:  # of a Unix socket, which does not wait for a place
        message = f"{address}: too many wait to be connected: it is stopped, or overloaded"
        raise ConnectFailed(message) from error
    except OSError as error:
        raise ConnectFailed(f"{address}: {reason_of(error)}") from error


def _dial_tcp(
    address: TcpAddress, until: float, clock: Clock, tls: ssl.SSLContext | None
) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failure: OSError = ConnectionError(f"{address}: no address")
    for family, kind, protocol, _, target in found:
        connection = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            connection.settimeout(remaining(until, clock, f"connect to {address}"))
            connection.connect(target)
            set_tcp_options(connection)
            if tls is None:
                return connection
            connection.settimeout(remaining(until, clock, f"connect to {address}"))
            return tls.wrap_socket(connection, server_hostname=address.host)
        except OSError as error:
            connection.close()
            if isinstance(error, DeadlineExceeded | ssl.SSLError):
                raise
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def set_tcp_options(connection: socket.socket) -> None:
    """No delay, and keepalive."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
