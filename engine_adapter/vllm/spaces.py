"""Clients by adapter and salt: each pair is a namespace, and a namespace is a session.

::

    SpaceKey("", b"")        --> Client        the least recently used one is closed
    SpaceKey("lora-a", b"")  --> Client        where there are more than `limit`
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable

from anchorstore.client import Client
from anchorstore.errors import AnchorStoreError
from engine_adapter.vllm.jobs import SpaceKey

log = logging.getLogger("anchorstore.vllm")


class Spaces:
    """At most `limit` clients; `connect` makes one."""

    def __init__(self, connect: Callable[[SpaceKey], Client], limit: int) -> None:
        self._connect = connect
        self._limit = limit
        self._clients: collections.OrderedDict[SpaceKey, Client] = collections.OrderedDict()

    def get(self, key: SpaceKey) -> Client | None:
        """The client of `key`; None where the daemon refuses the session."""
        client = self._clients.get(key)
        if client is None:
            try:
                client = self._connect(key)
            except AnchorStoreError as error:
                log.warning("no session for adapter %r: %s", key.adapter, error)
                return None
            self._clients[key] = client
            if len(self._clients) > self._limit:
                self._clients.popitem(last=False)[1].close()
        self._clients.move_to_end(key)
        return client

    def drop(self, key: SpaceKey) -> None:
        """Closes the client of `key`, if there is one."""
        client = self._clients.pop(key, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        """Closes them all."""
        while self._clients:
            self._clients.popitem()[1].close()
