"""The blocking face: one plain socket, one lock, calls that return within their deadline.

::

    Client.lookup(...) --> run(steps) --> Call: sendall, recv_into ... done

No event loop and no thread on a call's path: a lookup costs its system calls and the decoding.
Any number of threads may share a client; calls go one after another.  A client belongs to the
process that made it: after a fork, calls raise (join the session from the child instead).
"""

from __future__ import annotations

import os
import select
import socket
import threading
from typing import Any, TypeVar

from anchorstore.client import mapping
from anchorstore.client.effects import Call, Dial, Effect, Enter, Hangup, Map, Steps, Work
from anchorstore.client.exchange import Exchange, decode
from anchorstore.client.session import Session
from anchorstore.errors import AnchorStoreError, ConnectFailed, DeadlineExceeded, HandleClosed
from anchorstore.transport.address import UnixAddress
from anchorstore.transport.reasons import reason_of
from anchorstore.transport.tcp import dial

T = TypeVar("T")

_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
TIMEOUT_SLACK = 0.02  # a socket's timeout is set anew where it is off by more of what is left


class Driver:
    """Performs the steps' effects on this thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._tls = session.options.tls_context()
        self._socket: socket.socket | None = None
        self._timeout = 0.0  # as set on the socket
        self._exchange = Exchange()

    def run(self, steps: Steps[T]) -> T:
        """The steps' result; raises what they raise."""
        if os.getpid() != self._process:
            steps.close()
            raise HandleClosed(
                f"client of {self.session.address} belongs to process {self._process}, this is "
                f"{os.getpid()}: use Client.join here"
            )
        is_inside = False
        try:
            effect = next(steps)
            while True:
                try:
                    result: Any = None
                    if type(effect) is Call:
                        result = self._call(effect)
                    elif type(effect) is Enter:
                        is_inside = is_inside or self._enter(effect.until)
                    elif type(effect) is Work:
                        if is_inside:
                            is_inside = False
                            self._leave()
                        result = effect.function()
                    else:
                        result = self._perform(effect)
                except AnchorStoreError as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()
            if is_inside:
                self._leave()

    def look(self) -> None:
        """Between calls: whether the daemon has hung up; see Session.let_go."""
        if not self._lock.acquire(blocking=False):
            return  # a call is under way: the next look will tell
        try:
            if self._socket is not None and _has_hung_up(self._socket):
                self._hang_up()
            if self._socket is None and self.session.has_memory:
                self.session.let_go()
        finally:
            self._lock.release()

    def _leave(self) -> None:
        self.session.gate.settle()
        self._lock.release()

    def _enter(self, until: float) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        left = until - self.session.clock.now()
        if self._lock.acquire(timeout=max(0.0, left)):
            return True
        raise DeadlineExceeded("another call of this client took too long")

    def _perform(self, effect: Effect) -> Any:
        session = self.session
        if isinstance(effect, Dial):
            self._hang_up()
            self._socket = dial(session.address, effect.until, session.clock, self._tls)
            self._timeout, self._exchange = 0.0, Exchange()
            return None
        if isinstance(effect, Map):
            assert isinstance(session.address, UnixAddress), "mapped over TCP"
            return mapping.fetch(session.address, effect, session.clock)
        assert isinstance(effect, Hangup), effect
        self._hang_up()
        return None

    def _call(self, call: Call) -> Any:
        connection, exchange = self._socket, self._exchange
        if connection is None:
            raise ConnectFailed(f"{self.session.address}: not connected")
        self._arm(connection, call.until)
        is_sent = False
        try:
            connection.sendall(exchange.start(call))
            for part in call.payload:
                self._arm(connection, call.until)
                connection.sendall(part)
            is_sent = True
            frame = None
            while frame is None:  # nothing that is held already can be the reply
                self._arm(connection, call.until)
                size = connection.recv_into(exchange.receiver.buffer())
                if not size:
                    raise ConnectFailed(f"{self.session.address} hung up")
                exchange.receiver.filled(size)
                frame = exchange.poll()
        except TimeoutError as error:
            if not exchange.leave() or not is_sent:
                self._hang_up()
            raise DeadlineExceeded(
                f"{self.session.address}: no reply to {call.method.name} in time"
            ) from error
        except AnchorStoreError:
            self._hang_up()
            raise
        except OSError as error:
            self._hang_up()
            raise ConnectFailed(f"{self.session.address}: {reason_of(error)}") from error
        except BaseException:
            self._hang_up()
            raise
        return decode(call, frame)

    def _arm(self, connection: socket.socket, until: float) -> None:
        """Sets the socket's timeout to what is left, where it is not about that already."""
        left = until - self.session.clock.now()
        if left <= 0:
            raise DeadlineExceeded("no time left")
        if abs(left - self._timeout) > TIMEOUT_SLACK * left:
            connection.settimeout(left)
            self._timeout = left

    def _hang_up(self) -> None:
        connection, self._socket = self._socket, None
        self.session.lost_connection()
        if connection is not None:
            connection.close()


def _has_hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, _HUNG_UP)
    return bool(poll.poll(0))
