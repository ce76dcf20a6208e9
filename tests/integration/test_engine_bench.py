"""Goal: the engine benchmark's client and runs measure what an endpoint does, and name its faults.
Method: a stand-in endpoint (real HTTP, a page-granular prefix cache, no model) and servers that
send canned bytes; counts are compared, times are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine import cli, quality
from benchmarks.engine.client import Client
from benchmarks.engine.events import EndpointError
from benchmarks.engine.quality import Document, Question
from benchmarks.engine.run import Rules, Side, play, warm_up
from benchmarks.engine.servers import (
    Patience,
    Server,
    Setup,
    Variant,
    beside_the_step,
    bound_step,
    free_port,
    require_modules,
)
from benchmarks.engine.stand_in import MODEL, VOCABULARY, StandIn, answer_of
from benchmarks.engine.traces import KINDS, Shape, generate

RULES = Rules(page_tokens=64, margin_tokens=0, pause_seconds=0)
SHAPE = Shape(0, VOCABULARY, context_tokens=1024, pairs=6, answer_tokens=4)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


class Canned:
    """Sends the same bytes to whoever connects, once the request's head is there."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    def __enter__(self) -> Canned:
        return self

    def __exit__(self, *unused: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def canned() -> Iterator[Canned]:
    with Canned(b"") as server:
        yield server


@pytest.fixture
def endpoint() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


# ---- the client ----


def test_completion_tells_tokens_usage_and_times(endpoint: StandIn) -> None:
    client = Client(endpoint.url)
    prompt = list(range(200))
    assert client.prepare(prompt).cached_tokens == 0
    found = client.complete([*prompt, 7], 5)
    assert found.token_ids == tuple(answer_of([*prompt, 7], 5))
    assert (found.prompt_tokens, found.answer_tokens, found.cached_tokens) == (201, 5, 192)
    assert found.text.split() == [f"t{token}" for token in found.token_ids]
    assert 0 < found.first_token_seconds <= found.total_seconds
    assert found.decode_step_seconds is not None
    assert client.complete(prompt, 1).decode_step_seconds is None
    assert endpoint.prompts == [prompt, [*prompt, 7], prompt]


def test_prompt_may_be_text(endpoint: StandIn) -> None:
    client = Client(endpoint.url)
    client.served()
    assert client.complete("In the beginning", 2).prompt_tokens == 16
    assert endpoint.prompts == [list(b"In the beginning")]


def test_endpoint_that_knows_no_extensions_is_asked_without_them() -> None:
    with StandIn(strict=True, tells_cached=False) as server:
        client = Client(server.url + "/v1/")
        client.prepare([1, 2, 3])
        found = client.complete([1, 2, 3], 2)
    assert found.token_ids is None and found.cached_tokens is None and found.answer_tokens == 2


def test_model_that_is_not_served_is_named(endpoint: StandIn) -> None:
    with pytest.raises(EndpointError, match=f"does not serve other: {MODEL}"):
        Client(endpoint.url, model="other").served()


def test_status_of_a_refusal_is_told_with_its_reason() -> None:
    with (
        StandIn(strict=True) as server,
        pytest.raises(EndpointError, match=r"answered 400: .*unknown fields: logprobs"),
    ):
        client = Client(server.url)
        client.prepare([1])
        client.complete([1], 1, {"logprobs": 1})


def test_endpoint_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EndpointError, match=f"{url} failed"):
        Client(url).served()


