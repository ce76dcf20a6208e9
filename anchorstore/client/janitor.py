"""Ended leases that no lookup takes along are ended by a small thread.

::

    release --> pending --+--> rides on the next lookup
                          +--> after release_linger_seconds: Janitor --> flush

It is there only while leases wait, so a client that stops calling does not sit on its leases until
they run out.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from anchorstore.client.session import log
from anchorstore.errors import AnchorStoreError, HandleClosed

if TYPE_CHECKING:
    from anchorstore.client.client import Client

IDLE_ROUNDS = 8  # rounds without leases, after which the thread ends


class Janitor:
    """A thread that ends leases which no lookup takes along; there only while some wait."""

    def __init__(self, client: Client, linger_seconds: float) -> None:
        self._client = weakref.ref(client)
        self._session = client._session
        self._linger_seconds = linger_seconds
        self._lock = threading.Lock()
        self._is_awake = False

    def wake(self) -> None:
        """Leases wait from now on."""
        if self._is_awake:  # it looks at them once more after it has said that it is not
            return
        with self._lock:
            is_there, self._is_awake = self._is_awake, True
        if not is_there:
            threading.Thread(target=self._work, name="anchorstore-janitor", daemon=True).start()

    def _work(self) -> None:
        idle = 0
        while not self._may_end(idle):
            time.sleep(self._linger_seconds)
            idle = 0 if self._session.has_news else idle + 1
            if self._session.has_news:
                self._flush()

    def _flush(self) -> None:
        client = self._client()
        if client is None:
            return
        try:
            client.flush()
        except HandleClosed:  # closed, or this is a fork: they are not ours to end
            self._session.forget_news()
        except AnchorStoreError as error:
            log.debug("%s: leases were not ended: %s", client.address, error)

    def _may_end(self, idle: int) -> bool:
        if self._client() is None:
            return True
        if idle < IDLE_ROUNDS:
            return False
        self._is_awake = False
        if not self._session.has_news:
            return True
        with self._lock:
            is_replaced, self._is_awake = self._is_awake, True
        return is_replaced
