"""Clients by adapter and salt: each pair is a namespace, and a namespace is a session.

::

    SpaceKey("", b"")        --> Client        the least recently used one is closed
    SpaceKey("lora-a", b"")  --> Client        where there are more than `limit`
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Iterator

from anchorstore.client import Client
from anchorstore.errors import AnchorStoreError, UsageError
from engine_adapter.vllm.jobs import SpaceKey

log = logging.getLogger("anchorstore.vllm")


class RecentClients:
    """At most `limit` clients; one more closes the least recently used one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: collections.OrderedDict[SpaceKey, Client] = collections.OrderedDict()

    def get(self, key: SpaceKey) -> Client | None:
        """The client of `key`, which counts as a use."""
        client = self._clients.get(key)
        if client is not None:
            self._clients.move_to_end(key)
        return client

    def add(self, key: SpaceKey, client: Client) -> None:
        """Takes a new one in."""
        self._clients[key] = client
        if len(self._clients) > self._limit:
            self._clients.popitem(last=False)[1].close()

    def peek(self, key: SpaceKey) -> Client | None:
        """The same, and no use of it."""
        return self._clients.get(key)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def close(self) -> None:
        """Closes them all."""
        while self._clients:
            self._clients.popitem()[1].close()


class Spaces:
    """At most `limit` clients; `connect` makes one.

    A new client waits for the daemon as long as its deadline; so once one has waited in vain, no
    other is made for `retry_seconds`.  The same goes for one that was refused, but not for a key
    that is wrong itself: that says nothing of others.
    """

    def __init__(
        self, connect: Callable[[SpaceKey], Client], limit: int, retry_seconds: float
    ) -> None:
        self._connect, self._retry_seconds = connect, retry_seconds
        self._retry_at = 0.0
        self._rest = 0.0, ""
        self._clients = RecentClients(limit)

    def get(self, key: SpaceKey) -> Client | str:
        """The client of `key`, or the reason why there is none."""
        until, reason = self._rest
        if time.monotonic() < until:
            return reason
        client = self._clients.get(key)
        if client is None:
            if time.monotonic() < self._retry_at:
                return "unreachable"
            try:
                return self.open(key)
            except AnchorStoreError as error:
                log.warning("no session for adapter %r: %s", key.adapter, error)
                return "refused"
        return client

    def open(self, key: SpaceKey) -> Client:
        """Makes the client of `key`, which has none; AnchorStoreError where it is refused."""
        try:
            client = self._connect(key)
        except AnchorStoreError as error:
            if not isinstance(error, UsageError):
                self._retry_at = time.monotonic() + self._retry_seconds
            raise
        if not client.attached:
            self._retry_at = time.monotonic() + self._retry_seconds
        self._clients.add(key, client)
        return client

    def peek(self, key: SpaceKey) -> Client | None:
        """The client of `key` that has been in a session, if there is one; connects nowhere."""
        client = self._clients.peek(key)
        return None if client is None or client.root_digest is None else client

    def events_dropped(self) -> int:
        """By the clients that there are."""
        return sum(client.events_dropped for client in self._clients)

    def rest(self, reason: str) -> None:
        """A client has waited in vain: for `retry_seconds` no other waits for the same daemon."""
        self._rest = time.monotonic() + self._retry_seconds, reason

    def close(self) -> None:
        """Closes them all."""
        self._clients.close()
