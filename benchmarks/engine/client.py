"""A client of OpenAI endpoints that measures: streamed completions, models, metrics.

::

    complete(tokens) --POST /v1/completions, stream--> first token . token ... usage . [DONE]
                     |<-- first_token_seconds -->|
                     |<----------- total_seconds ------------->|

One connection a request, opened before the clock starts, so that a connection that went stale
never counts as a slow server.  Standard library only; blocking, since the requests of a comparison
go one after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.engine.events import (
    DONE,
    Chunk,
    EndpointError,
    EventParser,
    Usage,
    chunk_of,
    field,
    load_object,
    shortened,
)

READ_BYTES = 65536
BODY_BYTES_MAX = 32 * 2**20
DEADLINE_SECONDS = 600.0
EXTENSIONS: Mapping[str, Any] = {"ignore_eos": True, "return_token_ids": True}
"""What vLLM and its kin understand beyond OpenAI's own fields; left out where it is refused."""


@dataclasses.dataclass(frozen=True)
class Completion:
    """One request, answered.

    Attributes:
        first_token_seconds: from sending the request to the first generated token.
        total_seconds: to the end of the stream.
        decode_step_seconds: mean time of a token after the first; None for one token, and where
            all came at once.
        prompt_tokens, answer_tokens: as the endpoint counts; None where it does not tell.
        cached_tokens: of the prompt, reused; None where the endpoint does not tell.
        token_ids: generated; None where the endpoint does not tell.
        top_logprobs: natural logarithms by token, a mapping a generated token, where asked for.
    """

    first_token_seconds: float
    total_seconds: float
    decode_step_seconds: float | None
    prompt_tokens: int | None
    answer_tokens: int | None
    cached_tokens: int | None
    token_ids: tuple[int, ...] | None
    top_logprobs: tuple[Mapping[str, float], ...]
    text: str


class Reading:
    """Collects the chunks of one stream."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._first: float | None = None
        self._last = started
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk, now: float) -> None:
        """One chunk that came at `now`."""
        self._chunks.append(chunk)
        if chunk.has_token:
            self._last = now
            if self._first is None:
                self._first = now

    def _usage(self) -> Usage:
        """The last that was told: some endpoints repeat it on every chunk."""
        found = Usage()
        for chunk in self._chunks:
            if chunk.usage != Usage():
                found = chunk.usage
        return found

    def completion(self, now: float) -> Completion:
        """All of it; EndpointError where no token came."""
        if self._first is None:
            raise EndpointError("the endpoint ended the stream before the first token")
        ids = [chunk.token_ids for chunk in self._chunks if chunk.token_ids is not None]
        flat = tuple(token for part in ids for token in part) if ids else None
        usage = self._usage()
        answer_tokens = usage.answer_tokens
        if answer_tokens is None and flat is not None:
            answer_tokens = len(flat)
        step = None
        if answer_tokens is not None and answer_tokens > 1 and self._last > self._first:
            step = (self._last - self._first) / (answer_tokens - 1)
        return Completion(
            first_token_seconds=self._first - self._started,
            total_seconds=now - self._started,
            decode_step_seconds=step,
            prompt_tokens=usage.prompt_tokens,
            answer_tokens=answer_tokens,
            cached_tokens=usage.cached_tokens,
            token_ids=flat,
            top_logprobs=tuple(top for chunk in self._chunks for top in chunk.top_logprobs),
            text="".join(chunk.text for chunk in self._chunks),
        )


class Client:
    """Asks one endpoint.

    Args:
        url: "http://host:port" or what comes before /v1 in general.
        model: served name; None takes the first that the endpoint lists.
        key: sent as a bearer token where given.
        deadline_seconds: longest silence that is waited through.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        key: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise EndpointError(f"{url!r} has no valid port") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(f"{url!r} is no http(s) address of an endpoint")
        self.url = url
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._deadline = deadline_seconds
        self._model = model
        self._extensions: Mapping[str, Any] = EXTENSIONS

    # ---- the wire ----

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """A fresh connection; its faults become EndpointError."""
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = make(self._host, self._port, timeout=self._deadline)
        try:
            connection.connect()
            yield connection
        except (OSError, http.client.HTTPException) as error:
            said = str(error) or type(error).__name__
            raise EndpointError(f"{self.url} failed: {shortened(said)}") from error
        finally:
            connection.close()

    def _answer(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object = None
    ) -> http.client.HTTPResponse:
        """The response of a request; EndpointError with what it says unless its status is 200."""
        encoded = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        connection.request(method, self._path + path, encoded, headers)
        response = connection.getresponse()
        if response.status != 200:
            said = response.read(READ_BYTES).decode(errors="replace")
            raise EndpointError(f"{path} was answered {response.status}: {shortened(said)}")
        return response

    def get(self, path: str) -> bytes:
        """The body of a GET; EndpointError for another status than 200 or an endless body."""
        with self._connection() as connection:
            body = self._answer(connection, "GET", path).read(BODY_BYTES_MAX + 1)
        if len(body) > BODY_BYTES_MAX:
            raise EndpointError(f"{path} has more than {BODY_BYTES_MAX} bytes")
        return body

    def post(self, path: str) -> bytes:
        """A POST without a body, for the switches of a server; what it answers."""
        with self._connection() as connection:
            return self._answer(connection, "POST", path).read(BODY_BYTES_MAX)

    # ---- what is asked ----

    def served(self) -> dict[str, Any]:
        """What the endpoint says of its model: the entry of /v1/models."""
        listed = field(load_object(self.get("/v1/models")), "data", list) or []
        entries = [entry for entry in listed if isinstance(entry, dict) and entry.get("id")]
        chosen = [e for e in entries if self._model is None or e["id"] == self._model]
        if not chosen:
            names = ", ".join(str(entry["id"]) for entry in entries) or "none"
            raise EndpointError(f"{self.url} does not serve {self._model or 'a model'}: {names}")
        self._model = str(chosen[0]["id"])
        return chosen[0]

    def prepare(self, tokens: Sequence[int]) -> Completion:
        """A first request, which finds out whether the endpoint knows vLLM's extensions."""
        self.served()
        try:
            return self.complete(tokens, 1)
        except EndpointError as error:
            if not self._extensions or " was answered 4" not in str(error):
                raise
            self._extensions = {}
            return self.complete(tokens, 1)

    def complete(
        self,
        prompt: Sequence[int] | str,
        answer_tokens: int,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Greedy completion of token ids or text, streamed; `extra` joins the request's fields."""
        body = {
            "model": self._model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extensions,
            **(extra or {}),
        }
        with self._connection() as connection:
            started = time.perf_counter()
            response = self._answer(connection, "POST", "/v1/completions", body)
            reading, parser = Reading(started), EventParser()
            while received := response.read1(READ_BYTES):
                now = time.perf_counter()
                for data in parser.feed(received):
                    if data == DONE:
                        response.read1(READ_BYTES)  # the end of the body: no reset for the server
                        return reading.completion(now)
                    reading.add(chunk_of(data), now)
        raise EndpointError("the endpoint broke the stream off")
