"""Both faces of the client behind one: the same test runs over a Client and an AsyncClient.

An AsyncClient lives on a loop of its own; every awaitable that it returns is run to its end at
once, every handle is wrapped the same way.
"""

from __future__ import annotations

import asyncio
import inspect
from types import TracebackType
from typing import Any

from anchorstore.client import AsyncClient, Client
from anchorstore.client.async_client import AsyncBlocks, AsyncReservation, AsyncWindow, Opening

_HANDLES = (AsyncClient, AsyncWindow, AsyncBlocks, AsyncReservation)


class Finished:
    """An asynchronous object whose verbs are finished when they return."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target, self._runner = target, runner

    def _finish(self, value: Any) -> Any:
        if isinstance(value, Opening) or inspect.isawaitable(value):

            async def wait() -> Any:
                return await value

            value = self._runner.run(wait())
        return Finished(value, self._runner) if isinstance(value, _HANDLES) else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._finish(value(*args, **kwargs))

    def __len__(self) -> int:
        return len(self._target)

    def __getitem__(self, index: int) -> Any:
        return self._target[index]

    def __enter__(self) -> Finished:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_client = isinstance(self._target, AsyncClient)
        self._finish(self._target.close() if is_client else self._target.leave())


class Face:
    """Makes clients of one kind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._runner = asyncio.Runner() if name == "async" else None

    def connect(self, address: str, **arguments: Any) -> Any:
        """A client, attached where there is a daemon."""
        if self._runner is None:
            return Client.connect(address, **arguments)
        made = self._runner.run(AsyncClient.connect(address, **arguments))
        return Finished(made, self._runner)

    def join(self, token: bytes, **arguments: Any) -> Any:
        """A client in another one's session."""
        if self._runner is None:
            return Client.join(token, **arguments)
        return Finished(self._runner.run(AsyncClient.join(token, **arguments)), self._runner)

    def pause(self, seconds: float) -> None:
        """Lets what runs beside the calls run."""
        if self._runner is not None:
            self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Ends the loop."""
        if self._runner is not None:
            self._runner.close()
