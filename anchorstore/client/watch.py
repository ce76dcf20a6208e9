"""Clients that nobody calls learn here that their daemon has hung up.

::

    thread, one a process:  every second  --look-->  driver  --hung up?-->  lets go of the mappings

A daemon that is killed leaves its memory to whoever has it mapped.  A client in the middle of calls
learns of that by the next one; an idle one would keep a pool that nobody serves until it is asked
again.  What open windows still read stays mapped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref

from anchorstore.client.blocking import Driver

log = logging.getLogger("anchorstore.client")

WATCH_SECONDS = 1.0


class Watch:
    """Drivers that are looked at for as long as somebody else keeps them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drivers: weakref.WeakSet[Driver] = weakref.WeakSet()
        self._process = 0  # where the thread runs; 0 for none

    def add(self, driver: Driver) -> None:
        """From now on it is looked at, until its client is closed."""
        with self._lock:
            if self._process != os.getpid():  # the first one, or a fork, which has no thread
                self._drivers = weakref.WeakSet()
                self._process = os.getpid()
                threading.Thread(target=self._work, name="anchorstore-watch", daemon=True).start()
            self._drivers.add(driver)

    def _work(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with self._lock:
                drivers = [each for each in self._drivers if not each.session.is_closed]
                self._drivers = weakref.WeakSet(drivers)
                if not drivers:
                    self._process = 0
                    return
            while drivers:
                self._look(drivers.pop())

    @staticmethod
    def _look(driver: Driver) -> None:
        try:
            driver.look()
        except Exception:
            log.exception("%s: it was not seen whether it has hung up", driver.session.address)


WATCH = Watch()
