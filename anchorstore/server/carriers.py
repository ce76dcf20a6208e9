"""The ways in, taken up and down together: Unix socket, framed TCP, gRPC."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from anchorstore.config import Config, parse_address
from anchorstore.server.assembly import tcp_limits, tls_context
from anchorstore.server.dispatch import Dispatcher
from anchorstore.server.limits import ConnectionBudget
from anchorstore.server.local import LocalListener
from anchorstore.server.remote import RemoteListener

if TYPE_CHECKING:
    from anchorstore.server.rpc import RpcServer


class Carriers:
    """What listens, by the configuration.  bind() takes every address before anything starts."""

    def __init__(self, config: Config, dispatcher: Dispatcher) -> None:
        self._config, self._dispatcher = config, dispatcher
        limits, deadlines = config.limits, config.deadlines
        budget = ConnectionBudget(limits.connections, limits.domain_connections)
        self.local = LocalListener(
            path=config.listen.socket,
            mode=config.listen.socket_mode,
            dispatcher=dispatcher,
            budget=budget,
            calls_max=limits.calls_per_connection,
            handshake_seconds=deadlines.handshake_seconds,
            frame_seconds=deadlines.frame_seconds,
            idle_write_seconds=deadlines.idle_write_seconds,
        )
        self.remote: RemoteListener | None = None
        if config.listen.tcp:
            host, port = parse_address(config.listen.tcp)
            self.remote = RemoteListener(
                host, port, dispatcher, tls_context(config), budget, tcp_limits(config)
            )
        self.rpc: RpcServer | None = None

    def bind(self) -> None:
        """Takes every address; ConfigError where one cannot be had."""
        self.local.bind()
        if self.remote is not None:
            self.remote.bind()
        if self._config.listen.grpc:
            self.rpc = self._make_rpc()

    def _make_rpc(self) -> RpcServer:
        from anchorstore.server.rpc import RpcServer, TlsFiles  # grpc is 20 MiB: only where used

        host, port = parse_address(self._config.listen.grpc)
        tls = self._config.tls
        files = None
        if tls.certificate:
            ca = pathlib.Path(tls.client_ca) if tls.client_ca else None
            files = TlsFiles(pathlib.Path(tls.certificate), pathlib.Path(tls.key), ca)
        return RpcServer(
            host,
            port,
            self._dispatcher,
            files,
            calls_max=self._config.limits.connections,
            call_seconds=self._config.deadlines.grpc_seconds,
        )

    async def start(self) -> None:
        """Begins to accept everywhere."""
        await self.local.start()
        if self.remote is not None:
            await self.remote.start()
        if self.rpc is not None:
            await self.rpc.start()

    async def drain(self) -> None:
        """Tells health checkers; what is connected stays connected."""
        if self.rpc is not None:
            await self.rpc.drain()

    async def stop(self) -> None:
        """Ends every connection."""
        await self.local.stop()
        if self.remote is not None:
            await self.remote.stop()
        if self.rpc is not None:
            await self.rpc.stop()

    def addresses(self) -> dict[str, str]:
        """Where to find each, for the log."""
        found = {"socket": str(self.local.path)}
        if self.remote is not None:
            found["tcp"] = f"{self.remote.host}:{self.remote.port}"
        if self.rpc is not None:
            found["grpc"] = f"{self.rpc.host}:{self.rpc.port}"
        return found
