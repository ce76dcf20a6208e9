"""Configuration of who reaches the daemon, how, and as whom: node, listen, tls, auth, log.

Every key states its meaning and when to change it (anchorstore/config/fields.py).  Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from anchorstore.config import values
from anchorstore.config.fields import setting


@dataclasses.dataclass(frozen=True, slots=True)
class NodeConfig:
    """This daemon among others."""

    name: str = setting(
        values.text(empty_means="the host's name"),
        "",
        "Name of this daemon in its logs.",
        "Where the host's name says nothing, e.g. in a pod: set it to the Kubernetes node's name.",
    )
    drain_seconds: float = setting(
        values.duration("0s", "1h"),
        "10s",
        "Longest time between SIGTERM and the end: the daemon takes no new work, answers readyz "
        "with 503, and goes when the puts under way are done.",
        "Keep it below the supervisor's kill timeout (terminationGracePeriodSeconds).",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where the daemon can be reached."""

    socket: str = setting(
        values.path(bytes_max=107),
        "/run/anchorstore/engine.sock",
        "Unix socket for engines and operators on this host (the kernel's limit is 107 bytes). Its "
        "directory is made where it is missing.",
        "Where /run is not writable, or several daemons share a host.",
    )
    socket_mode: int = setting(
        values.mode(),
        "0660",
        "Permission bits of the socket: who may write to it may attach.",
        '"0666" where engines run as users outside the group; then name domains in auth.uids.',
    )
    tcp: str = setting(
        values.address(empty_means="off"),
        "",
        "Framed TCP for engines on other hosts: the same calls, with the blocks' bytes.",
        "When an engine runs without a daemon on its own host.",
    )
    grpc: str = setting(
        values.address(empty_means="off"),
        "",
        "gRPC with health and reflection, for remote control and operators.  Moves no block.",
        "When tools speak gRPC.",
    )
    http: str = setting(
        values.address(empty_means="off"),
        "127.0.0.1:9464",
        "HTTP for /metrics, /livez and /readyz.  Read-only: counts, never a key or a name of a "
        "client, so it needs neither TLS nor token.",
        '"0.0.0.0:9464" in a pod, where the kubelet probes and Prometheus scrapes.',
    )
    insecure_bind: bool = setting(
        values.switch(),
        False,
        "Lets listen.tcp and listen.grpc bind beyond loopback without TLS and tokens.",
        "Only in a network where every host may read and write every tenant's pages.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS of listen.tcp and listen.grpc."""

    certificate: str = setting(
        values.path(empty_means="no TLS"),
        "",
        "PEM file with the server's certificate chain.",
        "Before binding beyond loopback.",
    )
    key: str = setting(
        values.path(empty_means="no TLS"),
        "",
        "PEM file with the certificate's private key.",
        "Together with tls.certificate.",
    )
    client_ca: str = setting(
        values.path(empty_means="clients need no certificate"),
        "",
        "PEM file: only clients with a certificate signed by one of these may connect.",
        "Where tokens alone are not enough.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who is whom: every connection belongs to one domain, the wall that nothing crosses."""

    default_domain: str = setting(
        values.text(),
        "default",
        "Domain of local users that auth.uids does not name, and of remote engines where there is "
        "no token file.",
        "Seldom: name users in auth.uids instead.",
    )
    token_file: str = setting(
        values.path(
            empty_means="remote engines need no token, their domain is auth.default_domain"
        ),
        "",
        'Bearer tokens of remote engines: one "domain token" a line, # starts a comment.  The '
        "domain @admin makes an operator.",
        "Needed for listen.tcp and listen.grpc beyond loopback.",
    )
    admin_token_file: str = setting(
        values.path(empty_means="no remote operator"),
        "",
        "Bearer tokens of remote operators, one a line: they see and change every domain.",
        "When status, ls, check or explain are to work from another host.",
    )
    admin_uids: tuple[int, ...] = setting(
        values.uid_list(),
        [],
        "Local users who may act as operators.  Root and the daemon's own user always may.",
        "When operators log in as themselves.",
    )
    uids: Mapping[int, str] = setting(
        values.uid_table(),
        {},
        'Domain of local users, by user id: "1000" = "team-a".',
        "As soon as two tenants run engines on this host.",
    )
    deny_unknown_uids: bool = setting(
        values.switch(),
        False,
        "Refuses local users that auth.uids does not name, instead of auth.default_domain.",
        "With more than one tenant on the host.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LogConfig:
    """The daemon's log, on standard error."""

    level: str = setting(
        values.choice("debug", "info", "warning", "error"),
        "info",
        "Least severe event that is written.",
        '"debug" while looking for something.',
    )
    format: str = setting(
        values.choice("auto", "json", "text"),
        "auto",
        "One JSON object a line, or text for people.  auto = text on a terminal, else json.",
        "Seldom.",
    )
