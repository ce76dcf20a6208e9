"""Server-sent events, and what the events of a streamed completion say.  No I/O.

::

    bytes -> EventParser.feed -> data of each event -> chunk_of -> Chunk -> the client

Whatever the other side sends, the answer is an event or an EndpointError that names the fault.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

EVENT_BYTES_MAX = 4 * 2**20
"""One event; a first chunk that repeats a prompt of 32k ids has a quarter of a megabyte."""

ERROR_CHARACTERS = 400
DONE = "[DONE]"


class EndpointError(Exception):
    """The endpoint cannot be reached, refuses, or answers what nobody can read."""


class EventParser:
    """Bytes of an event stream in, data of whole events out."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._limit = event_bytes_max
        self._rest = b""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, received: bytes) -> list[str]:
        """The events that `received` completes; EndpointError beyond the limit or for no UTF-8."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        found = [event for line in lines if (event := self._line(line)) is not None]
        if len(self._rest) + self._data_bytes > self._limit:
            raise EndpointError(f"an event is longer than {self._limit} bytes")
        return found

    def _line(self, line: bytes) -> str | None:
        """Takes one line; the event's data where the line ends an event."""
        line = line.removesuffix(b"\r")
        if not line:
            event, self._data, self._data_bytes = self._data, [], 0
            return "\n".join(event) if event else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data_bytes += len(value)
            if self._data_bytes > self._limit:
                raise EndpointError(f"an event is longer than {self._limit} bytes")
            try:
                self._data.append(value.removeprefix(b" ").decode())
            except UnicodeDecodeError as error:
                raise EndpointError(f"an event is not UTF-8: {error.reason}") from error
        return None


@dataclasses.dataclass(frozen=True)
class Usage:
    """What an endpoint counts; None where it says nothing."""

    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    cached_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One event of a streamed completion.

    Attributes:
        has_token: whether it carries something generated.
        token_ids: generated ids; None where the endpoint does not tell them.
        top_logprobs: natural logarithms by token, a mapping a generated token, where asked for.
    """

    has_token: bool = False
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    top_logprobs: tuple[dict[str, float], ...] = ()
    usage: Usage = Usage()


def shortened(text: str) -> str:
    """The start of what an endpoint said, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= ERROR_CHARACTERS else line[:ERROR_CHARACTERS] + " ..."


def load_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object; EndpointError for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        raise EndpointError(f"the endpoint sent no JSON: {shortened(shown)!r}") from error
    if not isinstance(found, dict):
        raise EndpointError(f"the endpoint sent {type(found).__name__}, not an object")
    return found


def field(holder: object, name: str, kind: type | tuple[type, ...]) -> Any:
    """holder[name] of the right type; None where it is absent or null; else EndpointError."""
    if not isinstance(holder, dict) or holder.get(name) is None:
        return None
    found = holder[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise EndpointError(f"the endpoint sent {name} = {shortened(repr(found))}")
    return found


def _count(holder: object, name: str) -> int | None:
    found = field(holder, name, int)
    if found is not None and found < 0:
        raise EndpointError(f"the endpoint sent {name} = {found}")
    return found if found is None else int(found)


def _token_ids(choice: object) -> tuple[int, ...] | None:
    found = field(choice, "token_ids", list)
    if found is None:
        return None
    for token in found:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**32:
            raise EndpointError(f"the endpoint sent the token id {shortened(repr(token))}")
    return tuple(found)


def _top_logprobs(choice: object) -> tuple[dict[str, float], ...]:
    told = field(field(choice, "logprobs", dict), "top_logprobs", list) or []
    found = []
    for position in told:
        named = position if isinstance(position, dict) else {}
        for token in named:
            value = field(named, token, (int, float))
            if value is None or math.isnan(value):
                raise EndpointError(f"the endpoint sent no logprob for {shortened(token)}")
        found.append({token: float(value) for token, value in named.items()})
    return tuple(found)


def chunk_of(data: str) -> Chunk:
    """What an event says; EndpointError for an error event or one that cannot be read."""
    event = load_object(data)
    if "error" in event:
        problem = event["error"]
        said = problem.get("message") if isinstance(problem, dict) else problem
        raise EndpointError(f"the endpoint gave up: {shortened(str(said))}")
    counts = field(event, "usage", dict)
    details = field(counts, "prompt_tokens_details", dict)
    usage = Usage(
        prompt_tokens=_count(counts, "prompt_tokens"),
        answer_tokens=_count(counts, "completion_tokens"),
        cached_tokens=_count(details, "cached_tokens"),
    )
    choices = field(event, "choices", list)
    if not choices:
        return Chunk(usage=usage)
    choice = choices[0]
    if not isinstance(choice, dict):
        raise EndpointError("the endpoint sent a choice that is no object")
    text = field(choice, "text", str) or ""
    token_ids, logprobs = _token_ids(choice), _top_logprobs(choice)
    return Chunk(
        has_token=bool(text or token_ids or logprobs),
        text=text,
        token_ids=token_ids,
        top_logprobs=logprobs,
        usage=usage,
    )
