"""Goal: clients are looked at for as long as they are open and somebody has them, whatever goes
wrong with one of them, by one thread that ends when it has nothing to do.
Method: drivers that only count, and seconds that are short.
"""

from __future__ import annotations

import logging
import threading
import time
import types
from collections.abc import Callable
from typing import Any, cast

import pytest

from anchorstore.client import watch
from anchorstore.client.blocking import Driver
from anchorstore.client.watch import Watch


class Counting:
    """A driver."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.session = types.SimpleNamespace(is_closed=False, address="unix:///daemon")
        self.looks, self._is_broken = 0, is_broken

    def look(self) -> None:
        self.looks += 1
        if self._is_broken:
            raise OSError("a bad descriptor")


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCH_SECONDS", 0.001)


def added(watched: Watch, driver: Counting) -> Counting:
    watched.add(cast(Driver, driver))
    return driver


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "anchorstore-watch"}


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def test_open_clients_are_looked_at_by_one_thread_until_they_are_closed() -> None:
    others, watched = threads(), Watch()
    first, second = added(watched, Counting()), added(watched, Counting())
    eventually(lambda: first.looks > 2 and second.looks > 2)
    assert len(threads() - others) == 1  # those of other tests may end at any moment
    first.session.is_closed = True
    seen = second.looks
    eventually(lambda: second.looks > seen + 2)
    stopped = first.looks
    eventually(lambda: second.looks > seen + 5)
    assert first.looks == stopped
    second.session.is_closed = True
    eventually(lambda: threads() <= others)
    third = added(watched, Counting())
    eventually(lambda: third.looks)
    third.session.is_closed = True


def test_client_that_nobody_has_any_more_is_let_go() -> None:
    others, watched = threads(), Watch()
    added(watched, Counting())
    eventually(lambda: threads() <= others)


def test_what_goes_wrong_with_one_client_is_logged_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watch()
    with caplog.at_level(logging.ERROR, "anchorstore.client"):
        broken, other = added(watched, Counting(is_broken=True)), added(watched, Counting())
        eventually(lambda: broken.looks > 1 and other.looks > 1)
    assert "a bad descriptor" in caplog.text and "unix:///daemon" in caplog.text
    broken.session.is_closed = other.session.is_closed = True
