"""Which prefix of a request is taken over, and how much of it vLLM holds already.

::

    vLLM's own     kv of full attention [##########################]   states [####]
    cache                                        resident ^     agreed ^    all groups have this
    store          kv [......###########################################]
                   window of anchors                        [aaaaaaaaaaa]
                                                                 resume ^
    taken over     kv that is resident  [#################]|<- loaded ->|   states are replayed
                              local, whole blocks, < resume ^

vLLM takes kv over by whole blocks, and wants at least one token to be loaded; so where the resume
point lies below what is resident, the block that it lies in is loaded, and so are those behind.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
from collections.abc import Sequence
from typing import Any

from anchorstore.client import Client, NeedAll
from anchorstore.client.client import Window
from anchorstore.errors import AnchorStoreError
from engine_adapter.strategy import Need, anchor_window
from engine_adapter.vllm.geometry import Geometry
from engine_adapter.vllm.ledger import Entry
from engine_adapter.vllm.settings import Settings
from engine_adapter.vllm.spaces import Spaces

WINDOW_SECONDS = 1.0
"""A window that waits for blocks is looked up again after so long: leases end."""

log = logging.getLogger("anchorstore.vllm")


class Later(enum.Enum):
    """A longer prefix is on its way into memory: ask again."""

    LATER = "later"


LATER = Later.LATER


@dataclasses.dataclass(slots=True)
class Held:
    """A window of a request.

    Attributes:
        first_page: of its kv.
        local_tokens: what vLLM holds of the prefix; kv is loaded from there on.
        resume_tokens: where the prefix ends.
        found_at: when it was looked up.
        answers: workers that have copied it or failed to.
        is_wanted: none has failed, and the request is still there.
    """

    window: Window
    client: Client
    first_page: int
    local_tokens: int
    resume_tokens: int
    found_at: float
    answers: int = 0
    is_wanted: bool = True

    @property
    def external_tokens(self) -> int:
        """Tokens that are brought in."""
        return self.resume_tokens - self.local_tokens

    def is_fresh(self, now: float) -> bool:
        """Whether it is not about to lose its lease."""
        return now - self.found_at < WINDOW_SECONDS

    def stands(self, local_tokens: int, now: float) -> bool:
        """Whether it still answers the same question."""
        return self.local_tokens == local_tokens and self.is_fresh(now)


class Matcher:
    """Asks the store, once or twice a request."""

    def __init__(self, settings: Settings, geometry: Geometry, shards: int, spaces: Spaces) -> None:
        """`shards`: kv layouts of a session; the anchors' comes after them."""
        self._settings, self._budget = settings, settings.budget
        self._geometry, self._shards, self._spaces = geometry, shards, spaces

    def beyond(self, request: Any, entry: Entry, local_tokens: int) -> Held | Later | str:
        """A prefix that reaches beyond `local_tokens`, or the reason why there is none."""
        page = self._budget.page_tokens
        pages = self._budget.askable_pages(request.num_tokens)
        if pages - self._budget.margin_pages <= local_tokens // page:
            return "local" if local_tokens else "short_prompt"
        held = self._look_up(request, entry, local_tokens // page)
        if not isinstance(held, Held):
            return held
        held.local_tokens = local_tokens
        if held.external_tokens > 0:
            return held
        held.window.release()
        return "local"

    def around(
        self, request: Any, entry: Entry, resident_tokens: int, agreed_tokens: int
    ) -> Held | Later | str:
        """A prefix that reaches beyond `agreed_tokens`, on top of kv that is resident further up.

        Its local_tokens say how much of what is resident is to be taken over.
        """
        geometry, page = self._geometry, self._budget.page_tokens
        span = geometry.pages_per_block + self._budget.margin_pages
        first_page = max(0, resident_tokens // page - span)
        for _ in range(2):
            held = self._look_up(request, entry, first_page)
            if not isinstance(held, Held):
                return held
            held.local_tokens = geometry.whole_blocks(min(resident_tokens, held.resume_tokens - 1))
            is_better = held.resume_tokens > agreed_tokens
            if is_better and held.local_tokens // page >= first_page:
                return held
            held.window.release()
            if not is_better:
                break
            first_page = held.local_tokens // page
        return "local"

    def _look_up(self, request: Any, entry: Entry, first_page: int) -> Held | Later | str:
        """The longest prefix with kv from `first_page` on, or the reason why there is none; LATER
        while the daemon brings a longer one into memory.

        Whatever the daemon has against a question costs this request its prefix, nothing else.
        """
        client = self._spaces.get(entry.space)
        if isinstance(client, str):
            return client
        try:
            found = self._ask(client, request, entry, first_page)
        except AnchorStoreError as error:
            log.warning("request %s is not looked up: %s", request.request_id, error)
            return "refused"
        if isinstance(found, str) and found in ("unreachable", "deadline"):
            self._spaces.rest(found)
        return found

    def _ask(
        self, client: Client, request: Any, entry: Entry, first_page: int
    ) -> Held | Later | str:
        budget = self._budget
        needs = self._needs(first_page)
        if client.root_digest is None:  # never attached: any call tries again
            with client.lookup(b"", needs) as window:
                if client.root_digest is None:
                    return window.miss
        pages = budget.askable_pages(request.num_tokens)
        pages = min(pages, client.max_pages or pages)
        window = client.lookup(
            entry.hashes(client.root_digest, request.all_token_ids, pages, budget.page_tokens),
            needs,
            max_lineage=self._settings.max_lineage,
            margin_pages=budget.margin_pages,
            prefetch=True,
        )
        if window.loading_boundary_pages and self._waits(entry):
            window.release()
            return LATER
        if not window.hit:
            return window.miss
        resume_tokens = window.resume_pages * budget.page_tokens
        return Held(window, client, first_page, 0, resume_tokens, time.monotonic())

    def _waits(self, entry: Entry) -> bool:
        """Whether the request still waits for what is brought in: once, and not for ever."""
        now = time.monotonic()
        if entry.waits_until is None:
            entry.waits_until = now + self._settings.bring_in_seconds
        return now < entry.waits_until

    def _needs(self, first_page: int) -> Sequence[Need]:
        """Kv of every shard from `first_page` on, and the anchors' window."""
        needs: list[Need] = [NeedAll(shard, first_page=first_page) for shard in range(self._shards)]
        if self._settings.replays:
            needs.append(anchor_window(self._shards, self._budget))
        return needs
