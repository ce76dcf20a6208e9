"""A stand-in for a serving engine: a real HTTP server with a page-granular prefix cache, no model.

::

    POST /v1/completions   streams answer_of(prompt), a token an event, usage last
    GET  /v1/models . /metrics . /health      POST /reset_prefix_cache

For tests of what measures engines, and to try the benchmark's command line in a second: it says
how much of a prompt it has met before and takes no time over the rest.  Run as a module it takes
vLLM's command line and heeds the port alone; with a connector its pages are small.
"""

from __future__ import annotations

import argparse
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from benchmarks.engine.reuse import Seen, ideal_reuse

MODEL = "stand-in"
VOCABULARY = 512
OWN_FIELDS = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
BODY_BYTES_MAX = 2**24
POLL_SECONDS = 0.01
COARSE_TOKENS, FINE_TOKENS = 512, 64


def answer_of(prompt: Sequence[int], count: int) -> list[int]:
    """The tokens that follow a prompt: some function of it, the same everywhere."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append((sum(tokens[-3:]) * 31 + len(tokens)) % VOCABULARY)
    return tokens[len(prompt) :]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            entry = {"id": MODEL, "max_model_len": self.stand_in.context_tokens}
            self._send(200, json.dumps({"data": [entry]}))
        elif self.path == "/metrics":
            self._send(200, self.stand_in.metrics())
        elif self.path == "/health":
            self._send(200, "")
        else:
            self._send(404, "no such page")

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length", "0")), BODY_BYTES_MAX)
        body = self.rfile.read(length)
        if self.path == "/reset_prefix_cache":
            self.stand_in.forget()
            self._send(200, json.dumps({"success": True}))
        elif self.path == "/v1/completions":
            self._complete(json.loads(body))
        else:
            self._send(404, "no such page")

    def _complete(self, request: dict[str, Any]) -> None:
        if unknown := set(request) - OWN_FIELDS if self.stand_in.strict else set():
            problem = {"error": {"message": f"unknown fields: {', '.join(sorted(unknown))}"}}
            self._send(400, json.dumps(problem))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.stand_in.events(request):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class StandIn:
    """Listens on loopback from construction on; a context manager.

    Args:
        page_tokens: granularity of its prefix cache.
        context_tokens: what it says of its model.
        strict: refuses what is not in OpenAI's interface, token ids in answers included.
        tells_cached: whether usage says what was reused.
        port: 0 takes a free one.

    Attributes:
        prompts: every prompt so far, in order.
    """

    def __init__(
        self,
        *,
        page_tokens: int = FINE_TOKENS,
        context_tokens: int = 4096,
        strict: bool = False,
        tells_cached: bool = True,
        port: int = 0,
    ) -> None:
        self.page_tokens, self.context_tokens = page_tokens, context_tokens
        self.strict, self.tells_cached = strict, tells_cached
        self.prompts: list[list[int]] = []
        self._seen = Seen()
        self._hits = self._queries = 0
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="stand-in"
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def forget(self) -> None:
        """Empties its prefix cache."""
        self._seen = Seen()

    def metrics(self) -> str:
        """Its counters, named as vLLM's."""
        lines = []
        for name, value in (("queries", self._queries), ("hits", self._hits)):
            lines.append(f"# TYPE vllm:prefix_cache_{name}_total counter")
            lines.append(f'vllm:prefix_cache_{name}_total{{model_name="{MODEL}"}} {value}')
        return "\n".join(lines) + "\n"

    def events(self, request: dict[str, Any]) -> Iterator[str]:
        """Data of the events that answer a completion request."""
        asked = request["prompt"]
        prompt = list(asked.encode()) if isinstance(asked, str) else asked
        shared = self._seen.shared(prompt)
        cached = ideal_reuse(shared, len(prompt), self.page_tokens, 0)
        answer = answer_of(prompt, request["max_tokens"])
        self._seen.add([*prompt, *answer[:-1]])
        self.prompts.append(prompt)
        self._queries += len(prompt)
        self._hits += cached
        for token in answer:
            choice: dict[str, Any] = {"index": 0, "text": f" t{token}"}
            if request.get("return_token_ids"):
                choice["token_ids"] = [token]
            if wanted := request.get("logprob_token_ids"):
                told = {f"token_id:{one}": 0.0 if one == token else -4.0 for one in wanted}
                choice["logprobs"] = {"top_logprobs": [told]}
            yield json.dumps({"choices": [choice]})
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(answer)}
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def wait(self) -> None:
        """Returns once it is closed."""
        self._thread.join()

    def close(self) -> None:
        """Hangs up on everybody."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def main() -> int:
    """Stands in for a server of vLLM until it is ended."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.stand_in")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kv-transfer-config")
    arguments, _ = parser.parse_known_args()
    page_tokens = COARSE_TOKENS if arguments.kv_transfer_config is None else FINE_TOKENS
    StandIn(page_tokens=page_tokens, port=arguments.port).wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
