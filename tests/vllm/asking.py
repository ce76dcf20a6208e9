"""A completion over HTTP with everything that a comparison needs, or dropped on the way."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any

from tests.vllm.served import Reply

REQUEST_SECONDS = 60.0
"""No request takes longer, or it counts as one that hangs."""


class Failed(Exception):
    """A request that was not answered as it should have been."""


def _body(prompt: Sequence[int], tokens: int, salt: str) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": salt,
    }


def _post(connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
    words = json.dumps(body).encode()
    connection.request("POST", "/v1/completions", words, {"Content-Type": "application/json"})


def ask(port: int, prompt: Sequence[int], tokens: int, salt: str) -> Reply:
    """A greedy completion; Failed, with what came instead, where it is not whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        _post(connection, _body(prompt, tokens, salt))
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise Failed(f"HTTP {response.status}: {text[:500]!r}")
    found = json.loads(text)
    choice = found["choices"][0]
    if choice["finish_reason"] != "length" or len(choice["token_ids"]) != tokens:
        raise Failed(f"{len(choice['token_ids'])} tokens, {choice['finish_reason']}, not {tokens}")
    chances = [sorted(step.values(), reverse=True) for step in choice["logprobs"]["top_logprobs"]]
    details = found["usage"].get("prompt_tokens_details") or {}
    return Reply(
        tokens=choice["token_ids"],
        cached=details.get("cached_tokens") or 0,
        logprobs=choice["logprobs"]["token_logprobs"],
        margins=[first - second for first, second, *_ in chances],
    )


def drop(port: int, prompt: Sequence[int], tokens: int, salt: str, after_seconds: float) -> None:
    """Asks, and hangs up after a while, whatever has come by then."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        _post(connection, _body(prompt, tokens, salt) | {"stream": True})
        time.sleep(after_seconds)
    except OSError as error:
        raise Failed(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
