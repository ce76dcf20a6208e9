"""Runs a soak plan against a server: clients, faults, memory, and what became of each answer.

::

    reference()   stock vLLM, each prompt alone, nothing cached --> answers, and a floor of noise
    Soak          client threads --ask--> server --> daemon  <--kill, freeze, stop-- fault thread
                        |                    ^
                  compare with reference     +-- sampler: resident memory every few seconds

Nothing is judged on the way: a `Report` says what was seen, and the test asserts.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from anchorstore.testing.daemon import Daemon
from tests.vllm.asking import REQUEST_SECONDS, Failed, ask, drop
from tests.vllm.compare import CHANCE, NOISE_LEAST, clear_flips, distance
from tests.vllm.memory import Resident, resident
from tests.vllm.served import Reply
from tests.vllm.server import Server
from tests.vllm.soak_plan import ANSWER_TOKENS, Book, Fault, Key, Plan

CLIENTS = 4
SAMPLE_SECONDS = 5.0
SETTLE_SECONDS = 3.0
REST_REQUESTS = 8
POLL_SECONDS = 0.1
JOIN_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Reference:
    """Each prompt of a book, and its answer on stock vLLM.

    Attributes:
        floor: by how much stock vLLM differs from these in a crowd, and on its own warm cache.
    """

    prompts: Mapping[Key, Sequence[int]]
    replies: Mapping[Key, Reply]
    floor: float

    @property
    def limit(self) -> float:
        """Beyond it an answer is wrong: of many crowds one may well be worse than a few were."""
        return CHANCE * self.floor


def reference(server: Server, book: Book) -> Reference:
    """Asks stock vLLM: each prompt alone, then all of them in crowds."""
    prompts: dict[Key, Sequence[int]] = {}
    replies: dict[Key, Reply] = {}
    for key in book.requests:
        answers = {known: reply.tokens for known, reply in replies.items()}
        prompts[key] = book.prompt(key, answers)
        replies[key] = ask(server.port, prompts[key], ANSWER_TOKENS, f"alone {key}")
    assert not any(reply.cached for reply in replies.values())
    keys = list(prompts)
    floor = NOISE_LEAST
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for salts in ([f"crowd {key}" for key in keys], ["warm"] * len(keys)):
            jobs = [
                pool.submit(ask, server.port, prompts[key], ANSWER_TOKENS, salt)
                for key, salt in zip(keys, salts, strict=True)
            ]
            crowd = [job.result() for job in jobs]
            floor = max(floor, distance(crowd, [replies[key] for key in keys]))
    return Reference(prompts, replies, floor)


@dataclasses.dataclass
class Report:
    """What was seen.

    Attributes:
        answered, dropped: requests by what became of them, but those in `failed`.
        failed: what each request says that was not answered in time, and whole.
        wrong: answers that no noise explains: what, by how much, when.
        worst: the largest difference of a log-probability from the reference.
        latencies: seconds of each answered request.
        faults: by name.
        exit_codes: of daemons that were asked to stop.
        metrics: our metrics of the server, what they grew by.
        peaks: by process, the most of its memory in traffic.
    """

    answered: int = 0
    dropped: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    worst: float = 0.0
    latencies: list[float] = dataclasses.field(default_factory=list)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    exit_codes: list[int] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    peaks: dict[int, Resident] = dataclasses.field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Requests that took a prefix from the store."""
        return int(self.metrics.get("requests_total{hit}", 0))

    def labelled(self, metric: str) -> dict[str, int]:
        """A metric's parts."""
        return {
            name.removeprefix(f"{metric}{{").removesuffix("}"): int(value)
            for name, value in sorted(self.metrics.items())
            if name.startswith(f"{metric}{{") and value
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        slow = max(self.latencies, default=0.0)
        usual = statistics.median(self.latencies) if self.latencies else 0.0
        yield f"requests: {self.answered} answered, {self.dropped} dropped by their client"
        yield f"failed: {len(self.failed)}; wrong: {len(self.wrong)}"
        yield f"seconds a request: median {usual:.2f}, longest {slow:.2f}"
        yield f"log-probabilities differ by {self.worst:.4f} at most"
        yield f"lookups: {self.labelled('requests_total')}"
        yield f"reused tokens: {int(self.metrics.get('reused_tokens_total', 0))}"
        yield f"loads: {self.labelled('loads_total')}"
        yield f"blocks: {self.labelled('blocks_total')}"
        yield f"pages unsaved: {self.labelled('pages_unsaved_total')}"
        yield f"faults: {dict(sorted(self.faults.items()))}"
        yield from (f"most in traffic: {peak}" for peak in self.peaks.values())


class Soak:
    """One server and one daemon under a plan."""

    def __init__(
        self, server: Server, daemon: Daemon, plan: Plan, book: Book, truth: Reference
    ) -> None:
        self._server, self._daemon = server, daemon
        self._plan, self._book, self._truth = plan, book, truth
        self._steps = [plan.steps(client, book) for client in range(CLIENTS)]
        self._lock = threading.Lock()
        self._fresh = 0
        self._runs = 0

    # ---- traffic ----

    def run(self, seconds: float = 0.0, faults: Sequence[Fault] = (), at_least: int = 0) -> Report:
        """Traffic, with `faults`, for so long and until so many requests were answered; the
        clients go on where they were."""
        report, over = Report(), threading.Event()
        before = self._server.metrics()
        self._runs += 1
        start = time.monotonic()
        threads = [
            threading.Thread(target=self._client, args=(client, report, start, over), daemon=True)
            for client in range(CLIENTS)
        ]
        threads.append(threading.Thread(target=self._sample, args=(report, over), daemon=True))
        for thread in threads:
            thread.start()
        try:
            self._break(faults, report, start)
            time.sleep(max(0.0, start + seconds - time.monotonic()))
            deadline = time.monotonic() + REQUEST_SECONDS * at_least / CLIENTS
            while report.answered < at_least and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        finally:
            over.set()
            for thread in threads:
                thread.join(JOIN_SECONDS)
        report.failed += [f"{thread.name} hangs" for thread in threads if thread.is_alive()]
        time.sleep(SETTLE_SECONDS)
        after = self._server.metrics()
        report.metrics = {name: value - before.get(name, 0.0) for name, value in after.items()}
        return report

    def _salt(self, start: float) -> str:
        return f"run {self._runs} era {self._plan.era(time.monotonic() - start)}"

    def _client(self, client: int, report: Report, start: float, over: threading.Event) -> None:
        for step in self._steps[client]:
            if over.is_set():
                return
            salt = self._salt(start)
            if step.fresh:
                with self._lock:
                    self._fresh += 1
                    salt = f"fresh {self._fresh}"
            self._request(step.key, salt, step.drop_seconds, report, start)

    def _request(
        self, key: Key, salt: str, drop_seconds: float | None, report: Report, start: float
    ) -> None:
        prompt, asked = self._truth.prompts[key], time.monotonic()
        try:
            if drop_seconds is not None:
                drop(self._server.port, prompt, ANSWER_TOKENS, salt, drop_seconds)
                with self._lock:
                    report.dropped += 1
                return
            reply = ask(self._server.port, prompt, ANSWER_TOKENS, salt)
        except Failed as error:
            with self._lock:
                report.failed.append(f"{key} at {asked - start:.1f} s: {error}")
            return
        apart = distance([reply], [self._truth.replies[key]])
        flips = clear_flips([reply], [self._truth.replies[key]], self._truth.limit)
        with self._lock:
            report.answered += 1
            report.latencies.append(time.monotonic() - asked)
            report.worst = max(report.worst, apart)
            if apart > self._truth.limit or flips:
                report.wrong.append(
                    f"{key}, salt {salt}, {reply.cached} of {len(prompt)} cached, at "
                    f"{asked - start:.1f} s: apart by {apart:.4f}, flips {flips}"
                )

    # ---- faults ----

    def _break(self, faults: Sequence[Fault], report: Report, start: float) -> None:
        for fault in faults:
            time.sleep(max(0.0, start + fault.at_seconds - time.monotonic()))
            if fault.kind == "freeze":
                self._daemon.freeze()
                time.sleep(fault.down_seconds)
                self._daemon.thaw()
            else:
                if fault.kind == "stop":
                    report.exit_codes.append(self._daemon.stop())
                else:
                    self._daemon.kill()
                time.sleep(fault.down_seconds)
                self._daemon.start()
                if fault.warm:
                    for key in self._book.bases():
                        self._request(key, self._salt(start), None, report, start)
            report.faults[fault.name] += 1

    # ---- memory ----

    def _sample(self, report: Report, over: threading.Event) -> None:
        while not over.wait(SAMPLE_SECONDS):
            for process, now in resident(self._server.pid).items():
                peak = report.peaks.get(process)
                if peak is None or now.total_bytes > peak.total_bytes:
                    report.peaks[process] = now

    def at_rest(self) -> dict[int, Resident]:
        """Memory in a state that can be compared: a new store, the same few prompts asked.

        Of processes that stay: some are started for an instant.
        """
        self._daemon.restart()
        self._runs += 1
        report = Report()
        for key in list(self._book.requests)[:REST_REQUESTS]:
            self._request(key, f"rest {self._runs}", None, report, time.monotonic())
        assert not report.failed and not report.wrong, (report.failed, report.wrong)
        seen = resident(self._server.pid)
        time.sleep(SETTLE_SECONDS)
        now = resident(self._server.pid)
        return {process: now[process] for process in seen if process in now}