def test_endpoint_that_is_silent_is_given_up(canned: Canned) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EndpointError, match="timed out"):
            Client(url, deadline_seconds=0.05).get("/metrics")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed|disconnected|failed"),
        (b"nonsense\r\n\r\n", "failed"),
        (OK, "broke the stream off"),
        (OK + b"data: [DONE]\n\n", "before the first token"),
        (OK + b'data: {"choices": [{"text": "a"}]}\n\n', "broke the stream off"),
        (OK + b'data: {"error": {"message": "no memory"}}\n\n', "gave up: no memory"),
        (OK + b"data: {\n\n", "no JSON"),
        (OK + b"data: \xff\n\n", "UTF-8"),
        (OK[:-2] + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "failed"),
        (OK[:-2] + b"Content-Length: 100\r\n\r\ndata: ", "failed|broke"),
        (b"HTTP/1.1 503 Busy\r\n\r\nlater", "answered 503: later"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "failed"),
    ],
)
def test_stream_that_goes_wrong_is_named(canned: Canned, answer: bytes, reason: str) -> None:
    canned.answer = answer
    with pytest.raises(EndpointError, match=reason):
        Client(canned.url, model="m").complete([1], 1)


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_answers_are_refused_whatever_they_are(
    canned: Canned, answer: bytes, headed: bool
) -> None:
    canned.answer = OK + answer if headed else answer
    client = Client(canned.url, model="m", deadline_seconds=5)
    with pytest.raises(EndpointError):
        client.complete([1], 1)
    if not headed:
        with pytest.raises(EndpointError):
            client.served()


# ---- runs ----


@pytest.mark.parametrize("kind", KINDS)
def test_page_granular_endpoint_reaches_the_ideal_of_every_request(kind: str) -> None:
    trace = generate(kind, SHAPE, 1)
    with StandIn(page_tokens=64) as fine, StandIn(page_tokens=512) as coarse:
        sides = [
            Side("coarse", [Client(coarse.url)], RULES),
            Side("fine", [Client(fine.url)], RULES),
        ]
        for side in sides:
            side.clients[0].served()
        samples = play(trace, sides, say=lambda _: None)
        assert fine.prompts == coarse.prompts and len(fine.prompts) == len(trace.requests)
    assert len(samples) == 2 * len(trace.requests)
    for sample in samples:
        wanted = sample.ideal_tokens
        if sample.variant == "coarse":
            wanted = min(sample.shared_tokens, sample.prompt_tokens - 1) // 512 * 512
        assert sample.completion.cached_tokens == wanted, sample


def test_turns_of_the_sides_alternate(endpoint: StandIn) -> None:
    clients = [Client(endpoint.url), Client(endpoint.url)]
    for client in clients:
        client.served()
    sides = [Side("a", clients[:1], RULES), Side("b", clients[1:], RULES)]
    samples = play(generate("fresh", SHAPE, 0), sides, say=lambda _: None)
    assert [sample.variant for sample in samples[:6]] == ["a", "b", "b", "a", "a", "b"]


def test_requests_go_round_the_replicas_of_a_side() -> None:
    with StandIn() as first, StandIn() as second:
        clients = [Client(first.url), Client(second.url)]
        for client in clients:
            client.served()
        play(generate("fresh", SHAPE, 0), [Side("a", clients, RULES)], say=lambda _: None)
        assert (len(first.prompts), len(second.prompts)) == (3, 3)


def test_warm_up_reaches_every_depth_and_shares_nothing_with_the_trace(endpoint: StandIn) -> None:
    client = Client(endpoint.url)
    client.served()
    warm_up(SHAPE, [client], RULES)
    asked = len(endpoint.prompts)
    assert asked == 3  # a base, branches at 256 and 512
    side = Side("a", [client], RULES)
    samples = play(generate("branches", SHAPE, 0), [side], say=lambda _: None)
    assert samples[0].completion.cached_tokens == 0


# ---- exams ----


def exam(prefix: list[int]) -> Document:
    """A question that the stand-in answers rightly, and one that it does not."""
    right = [*prefix, 5]
    wrong = [*prefix, 6]
    [answer], [other] = answer_of(right, 1), answer_of(wrong, 1)
    questions = (Question(tuple(right), answer), Question(tuple(wrong), (other + 1) % VOCABULARY))
    return Document(tuple(prefix), questions)


