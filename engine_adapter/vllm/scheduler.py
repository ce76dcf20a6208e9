"""The scheduler's half: look prefixes up, say what is loaded and saved.  No torch, no vLLM import.

::

    match       hash the prompt's pages, one lookup      -> tokens beyond those that vLLM has
    allocated   vLLM has given blocks                    -> LoadJob
    reported    every worker has copied it, or one not   -> replay, or drop
    step        what this step computes                  -> SaveJobs for pages that get full
    follow      which full blocks vLLM's own cache holds -> events for the daemon
    finish      the last full pages                      -> SaveJob, blocks held until it is copied

Requests are vLLM's own objects; only the attributes used here are relied on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from anchorstore.keys import DIGEST_BYTES
from engine_adapter.packing import kept_positions
from engine_adapter.vllm.following import Following
from engine_adapter.vllm.geometry import Geometry
from engine_adapter.vllm.jobs import LoadJob, Report, SaveJob, StepJobs
from engine_adapter.vllm.ledger import Entry, Ledger, Lineages
from engine_adapter.vllm.matching import Held, Later, Matcher
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.spaces import Spaces
from engine_adapter.vllm.subject import adapter_number, space_of, unkeyable
from engine_adapter.vllm.tally import Tally

LINEAGE_MAX = 255


class SchedulerHalf:
    """Decides per request; holds the windows until the workers have read them."""

    def __init__(
        self,
        settings: Settings,
        geometry: Geometry,
        shards: int,
        state_groups: Sequence[int],
        spaces: Spaces,
        adapter_of: Callable[[Any], str],
        workers: int,
        lineages_max: int,
        *,
        loads: bool,
        saves: bool,
    ) -> None:
        """Decides for one engine.

        Args:
            shards: kv layouts of a session.
            state_groups: numbers of vLLM's groups of linear layers.
            adapter_of: the identity of a request's LoRA adapter.
            workers: that answer each load.
            lineages_max: pages whose lineage is remembered; those of the engine's own cache.
            loads, saves: whether prefixes are looked up, and pages saved.
        """
        self._tally = Tally()
        self._settings, self._budget = settings, settings.budget
        self._geometry, self._shards = geometry, shards
        self._state_groups = tuple(state_groups)
        self._matcher = Matcher(settings, geometry, shards, spaces)
        self._spaces, self._adapter_of, self._workers = spaces, adapter_of, workers
        self._loads_any, self._saves_any = loads, saves
        self._ledger, self._lineages = Ledger(), Lineages(lineages_max)
        self._epoch = b""
        self._following: Following | None = None
        self._requests: dict[str, Any] = {}
        self._matched: dict[str, Held] = {}
        self._loading: dict[str, Held] = {}
        self._loads: list[LoadJob] = []
        self._replays: list[str] = []
        self._drops: list[str] = []
        self._saves: list[SaveJob] = []

    # ---- match ----

    def match(self, request: Any, local_tokens: int) -> int | Later:
        """Tokens that can be loaded beyond the `local_tokens` that vLLM holds; 0 for none, LATER
        where to ask again."""
        held = self._matched.get(request.request_id)
        if held is not None and held.stands(local_tokens, time.monotonic()):
            return held.external_tokens
        self._let_go(request.request_id)
        entry = self._entry(request)
        found = self._unasked(request, entry) or self._matcher.beyond(request, entry, local_tokens)
        return self._hold(request, entry, local_tokens, found)

    def match_around(self, request: Any, resident_tokens: int, agreed_tokens: int) -> int:
        """How much of kv that is resident is to be taken over, for a prefix that match() offers
        next; 0 where vLLM does better with the `agreed_tokens` of which it has the states, too, or
        does not know yet."""
        held = self._matched.get(request.request_id)
        if held is not None and held.is_fresh(time.monotonic()):
            return held.local_tokens
        self._let_go(request.request_id)
        entry = self._entry(request)
        found = self._unasked(request, entry) or self._matcher.around(
            request, entry, resident_tokens, agreed_tokens
        )
        if self._hold(request, entry, agreed_tokens, found) and isinstance(found, Held):
            return found.local_tokens
        return 0

    def _hold(
        self, request: Any, entry: Entry, local_tokens: int, found: Held | Later | str
    ) -> int | Later:
        """Keeps a window until vLLM has decided; its external tokens, 0 for none."""
        if isinstance(found, Later):
            return found
        self._count(request, entry, local_tokens, found)
        if isinstance(found, str):
            return 0
        self._matched[request.request_id] = found
        return found.external_tokens

    def _unasked(self, request: Any, entry: Entry) -> str:
        """Why a request is not looked up at all; "" where it is."""
        if entry.is_barred:
            return "failed"
        if request.skip_reading_prefix_cache or not self._loads_any:
            return "not_asked"
        return unkeyable(request, entry.space)

    def _count(self, request: Any, entry: Entry, local_tokens: int, found: Held | str) -> None:
        """Once a request: what became of its lookup, and what that costs at most."""
        if entry.is_counted:
            return
        entry.is_counted = True
        if isinstance(found, Held):
            self._tally.add("requests", label="hit")
            return
        self._tally.add("requests", label=found)
        tokens = request.num_tokens
        askable = self._budget.askable_pages(tokens) * self._budget.page_tokens
        reusable = self._budget.resume_tokens(askable, tokens)
        self._tally.add("lost_tokens", max(0, reusable - local_tokens), found)

    def _entry(self, request: Any) -> Entry:
        self._requests[request.request_id] = request
        entry = self._ledger.entries.get(request.request_id)
        if entry is None:
            space = space_of(request, self._adapter_of, self._epoch)
            entry = self._ledger.enter(request.request_id, space)
        return entry

    def _lineage_at(self, request: Any, entry: Entry, tokens: int) -> int:
        """Replays behind what vLLM's own cache holds of the request's first `tokens`."""
        pages = tokens // self._budget.page_tokens
        client = self._spaces.get(entry.space) if pages and self._lineages else ""
        if isinstance(client, str) or client.root_digest is None:
            return 0
        page = self._budget.page_tokens
        hashes = entry.hashes(client.root_digest, request.all_token_ids, pages, page)
        return self._lineages.deepest(hashes)

    # ---- load ----

    def allocated(
        self, request: Any, block_ids: Sequence[Sequence[int]], kv_group: int, external: int
    ) -> None:
        """vLLM has given blocks for `external` tokens of what match() offered (0: it did not)."""
        held = self._matched.pop(request.request_id, None)
        if held is None:
            return
        if external != held.external_tokens:
            held.window.release()
            assert external == 0, (external, held.local_tokens)
            return
        entry = self._entry(request)
        resident = self._lineage_at(request, entry, held.local_tokens)
        lineage = min(max(held.window.lineage, resident) + 1, LINEAGE_MAX)
        entry.loaded, entry.is_awaiting = (held.resume_tokens, lineage), True
        self._tally.add("reused_tokens", external)
        self._loading[request.request_id] = held
        self._loads.append(self._load_job(request, entry, held, block_ids, kv_group))

    def _load_job(
        self,
        request: Any,
        entry: Entry,
        held: Held,
        block_ids: Sequence[Sequence[int]],
        kv_group: int,
    ) -> LoadJob:
        window, budget = held.window, self._budget
        page, resume = budget.page_tokens, held.resume_tokens
        positions = np.empty(0, np.int64)
        if self._settings.replays:
            blocks = window.blocks(self._shards)
            rows = budget.rows(resume, len(blocks))
            kept = kept_positions(blocks.first_page, len(blocks), budget.rows_per_page, page)
            positions = kept[len(kept) - rows :]
        tokens = np.asarray(request.all_token_ids[:resume], np.int64)[positions]
        column = self._geometry.column(resume)
        token = held.client.session_token
        assert token is not None, "a window without a session"
        return LoadJob(
            request.request_id,
            entry.space,
            token,
            window.export(),
            self._geometry.page_slots(
                block_ids[kv_group], held.local_tokens // page, window.resume_pages
            ),
            held.local_tokens // page - held.first_page,
            positions,
            tokens,
            resume,
            {group: block_ids[group][column] for group in self._state_groups},
            adapter_number(request),
        )

    def reported(self, report: Report) -> None:
        """Workers have copied prefixes, or failed to; once all have answered it is decided."""
        for request_id, count in report.failed.items():
            self._loading[request_id].is_wanted = False
            self._loading[request_id].answers += count
        for request_id, count in report.copied.items():
            self._loading[request_id].answers += count
        for request_id in sorted({*report.copied, *report.failed}):
            held = self._loading[request_id]
            assert held.answers <= self._workers, (request_id, held.answers)
            if held.answers < self._workers:
                continue
            del self._loading[request_id]
            held.window.release()
            (self._replays if held.is_wanted else self._drops).append(request_id)
            self._tally.add("loads", label="done" if held.is_wanted else "dropped")
            if not held.is_wanted:
                self._bar(request_id)
        for request_id in report.refused:
            self._tally.add("loads", label="refused")
            self._bar(request_id)

    def _bar(self, request_id: str) -> None:
        """The request computes its prefix, and is not looked up again."""
        entry = self._ledger.entries.get(request_id)
        if entry is not None:
            entry.is_barred, entry.loaded = True, (0, 0)

    # ---- save ----

    def step(
        self, scheduled: Mapping[str, int], blocks_of: Callable[[str], Sequence[int]]
    ) -> StepJobs:
        """The jobs of a step that computes `scheduled` tokens of each request."""
        for request_id, tokens in scheduled.items():
            request = self._requests.get(request_id)
            entry = self._ledger.entries.get(request_id)
            if request is None or entry is None:
                continue
            start, known = request.num_computed_tokens, len(request.all_token_ids)
            is_admitted = start != entry.computed  # just now, or again
            if is_admitted:
                resumed, lineage = entry.loaded
                is_loaded = start == resumed
                entry.lineage = lineage if is_loaded else self._lineage_at(request, entry, start)
            entry.is_awaiting = False
            stop = entry.advance(start, tokens, known, self._budget.page_tokens)
            if stop > entry.next_page:
                self._save(request, entry, stop, blocks_of(request_id), is_last=False)
            if self._following is not None:
                reused = start if is_admitted else None
                self._following.step(request, entry, stop, reused, blocks_of)
        if self._following is not None:
            self._following.sweep()
        jobs = StepJobs(
            tuple(self._loads), tuple(self._replays), tuple(self._drops), tuple(self._saves)
        )
        for taken in (self._loads, self._replays, self._drops, self._saves):
            taken.clear()
        return jobs

    def arrived(self, request: Any) -> None:
        """A request is new to the scheduler."""
        self._entry(request)

    def finish(self, request: Any, block_ids: Sequence[int]) -> bool:
        """A request has ended; True where its blocks are still to be copied from."""
        self._let_go(request.request_id)
        if self._following is not None:
            self._following.finished(request)
        if request.request_id in self._loading:
            self._loading[request.request_id].is_wanted = False
        entry = self._ledger.leave(request.request_id)
        self._requests.pop(request.request_id, None)
        if entry is None or entry.computed is None or entry.is_awaiting:
            return False
        computed = min(request.num_computed_tokens, len(request.all_token_ids))
        return self._save(
            request, entry, computed // self._budget.page_tokens, block_ids, is_last=True
        )

    def _save(
        self, request: Any, entry: Entry, stop: int, block_ids: Sequence[int], *, is_last: bool
    ) -> bool:
        """Adds a job for the pages below `stop` that are not saved yet; False for none."""
        if not self._saves_any or unkeyable(request, entry.space):
            return False
        client = self._spaces.get(entry.space)
        if isinstance(client, str) or client.root_digest is None:
            return False
        stop = min(stop, len(block_ids) * self._geometry.pages_per_block)
        pages = entry.take(stop)
        if not pages:
            return False
        hashes = entry.hashes(
            client.root_digest, request.all_token_ids, pages.stop, self._budget.page_tokens
        )
        start = pages.start * DIGEST_BYTES
        self._lineages.record(hashes[start:], entry.lineage)
        self._saves.append(
            SaveJob(
                request.request_id,
                entry.space,
                hashes[start - DIGEST_BYTES : start] if start else None,
                pages.start,
                hashes[start:],
                self._geometry.page_slots(block_ids, pages.start, pages.stop),
                entry.lineage,
                is_last,
            )
        )
        return True

    # ---- vLLM's own cache ----

    def follow(self, hash_of: Callable[[int], Any]) -> None:
        """From now on the daemon is told what vLLM's own cache holds; `hash_of` a block's id is
        what it is cached under, None for nothing."""
        if self._settings.events_queue_pages:
            self._following = Following(
                self._spaces, self._geometry, self._settings, hash_of, self._tally
            )

    # ---- the end ----

    def reset(self) -> None:
        """What is stored is not to be used any more: from now on this engine has names of its own.

        For weights that were changed in place: their digest does not name them.
        """
        for request_id in list(self._matched):
            self._let_go(request_id)
        self._ledger, self._lineages = Ledger(), Lineages(self._lineages.limit)
        self._requests.clear()
        self._epoch = secrets.token_bytes(16)

    def _let_go(self, request_id: str) -> None:
        held = self._matched.pop(request_id, None)
        if held is not None:
            held.window.release()

    def take_counts(self) -> dict[str, int]:
        """What was counted since the last time."""
        if self._following is not None:
            self._following.count()
        return self._tally.take()

    def close(self) -> None:
        """Releases every window and ends the sessions."""
        for held in (*self._matched.values(), *self._loading.values()):
            held.window.release()
        self._matched.clear()
        self._loading.clear()
        self._spaces.close()
