"""A trace: which pages each request asks for and leaves behind, and when.  Pure.

::

    request   |<- prompt ------------------------------->|<- answer ->|
    pages     [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ][ 6 ][ 7 ][ 8 ][ 9 ] rest
              |<- usable: whole pages before the  ->|
                  prompt's last token

Pages are numbers: two requests share a number where they share all tokens up to that page's end,
so every page has one page before it and the pages of a trace are a tree.  Requests lie back to back
in columns, which a million of them fit in.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]
Priorities = npt.NDArray[np.int16]

NEVER = np.uint32(2**32 - 1)
"""The request that never comes, in `next_uses`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: what it is, for people.
        page_tokens: tokens in a page.
        pages: [all] page numbers, 0 .. distinct - 1, request after request.
        starts: [requests + 1] where each request's pages start.
        usable: [requests] leading pages that a cache can spare the request.
        seconds: [requests] arrival, never falling.
        priorities: [requests] what whoever asks says of it: higher is kept rather (kinds.py).
        distinct: different pages.
    """

    name: str
    page_tokens: int
    pages: U32
    starts: Positions
    usable: U32
    seconds: Seconds
    priorities: Priorities
    distinct: int

    def __post_init__(self) -> None:
        assert len(self.starts) == len(self.usable) + 1 == len(self.seconds) + 1
        assert len(self.priorities) == len(self.usable)
        assert int(self.starts[-1]) == len(self.pages)
        assert bool((self.usable <= np.diff(self.starts)).all()), "usable pages beyond the request"
        assert bool((np.diff(self.seconds) >= 0).all()), "requests out of order"

    def __len__(self) -> int:
        return len(self.usable)

    def path(self, request: int) -> U32:
        """The pages of one request, in order."""
        return self.pages[self.starts[request] : self.starts[request + 1]]

    @property
    def usable_pages(self) -> int:
        """Pages that all requests together could be spared, were everything shared."""
        return int(self.usable.sum())


def request_of_each(trace: Trace) -> U32:
    """[all] the request that each element of `pages` belongs to."""
    return np.repeat(np.arange(len(trace), dtype=np.uint32), np.diff(trace.starts))


def is_usable(trace: Trace) -> Bools:
    """[all] whether each element of `pages` is one that its request can be spared."""
    depth = np.arange(len(trace.pages)) - np.repeat(trace.starts[:-1], np.diff(trace.starts))
    usable: Bools = depth < np.repeat(trace.usable, np.diff(trace.starts))
    return usable


def seen_before(trace: Trace) -> U32:
    """[requests] leading usable pages that an earlier request has computed: the most that any
    cache can spare.  Pages are a tree, so those seen before always lead."""
    first = np.full(trace.distinct, NEVER)
    requests = request_of_each(trace)
    np.minimum.at(first, trace.pages, requests)
    old = (first[trace.pages] < requests) & is_usable(trace)
    counts = np.concatenate([[0], np.cumsum(old)])
    seen: U32 = np.diff(counts[trace.starts]).astype(np.uint32)
    return seen


def next_uses(trace: Trace) -> U32:
    """[all] the next request, after its own, that each page is usable for; NEVER where none is.

    Along a request's pages it never falls: whoever wants a page wants those before it.
    """
    order = np.argsort(trace.pages, kind="stable")
    pages, requests = trace.pages[order], request_of_each(trace)[order]
    size = len(order)
    positions = np.where(is_usable(trace)[order], np.arange(size), size)
    following = np.full(size, size)
    following[:-1] = np.minimum.accumulate(positions[::-1])[::-1][1:]
    uses = np.full(size, NEVER)
    there = np.flatnonzero(following < size)
    there = there[pages[following[there]] == pages[there]]
    uses[there] = requests[following[there]]
    found = np.empty(size, np.uint32)
    found[order] = uses
    return found


def future_uses(trace: Trace) -> U32:
    """[all] how many later requests each page is usable for."""
    order = np.argsort(trace.pages, kind="stable")
    pages = trace.pages[order]
    so_far = np.cumsum(is_usable(trace)[order])
    last = np.searchsorted(pages, pages, side="right") - 1
    found = np.empty(len(order), np.uint32)
    found[order] = so_far[last] - so_far
    return found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Tokens, of which only the pages matter: `pages` are those that are full."""

    pages: U32
    tokens: int


class TraceWriter:
    """Makes texts and asks requests.

    What is written after a text is always new: two continuations of one text share that text and
    nothing else, as random tokens would.
    """

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.empty = Text(np.zeros(0, np.uint32), 0)
        self._distinct = 0
        self._asked: list[tuple[float, int, U32, int, int]] = []

    def __len__(self) -> int:
        return len(self._asked)

    def write(self, before: Text, tokens: int) -> Text:
        """`before` and `tokens` new ones."""
        assert tokens >= 0, tokens
        total = before.tokens + tokens
        count = total // self.page_tokens - len(before.pages)
        fresh = np.arange(self._distinct, self._distinct + count, dtype=np.uint32)
        self._distinct += count
        return Text(np.concatenate([before.pages, fresh]), total)

    def cut(self, text: Text, tokens: int) -> Text:
        """The first `tokens` of a text."""
        assert 0 <= tokens <= text.tokens, (tokens, text.tokens)
        return Text(text.pages[: tokens // self.page_tokens], tokens)

    def ask(self, prompt: Text, answer_tokens: int, seconds: float, priority: int = 0) -> Text:
        """A request and what its answer makes of the prompt.

        A model never computes on the token that it answered last, so a page that ends with that
        token is not left behind.
        """
        assert prompt.tokens >= 1 and answer_tokens >= 1
        whole = self.write(prompt, answer_tokens)
        kept = whole.pages[: (whole.tokens - 1) // self.page_tokens]
        usable = (prompt.tokens - 1) // self.page_tokens
        self._asked.append((seconds, len(self._asked), kept, usable, priority))
        return whole

    def trace(self, name: str) -> Trace:
        """What was asked, by arrival."""
        asked = sorted(self._asked, key=lambda one: one[:2])
        return make_trace(
            name,
            self.page_tokens,
            [path for _, _, path, _, _ in asked],
            [usable for *_, usable, _ in asked],
            [seconds for seconds, *_ in asked],
            [priority for *_, priority in asked],
        )


def make_trace(
    name: str,
    page_tokens: int,
    paths: list[U32],
    usable: list[int],
    seconds: list[float],
    priorities: list[int] | None = None,
) -> Trace:
    """A trace of these requests; page numbers are given anew, by first appearance.  No priorities:
    all are alike."""
    lengths = np.array([len(path) for path in paths], np.int64)
    pages = np.concatenate([np.zeros(0, np.uint32), *paths])
    first = np.full(int(pages.max(initial=0)) + 1, len(pages))
    first[pages[::-1]] = np.arange(len(pages))[::-1]  # the earliest is written last
    asked = np.flatnonzero(first < len(pages))
    rank = np.zeros(len(first), np.uint32)
    rank[asked[np.argsort(first[asked])]] = np.arange(len(asked), dtype=np.uint32)
    return Trace(
        name=name,
        page_tokens=page_tokens,
        pages=rank[pages],
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        usable=np.array(usable, np.uint32),
        seconds=np.array(seconds, np.float64),
        priorities=np.array([0] * len(paths) if priorities is None else priorities, np.int16),
        distinct=len(asked),
    )
