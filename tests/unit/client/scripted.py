"""A driver without I/O for the client's steps: every effect is answered by a function of the test.

Effects that were performed are kept in order, so a test can say what was sent and what was not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from anchorstore.client import ClientOptions, NamespaceSpec
from anchorstore.client.effects import Call, Dial, Effect, Enter, Hangup, Map, Steps, Work
from anchorstore.client.face import new_session
from anchorstore.client.session import Session
from anchorstore.clock import ManualClock
from anchorstore.errors import AnchorStoreError, ConnectFailed
from anchorstore.layout import StateLayout
from anchorstore.transport.frames import MESSAGES, Method, parse_body
from anchorstore.wire.v1 import store_pb2 as store

T = TypeVar("T")
BLOCK_BYTES = 64
Answer = Callable[[Any, Call], Message]


def state_layout() -> StateLayout:
    return StateLayout(state_bytes=BLOCK_BYTES, label="test")


@dataclasses.dataclass
class Script:
    """Answers calls by method; an answer that raises is what the daemon or the socket did."""

    session: Session
    answers: dict[Method, Answer]
    seen: list[Effect] = dataclasses.field(default_factory=list)
    dial_error: AnchorStoreError | None = None

    def run(self, steps: Steps[T]) -> T:
        try:
            effect = next(steps)
            while True:
                try:
                    result = self.perform(effect)
                except AnchorStoreError as error:
                    if isinstance(error, ConnectFailed):
                        self.session.lost_connection()
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()

    def perform(self, effect: Effect) -> Any:
        """The result of one effect."""
        self.seen.append(effect)
        if isinstance(effect, Call):
            request = parse_body(MESSAGES[effect.method][0], b"".join(effect.body))
            return self.answers[effect.method](request, effect)
        if isinstance(effect, Work):
            return effect.function()
        if isinstance(effect, Dial):
            if self.dial_error is not None:
                raise self.dial_error
        elif isinstance(effect, Hangup):
            self.session.lost_connection()
        else:
            assert isinstance(effect, Enter | Map), effect
        return None

    def calls(self) -> list[Method]:
        """Methods that were called, in order."""
        return [effect.method for effect in self.seen if isinstance(effect, Call)]


def attach(boot_id: bytes = b"b" * 16, session_id: bytes = b"s" * 16) -> Answer:
    """A daemon's answer to Attach."""

    def answer(request: store.AttachRequest, call: Call) -> store.AttachResponse:
        return store.AttachResponse(
            session_id=session_id,
            boot_id=boot_id,
            domain="team",
            root_digest=b"r" * 32,
            layouts=[store.LayoutGrant(digest=bytes(32), block_bytes=BLOCK_BYTES, slot_bytes=4096)],
            staging_bytes=request.staging_bytes,
            max_pages=8,
            max_lineage=16,
            read_ttl_ms=10_000,
            write_ttl_ms=10_000,
            session_ttl_ms=30_000,
        )

    return answer


def scripted(
    answers: dict[Method, Answer], *, clock: ManualClock | None = None, staging_bytes: int = 256
) -> Script:
    """A client of a remote daemon that answers as told."""
    session = new_session(
        "tcp://127.0.0.1:1",
        NamespaceSpec("model", b"w" * 32),
        [state_layout()],
        ClientOptions(staging_bytes=staging_bytes),
        clock or ManualClock(100.0),
    )
    return Script(session, {Method.ATTACH: attach(), **answers})
