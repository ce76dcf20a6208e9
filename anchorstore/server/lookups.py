"""Lookup, from the call to the answer: at once where memory holds the blocks, else when they come.

::

    lookup --all in dram--------------------------------------------> answer
       |
       +--some in nvme--> promotions.begin --tickets end, or time--> the same lookup again
                              |                                      (by dram alone in the end)
                              +--nobody waits--> answer of dram alone, and what is on its way

Whatever fails or is late, the answer is what dram alone satisfies.  A look-up that waits holds
nothing but its place among limits.waiting_lookups.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Sequence

from anchorstore.clock import Clock
from anchorstore.errors import AnchorStoreError
from anchorstore.server import codec
from anchorstore.server.core.planning import Reach
from anchorstore.server.core.store import Store
from anchorstore.server.core.types import BlockColumns, LookupResult, Need
from anchorstore.server.core.work import Promotion
from anchorstore.server.promotion import Promotions
from anchorstore.server.supervisor import Supervisor
from anchorstore.transport.segment import Places
from anchorstore.wire.v1 import store_pb2 as pb

ROUNDS_MAX = 4
"""Of asking again: what was lost may make another boundary the largest, in nvme again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A lookup's arguments; `on_device` says where the blocks of an answer's columns also lie on
    the session's device, None where it has none."""

    session_id: bytes
    path_hashes: bytes
    needs: Sequence[Need]
    max_lineage: int
    margin_pages: int
    on_device: Callable[[Sequence[BlockColumns]], Sequence[Places]] | None = None

    def asked(self, core: Store, reach: Reach, now: float) -> LookupResult:
        """The core's answer; AnchorStoreError as the core has it."""
        return core.lookup(
            self.session_id,
            self.path_hashes,
            self.needs,
            max_lineage=self.max_lineage,
            margin_pages=self.margin_pages,
            now=now,
            reach=reach,
        )

    def places_of(self, result: LookupResult) -> Sequence[Places]:
        """On the session's device, by column; empty where it has none."""
        return () if self.on_device is None else self.on_device(result.columns)


@dataclasses.dataclass(eq=False, slots=True)
class _Waiting:
    """A lookup whose blocks are on their way."""

    question: Question
    namespace_id: int
    answer: asyncio.Future[pb.LookupResponse]
    until: float
    timer: asyncio.TimerHandle | None = None
    tickets: set[int] = dataclasses.field(default_factory=set)
    boundary_pages: int = 0
    rounds: int = 0
    has_news: bool = False


class Lookups:
    """Answers lookups.  Not for use from other threads than the event loop's.

    Args:
        promotions: None where dram is all there is.
        wait_seconds_max: longest that a lookup waits, whatever its caller asks.
        waiting_max: lookups that wait at once, at most half of them one namespace's; further ones
            are answered by dram alone.
    """

    def __init__(
        self,
        core: Store,
        promotions: Promotions | None,
        clock: Clock,
        supervisor: Supervisor,
        lease_ttl_ms: int,
        wait_seconds_max: float,
        waiting_max: int,
    ) -> None:
        self._core, self._promotions, self._clock = core, promotions, clock
        self._supervisor = supervisor
        self._lease_ttl_ms = lease_ttl_ms
        self._wait_seconds_max, self._waiting_max = wait_seconds_max, waiting_max
        self._waiting: collections.Counter[int] = collections.Counter()  # by namespace

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting.total()

    def lookup(
        self, question: Question, wait_seconds: float, prefetch: bool
    ) -> pb.LookupResponse | asyncio.Future[pb.LookupResponse]:
        """The answer, or the future of it where blocks must come first."""
        now = self._clock.now()
        if self._promotions is None:
            return self._answer(question, question.asked(self._core, Reach.ALL, now))
        waits = wait_seconds > 0 and self.waiting < self._waiting_max
        if not (waits or prefetch):
            return self._answer(question, question.asked(self._core, Reach.DRAM, now))
        result = question.asked(self._core, Reach.ALL, now)
        promotion = result.promotion
        if promotion is None:
            return self._answer(question, result)
        self._promotions.begin(promotion)
        if waits and self._waiting[promotion.namespace_id] < max(1, self._waiting_max // 2):
            return self._wait(question, promotion, min(wait_seconds, self._wait_seconds_max))
        return self._answer(
            question, question.asked(self._core, Reach.DRAM, now), promotion.boundary_pages
        )

    def _answer(
        self, question: Question, result: LookupResult, loading_pages: int = 0
    ) -> pb.LookupResponse:
        assert result.promotion is None, "no answer yet"
        on_device = question.places_of(result)
        response = codec.lookup_response(result, self._lease_ttl_ms, on_device)
        if loading_pages > result.boundary_pages:
            response.loading_boundary_pages = loading_pages
        return response

    def _wait(
        self, question: Question, promotion: Promotion, wait_seconds: float
    ) -> asyncio.Future[pb.LookupResponse]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[pb.LookupResponse] = loop.create_future()
        until = self._clock.now() + wait_seconds
        waiting = _Waiting(question, promotion.namespace_id, answer, until)
        waiting.timer = loop.call_later(wait_seconds, self._late, waiting)
        self._waiting[waiting.namespace_id] += 1
        self._listen(waiting, promotion)
        return answer

    def _listen(self, waiting: _Waiting, promotion: Promotion) -> None:
        assert self._promotions is not None
        waiting.tickets, waiting.has_news = set(promotion.tickets), False
        waiting.boundary_pages = promotion.boundary_pages

        def ended(ticket: int, has_news: bool) -> None:
            if waiting.answer.done():
                return
            waiting.tickets.discard(ticket)
            waiting.has_news |= has_news
            if not waiting.tickets:
                self._again(waiting)

        self._promotions.listen(promotion.tickets, ended)

    def _again(self, waiting: _Waiting) -> None:
        """All that was waited for has ended, well or not."""
        now = self._clock.now()
        waiting.rounds += 1
        may_wait = waiting.has_news and waiting.rounds < ROUNDS_MAX and now < waiting.until
        result = self._asked(waiting, Reach.ALL if may_wait else Reach.DRAM)
        if result is None:
            return
        if result.promotion is None:
            self._end(waiting).set_result(self._answer(waiting.question, result))
            return
        assert self._promotions is not None
        self._promotions.begin(result.promotion)
        self._listen(waiting, result.promotion)

    def _late(self, waiting: _Waiting) -> None:
        """Time is over: what is on its way will be there for the next one."""
        if waiting.answer.done():
            return
        result = self._asked(waiting, Reach.DRAM)
        if result is not None:
            self._end(waiting).set_result(
                self._answer(waiting.question, result, waiting.boundary_pages)
            )

    def _asked(self, waiting: _Waiting, reach: Reach) -> LookupResult | None:
        """The core's answer now; None where there is none any more, and the caller was told."""
        try:
            return waiting.question.asked(self._core, reach, self._clock.now())
        except Exception as error:  # noqa: BLE001 - told to the caller; a bug to all
            if not isinstance(error, AnchorStoreError):
                self._supervisor.fail("lookup", error)
            answer = self._end(waiting)
            answer.set_exception(error)
            answer.exception()  # seen, should nobody wait for it
            return None

    def _end(self, waiting: _Waiting) -> asyncio.Future[pb.LookupResponse]:
        """The future to be set."""
        assert waiting.timer is not None, "it waits"
        waiting.timer.cancel()
        self._waiting[waiting.namespace_id] -= 1
        self._waiting += collections.Counter()  # without those of whom none waits
        return waiting.answer