def test_exam_is_asked_of_a_server_that_has_forgotten(endpoint: StandIn) -> None:
    client = Client(endpoint.url)
    client.served()
    answers = quality.sit(client, [exam(list(range(128)))], RULES, stores=False)
    assert [asked.right for asked in answers] == [True, False]
    assert [asked.cached_tokens for asked in answers] == [0, 0]
    assert [asked.ideal_tokens for asked in answers] == [128, 128]
    assert answers[0].bits == 0.0 and answers[1].bits > 5


def test_exam_of_a_store_that_never_finds_goes_on_and_shows_it(endpoint: StandIn) -> None:
    client = Client(endpoint.url)
    client.served()
    answers = quality.sit(client, [exam(list(range(64)))], RULES, stores=True)
    assert sum(asked.cached_tokens for asked in answers) == 0
    assert len(endpoint.prompts) == 1 + quality.TRIES + 2


# ---- the command line ----


def test_modules_that_lack_are_named_with_what_to_do() -> None:
    require_modules(pathlib.Path(sys.executable), ["json", "os.path"])
    with pytest.raises(EndpointError, match=r"no no_such_thing, no_such\.part: install"):
        require_modules(pathlib.Path(sys.executable), ["json", "no_such_thing", "no_such.part"])


def test_command_over_two_endpoints_prints_one_document(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    with StandIn(page_tokens=512) as stock, StandIn() as ours:
        words = ["--endpoint", f"stock={stock.url}", "--endpoint", f"ours={ours.url}"]
        words += ["--quick", "--pause", "0", "--margin", "0", "--token-ids", "0:512"]
        assert cli.main([*words, "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert cli.main([*words, "--trace", "documents"]) == 0
        shown = capsys.readouterr().out
    assert document["variants"] == ["stock", "ours"]
    every = document["depths"][-1]["variants"]
    assert every["ours"]["of_ideal"] == 1.0 > every["stock"]["of_ideal"]
    assert (
        document["counters"]["ours"]["vllm:prefix_cache_hits_total"]
        == (every["ours"]["reused_tokens"])
    )
    assert len(document["requests"]) == 2 * document["trace"]["requests"]
    assert {"stock", "ours", "ideal"} <= set(shown.split())
    assert str(tmp_path.home()) not in json.dumps(document)


def test_command_over_an_endpoint_that_is_not_there_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["--endpoint", f"http://127.0.0.1:{free_port()}", "--quick"]) == 1
    assert "failed: " in capsys.readouterr().err


# ---- servers of its own ----

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECALL = ROOT / "engine_adapter" / "models" / "recall"


@pytest.fixture
def python(tmp_path: pathlib.Path) -> pathlib.Path:
    """An interpreter that lacks nothing, and whose vLLM is the stand-in; notes process ids."""
    path = tmp_path / "python"
    path.write_text(
        f"""#!/bin/sh
[ "$1" = -c ] && exit 0
echo $$ >> {tmp_path}/pids
case "$*" in *fail-at-once*) echo no such flag >&2; exit 3;; esac
case "$*" in *wait-to-be-told*) until [ -e {tmp_path}/told ]; do sleep 0.02; done;; esac
shift 2
PYTHONPATH={ROOT} exec {sys.executable} -m benchmarks.engine.stand_in "$@"
"""
    )
    path.chmod(0o755)
    return path


def words_for(python: pathlib.Path, *more: str) -> list[str]:
    words = ["--python", str(python), "--cache", str(python.parent / "cache"), "--quick"]
    words += ["--model", str(RECALL), "--dram", "128MiB", "--pause", "0", "--json", *more]
    return words


def assert_ended(python: pathlib.Path, count: int) -> None:
    """Every server that was started is gone."""
    found = [int(line) for line in (python.parent / "pids").read_text().split()]
    assert len(found) == count
    for pid in found:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_command_starts_both_variants_compares_them_and_stops_them(
    python: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--margin", "0", "--context", "1024", "--answer-tokens", "4", "--eager")
    assert cli.main(words_for(python, *more)) == 0
    said = capsys.readouterr()
    document: dict[str, Any] = json.loads(said.out)
    every = document["depths"][-1]["variants"]
    assert every["anchorstore"]["of_ideal"] == 1.0 > every["stock"]["of_ideal"]
    assert document["model"]["name"] == "recall" and document["flags"] == ["--enforce-eager"]
    assert set(document["start_seconds"]) == {"stock", "anchorstore"}
    assert str(python.parent) not in said.out and str(ROOT) not in said.out
    assert_ended(python, 2)


def test_command_sits_exams_one_server_after_another(
    python: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--quality", "--variant", "stock", "--variant", "again=stock")
    assert cli.main(words_for(python, *more)) == 0
    document = json.loads(capsys.readouterr().out)
    exams = [(line["exam"].split(",")[0], line["variant"]) for line in document["quality"]]
    assert exams == [
        ("recall unique", "stock"),
        ("recall unique", "again"),
        ("recall redundant", "stock"),
        ("recall redundant", "again"),
    ]
    assert all(line["questions"] > 0 for line in document["quality"])
    assert_ended(python, 2)


def test_server_that_fails_is_shown_with_the_end_of_its_log(
    python: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words_for(python, "--server-flag=--fail-at-once")) == 1
    said = capsys.readouterr().err
    assert "the stock server ended with exit code 3" in said and "no such flag" in said
    assert_ended(python, 1)


def slow_setup(python: pathlib.Path) -> Setup:
    """Of a server that starts once there is a file `told` beside it."""
    folder = python.parent
    return Setup(python, RECALL, 4096, 2**28, folder, ("--wait-to-be-told",))


def test_server_that_takes_its_time_is_said_to_be_waited_for(python: pathlib.Path) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if " so far" in line:
            python.with_name("told").touch()

    often = Patience(word_seconds=0)
    with Server(slow_setup(python), Variant("stock", None), say, patience=often) as server:
        assert Client(server.url).served()["id"] == MODEL
    log = f"its log is {server.log_path}"
    assert said[0] == f"starting the stock server; {log}"
    assert re.fullmatch(f"waiting for the stock server, [0-9]+ s so far; {re.escape(log)}", said[1])
    assert_ended(python, 1)


def test_server_that_takes_too_long_is_stopped_and_shown(python: pathlib.Path) -> None:
    server = Server(slow_setup(python), Variant("stock", None), print, patience=Patience(0.0))
    with pytest.raises(EndpointError, match=r"the stock server is not ready after 0 s; its log"):
        server.__enter__()
    assert not server.is_running


def test_daemon_that_cannot_start_says_why(
    python: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words_for(python, "--dram", "1MiB", "--variant", "anchorstore")) == 1
    assert "tiers.dram.capacity is 1MiB" in capsys.readouterr().err


def test_command_that_is_told_to_end_stops_its_servers(python: pathlib.Path) -> None:
    command = [sys.executable, "-m", "benchmarks.engine", *words_for(python, "--pause", "60")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("branches: "):
                process.send_signal(signal.SIGTERM)
                break
        process.stderr.read()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert_ended(python, 2)


def test_daemon_starts_on_the_cores_that_a_step_leaves_to_others() -> None:
    own = os.sched_getaffinity(0)
    with beside_the_step():
        inside = os.sched_getaffinity(0)
        child = subprocess.run(
            [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert inside == {max(own)} and child.stdout.strip() == str([max(own)])
    assert os.sched_getaffinity(0) == own


def test_step_inside_a_process_has_the_cores_that_a_servers_step_has() -> None:
    bound = bound_step({2, 0, 5})
    assert (bound["OMP_NUM_THREADS"], bound["OMP_PLACES"]) == ("2", "{0,2}")
    assert bound_step({3}) == {}, "nothing can be left to others"
